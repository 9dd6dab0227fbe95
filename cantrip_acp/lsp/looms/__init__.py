"""Looms in the editor. They are read from disk, never from the client's text, so that a large loom costs as little as a
small one.
It may import `loom/` and `lsp/server`. Start with `document.py` (one loom, as far as it was read), then `cache.py`
(keeps and
follows the looms in use), `answers.py` (answers the editor) and `requests.py` (answers a tree view of looms).
"""
