"""Folding: older turns are replaced in the context by a summary when the window needs room (§6.8).

`policy.py` decides when and what; `apply.py` does it for a running cast."""
