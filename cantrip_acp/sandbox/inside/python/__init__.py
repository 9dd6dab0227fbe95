"""Code worker: runs the Python of cells inside the sandbox, where this folder is the package ``_cantrip``.

It may import only the standard library, and only few modules at its start. Code of the entity runs in the same process
and can break it. The entity then loses only its own worker, because the host trusts nothing from here. Start with
`code_worker.py`.
"""
