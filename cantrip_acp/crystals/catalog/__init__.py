"""Model catalog: windows, limits, prices and abilities of models, and the parameters that they refuse.

These modules may import the contract and the core. Start reading in `types` (the data) and `lookup`.
"""
