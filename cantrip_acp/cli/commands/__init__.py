"""The commands of `cantrip`, one module per command; each is imported only when it runs.
They may import the rest of `cli` and every other package. Start with `cast.py`."""
