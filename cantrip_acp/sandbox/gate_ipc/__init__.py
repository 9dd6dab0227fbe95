"""Gate calls out of a sandbox: gates are commands on PATH inside, and are answered outside."""
