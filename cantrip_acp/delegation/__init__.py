"""Delegation: entities that start child entities (chapter 5, COMP-1..9).

All checks on what a child may be are here, the same for every medium and every way to ask for one. Imports core
modules only: no sandbox, no protocol, no recipe. Start with `run_child.py` and `call_agent.py`.
"""
