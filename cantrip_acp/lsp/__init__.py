"""The language server, ``cantrip lsp``: recipes and looms in any editor with the Language Server Protocol.
Only this package imports pygls; it never imports `acp/`. Editing features read a recipe's Python files and never run them;
only a command such as a cast does, after a trust check.
Start with `start.py` and `server/language_server.py`; `recipes/` and `looms/` answer for their kind of document.
"""

__all__ = ["looms", "start"]
