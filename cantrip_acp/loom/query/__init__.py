"""Queries on a loom: threads and how they ended, lists with filters, differences and statistics.

Nothing here writes to a loom or knows how its records are stored.
Start with `thread.py` (one thread and its ending), then `listing.py` (all threads with their figures).
"""
