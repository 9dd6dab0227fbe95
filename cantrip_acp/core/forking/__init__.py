"""Forking, resuming and replaying: a cast goes on from a recorded turn (LOOM-4).

Start with `fork.py`."""
