"""The code medium: the entity writes Python, which runs in a sandboxed process that keeps its state.

May import core and the sandbox. Start with `medium.py`; `session.py` owns the worker process.
"""

__all__ = ["medium", "session", "snapshot"]
