"""`compile_and_load`: turns modules that an entity wrote into gates. Only the gate registry imports this folder.

The host reads their text, checks it against the wards, and passes it to a sandboxed worker. It never compiles,
imports, evaluates or unpickles anything of them. Start with `compile_and_load.py`; `policy.py` decides what may be
loaded.
"""
