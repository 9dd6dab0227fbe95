"""The records of a loom, and the tree in memory that they form.

Nothing here knows a file format or a database; the stores do. Start with `turn.py`: it has the fields of every record.
"""
