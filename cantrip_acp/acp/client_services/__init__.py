"""Client services: files, terminals and forms that the client offers to the gates of a session.

These modules may import the core, the gates, the wire and the rendering. Start reading in `services`.
"""
