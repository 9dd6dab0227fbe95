"""Crystals: the models, one package per provider, behind one contract.

Only a provider's own module may import its SDK, and it does so at the first query; all other code uses only
`contract`. These modules may import the core and the text helpers. Start reading in `contract`.
"""
