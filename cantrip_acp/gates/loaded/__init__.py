"""`compile_and_load`: modules that an entity wrote, made gates of it. Only the gate registry names this folder.

The host reads their text, judges it by the wards, and hands it to a sandboxed worker. It never compiles, imports,
evaluates or unpickles anything of them.
"""
