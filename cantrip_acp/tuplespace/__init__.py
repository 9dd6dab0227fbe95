"""Tuple-space: units of work (tuples) that any process can claim, run and answer with a receipt.

Start with `tuples` (the unit of work), `space` (the operations of a program) and `stores` (SQLite or PostgreSQL).

The tuple-space uses the core, recipes and text helpers. The core does not import it. `cli` uses all of it, ACP only `gate_cache`.
"""
