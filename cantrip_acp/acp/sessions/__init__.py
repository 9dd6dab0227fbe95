"""The sessions of one connection: opened, prompted, configured and closed.

Start with `handlers.py` (the methods) and `session.py` (one session)."""
