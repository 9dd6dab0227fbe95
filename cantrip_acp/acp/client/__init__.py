"""ACP client: starts an ACP agent, talks to it over stdio, and reports its actions to an observer.

These modules may import the wire and the core. Start reading in `client`.
"""

__all__ = ["agent_process", "client", "in_process"]
