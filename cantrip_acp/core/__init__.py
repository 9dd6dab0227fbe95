"""The core: what a cantrip is, and the loop that runs an entity.

Start with `loop.py` (one cast, turn by turn) and `entity.py` (what lives from cast to cast).
Nothing here imports a front end,
a provider's SDK or a sandbox."""
