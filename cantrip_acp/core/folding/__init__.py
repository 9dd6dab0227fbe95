"""Folding: replaces older turns in the context with a summary when the window needs room (§6.8).

May import crystals, loom records and core. Start with `policy.py`, which decides when to fold and what; `apply.py`
does it for a running cast, and `summary.py` makes the text that replaces the turns.
"""

__all__ = ["apply", "compaction", "policy", "summary"]
