"""Client services: files, terminals and forms that the client offers to the gates of a session.

These modules may import the gates and the wire. Start reading in `services`.
"""
