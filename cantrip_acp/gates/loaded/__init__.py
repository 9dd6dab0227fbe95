"""The gate `compile_and_load`: turns Python modules that an entity wrote into gates.

The host reads a module's text, checks it against the wards, and passes it to a sandboxed worker. The host never compiles,
imports, evaluates or unpickles any of it. Only the gate registry imports this folder. Start with `compile_and_load.py`.
`policy.py` decides which modules may be loaded.
"""
