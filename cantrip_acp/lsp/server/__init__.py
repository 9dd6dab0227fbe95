"""The language server: message framing, open documents, requests and the announced features.
It imports pygls, and the modules for each kind of document when they are needed.
Start with `language_server.py`, then `features.py`."""
