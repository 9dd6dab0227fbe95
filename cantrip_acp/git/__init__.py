"""git: runs the host's git safely on untrusted repositories, for file snapshots of turns and worktrees of forks.

Only `run.py` starts git. Gates and the core may import this folder. It does not import gates, and of the core only the
errors. Start with `repository.py` and `run.py`.
"""

__all__ = ["file_snapshots", "project_identity", "repository", "run", "worktrees"]
