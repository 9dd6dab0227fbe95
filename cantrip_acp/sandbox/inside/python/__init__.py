"""The code worker: what runs a cell's Python. It is copied into the sandbox as the package ``_cantrip``.

Standard library alone, and of that as little as can be while it starts. Entities share this process and can break it:
what breaks costs them their own worker, never the host, which trusts nothing that comes out of here.
"""
