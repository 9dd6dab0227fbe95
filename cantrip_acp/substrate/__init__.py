"""The substrate: what a session knows, and where it is recorded. Chunks are placed in scopes, and every change is kept.

It imports the core, the gates, the sandbox and the loom, never a front end; `recipes` connects it with a cantrip. To the core
it is a context contributor, a reader of events and a source of gates. Start with `chunks.py` (the data), `substrate.py` (what
a change must fulfil) and `knowledge.py` (what an entity reads of it). Databases are known only to `stores/`.
"""

__all__ = [
    "boundary", "chunks", "engine", "knowledge", "owners", "projects", "recorder", "remembered_facts", "substrate", "types",
    "view",
]  # fmt: skip
