"""ACP client: starts an agent, talks to it over stdio and reports what it does.

These modules may import the wire and the core. Start reading in `client`.
"""
