"""Gates on a repository's history: git_status, git_diff, git_log, git_show and git_commit."""
