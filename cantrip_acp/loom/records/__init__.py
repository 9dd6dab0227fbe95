"""The records of a loom and the tree that they make.

`turn.py` has every record's shape."""
