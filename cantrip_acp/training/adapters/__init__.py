"""Adapters: other trainers train a model on casts of an example. One module for each trainer: `trl`, `skyrl`, `verl`,
`agent_lightning`; `training/verifiers.py` is beside this folder.

A trainer gives its function that makes tokens, or the address of its model. `casts` casts the questions of an example
(`trainer.example`) with it, and gives each cast back as one token sequence with its reward. Nothing imports these modules
but the programs of the user; each imports the library that it is for.
"""
