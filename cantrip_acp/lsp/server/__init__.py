"""The language server itself: framing, documents, requests and what is announced.

Start with `server.py`."""
