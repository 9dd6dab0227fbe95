"""Stores keep a loom's records: in memory, in a file of JSON lines, in SQLite or in PostgreSQL.

Only this folder knows a file format or a database; it imports the loom's records and nothing of the front ends.
Start with `contract.py` (what each store does) and `address.py` (which store opens a path or an address).
"""

__all__ = ["address", "file_locks", "jsonl", "memory", "rows"]
