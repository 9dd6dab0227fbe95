"""Queries on a loom: threads and how they ended, lists with filters, differences, statistics, the records of a path.

Nothing here writes to a loom; it reads through `Loom` and the stores' own interface.
Start with `thread.py` (one thread and its ending), then `listing.py` (all threads with their figures).
"""

__all__ = [
    "completed_turns", "copied_path", "diff", "history", "listing", "outline", "recorded_events", "statistics",
    "thread",
]  # fmt: skip
