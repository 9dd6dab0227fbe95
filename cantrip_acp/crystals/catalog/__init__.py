"""Model catalog: context windows, limits, prices and abilities of models, and the parameters that they refuse.

These modules may import the core, the contract, `local.presets`, `files` and `text`. Start reading in `types` (the
data) and `lookup`.
"""

__all__ = ["lookup", "types", "unsupported_params"]
