"""Rebuilds from the loom what an entity had before: what its crystal saw, and where its cast continues.

Used by forks and resumed casts, and by the exports for training. May import the rest of `core` below the loop, mediums
and the loom. Start with `replayed_context.py`.
"""

__all__ = ["continuation", "definition_changes", "recorded_circle", "replayed_context"]
