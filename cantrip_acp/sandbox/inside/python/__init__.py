"""Code worker: runs a cell's Python inside the sandbox, where this folder is the package ``_cantrip``.

It may import the standard library only, and few modules at its start. Entity code shares this process and can break
it. It then only loses its own worker: the host trusts nothing from here. Start with `worker.py`.
"""
