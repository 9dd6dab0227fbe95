"""Adapters: other trainers train a model on casts of an example.

A trainer gives its function that makes tokens, or the address of its model. `casts` casts the questions of an example
(`trainer.example`) with it, and gives each cast back as one token sequence with its reward. `trl_rollouts` is for TRL,
`training/verifiers.py` beside this folder for verifiers, and files of `docs/trainers/` are for others. Nothing imports
these modules but the programs of the user; each imports the library that it is for.
"""
