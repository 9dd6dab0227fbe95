"""Git gates: git_status, git_diff, git_log, git_show and git_commit.

They may import `git/`, which runs git safely, and the path confinement of `gates/`. Start with `git_read.py`.
`git_copies.py` explains why git works only on copies of files.
"""

__all__ = ["git_read"]
