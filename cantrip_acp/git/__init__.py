"""The host's git on repositories that nobody vouches for: what turns did to files is pinned, and forks get worktrees.

`run.py` is the only file that starts git. Gates and the core may import this folder; it imports nothing of theirs.
"""
