"""Retention: finds and deletes old looms and files that crashes left in the state folder (`cantrip gc`).

A collector (`plan.COLLECTORS`) finds what may be deleted; only `delete.py` deletes. Only commands import this folder.
Start with `rules.py` (ages and sizes), then `plan.py`.
"""
