"""The commands of `cantrip`, one module per command; each is imported only when it runs.
They may import `cli/session`, `cli/render`, `cli/script` and the packages below `cli`. Start with `cast.py`."""
