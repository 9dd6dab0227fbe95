"""The sessions of one connection: open, load, fork, prompt, configure and close them.

These modules may import the core, the loom, the recipes and the rest of `acp`. Start reading in `handlers` (the
methods) and `session` (one session).
"""
