"""The Python process that runs cells: kept alive in its sandbox, frozen between cells.

Nothing here trusts what comes out of it. What runs inside is in `sandbox/inside`."""
