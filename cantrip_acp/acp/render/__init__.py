"""Events and recorded turns as `session/update` notifications.

Start with `event_translator.py` (live) and `history.py` (a loaded session)."""
