"""`cantrip loom`: list, show, check, fork, export and reward recorded threads."""
