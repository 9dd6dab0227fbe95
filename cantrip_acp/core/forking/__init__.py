"""Forking, resuming and replaying: entities continue or repeat a cast from a recorded turn (LOOM-4).

May import the rest of core, crystals, gates, the loom, files, git and the mediums' snapshots. Start with `fork.py`.
"""

__all__ = ["earlier_casts", "fork", "group", "replay", "resume"]
