"""The policy of a sandbox: what is visible, what can be written, which limits hold.

`policy.py` is the value; the other modules find out what it needs from the host."""
