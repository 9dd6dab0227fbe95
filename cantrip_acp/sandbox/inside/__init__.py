"""Files that run inside the sandbox, where they are untrusted.

Nothing on the host imports from here; the files are copied or mounted into the sandbox. `python/` runs code cells
(start with `python/worker.py`); the `call.*` scripts are the gate commands of a shell.
"""
