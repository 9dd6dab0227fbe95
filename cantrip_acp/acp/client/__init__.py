"""ACP client: starts an ACP agent, talks to it over stdio, and reports its actions to an observer.

These modules may import the wire and the core. Start reading in `client`.
"""
