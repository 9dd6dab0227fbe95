"""`cantrip loom`: list, show, check, compare, fork, replay, reward, export, import and view recorded threads.
The commands may import the rest of `cli` and the packages below it. Start with `commands.py`."""
