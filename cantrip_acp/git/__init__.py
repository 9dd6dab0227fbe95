"""Runs the host's git safely on untrusted repositories: file snapshots of turns, and worktrees for forks.

`run.py` is the only file that starts git. Gates and the core may import this folder; it imports neither gates nor,
except for errors, the core. Start with `repository.py` and `run.py`.
"""
