"""Retention: finds and deletes old looms, with all that belongs to them (`cantrip gc`).

It imports the loom, git and the core's forking. Only commands import this folder. Start with `rules.py` (age and size), then
`plan.py` (what is deleted) and `looms.py` (when a loom is in use, and how it is deleted).
"""

__all__ = ["looms", "plan", "rules"]
