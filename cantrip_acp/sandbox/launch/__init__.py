"""Starting a sandbox, running a command in it, and ending all that it started.

Start with `sandbox.py` (one entity's sandbox) and `command.py` (one command in it)."""
