"""Delegation: entities that start child entities (chapter 5, COMP-1..9).

All checks on what a child may be are here, the same for every medium and every way to ask for one. May import core,
gates and mediums, but not the sandbox, a protocol or recipes. Start with `run_child.py` and `call_agent.py`.
"""

__all__ = ["call_agent", "request", "run_child"]
