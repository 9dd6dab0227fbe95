"""Files that run inside the sandbox, where they are untrusted.

Nothing on the host imports from here. The files are copied or mounted into the sandbox. `python/` runs code cells; start
with `python/code_worker.py`. The `call.*` scripts are the gate commands of a shell. `sentinel.sh` runs on the host and cleans
up after a process that was killed.
"""
