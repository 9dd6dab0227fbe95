"""Tuple-space: units of work (tuples) that any process can claim, run and answer with a receipt.

Start with `tuples` (the unit of work), `space` (the operations of a program) and `stores` (SQLite or PostgreSQL).

The tuple-space uses the core, recipes and text helpers. The core, ACP and the language server do not import it; `cli` does.
"""
