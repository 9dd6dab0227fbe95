"""JSON-RPC 2.0 over newline-delimited JSON, for both sides of the protocol.

Start with `connection.py`."""
