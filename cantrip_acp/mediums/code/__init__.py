"""The code medium: the entity's utterance is Python, run in a sandboxed process that keeps its state.

Start with `medium.py`; `session.py` owns the worker."""
