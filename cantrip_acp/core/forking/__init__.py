"""Forking, resuming and replaying: entities continue or repeat a cast from a recorded turn (LOOM-4).

May import the rest of core, loom, mediums' snapshots and git. Start with `fork.py`.
"""
