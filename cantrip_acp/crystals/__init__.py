"""Crystals: the models, one package per provider, behind one contract.

Only a provider's own module may import its SDK, and it does so at the first query; all other code uses only
`contract`. These modules may import the core, `files` and `text`. Start reading in `contract`.
"""
