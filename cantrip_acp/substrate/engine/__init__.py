"""The engine runs programs of the substrate: executables with a declared spec, each in the sandbox, inside a boundary.

`engine.py` starts and awaits runs, `socket_server.py` is what a running program talks to, `program_gates.py` makes gates of
programs, `skills.py` brings skills of a workspace into the substrate. It imports the sandbox and the store, never a recipe:
how the agent program casts an entity is given to it.
"""

__all__ = ["engine", "program_gates", "socket_server"]
