"""`cantrip loom`: list, show, check, compare, fork, replay, reward, export, import and view recorded threads.
The commands may import the rest of `cli`, recipes, loom, training and the core. Start with `commands.py`."""
