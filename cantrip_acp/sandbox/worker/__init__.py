"""Host side of the Python process that runs cells. It stays in its sandbox and is frozen between cells.

Nothing here trusts the worker's output. It may import the core and the other host-side folders of the sandbox; the
code inside is `sandbox/inside`. Start with `host_side.py`.
"""
