"""The loom: the append-only tree of every turn (chapter 6), with its records, its queries and the stores that keep it.

Nothing here imports a front end (CLI, ACP, LSP) or a sandbox, and only `stores/` knows a file format.
Start with `loom.py` (read and append), then `records/turn.py` (the fields of each record).
"""

__all__ = [
    "base", "find_loom", "loom", "output_file", "query", "records", "recovery", "rewards", "snapshots", "stores",
    "view",
]  # fmt: skip
