"""The tree in memory that the records of a loom (`types.records`) form, and what it knows of each without its body.

Nothing here knows a file format or a database; the stores do. Start with `tree.py`.
"""

__all__ = ["record_heads", "tree", "turn_parts"]
