"""Looms in the editor, read from disk, never from the client's text: a large loom costs as little as a small one.
It may import `loom/`, `lsp/server` and `lsp/recipes/lint.py`.
Start with `document.py` (one loom, as far as it was read), then `cache.py` (keeps and follows the looms in use),
`answers.py` (answers the editor) and `requests.py` (answers a tree view of looms).
"""

__all__ = ["document", "labels"]
