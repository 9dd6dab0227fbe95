"""The core: cantrips, entities, and the loop that runs a cast.

Nothing here imports a front end (acp, cli, lsp), a provider's SDK or the sandbox.
Start with `casting/loop.py` (one cast, turn by turn) and `entity.py` (the state that an entity keeps between casts).
"""

__all__ = [
    "cantrip", "casting", "context", "definition", "delegation", "entity", "event_hub", "exports", "folding", "forking",
    "history", "lifecycle", "scoring", "state", "streams", "turn_renderer",
]  # fmt: skip
