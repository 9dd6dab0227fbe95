"""Permission for gate calls: which need it, asking the client, and what the user allowed for good.

Start with `interceptor.py`."""
