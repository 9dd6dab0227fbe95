"""Output of the commands: terminal and tables, casts and sessions, tool calls and child entities.
It may import the core, the ACP client and `cli/session`, but not the commands. Start with `terminal.py`, then `transcript.py`."""
