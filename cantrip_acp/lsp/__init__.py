"""The language server, ``cantrip lsp``: recipes, looms and test suites in any editor with the Language Server Protocol.
Only this package imports pygls. It never runs a recipe's Python files: gate files are read, not imported.
Start with `start.py` and `server/server.py`; `recipes/`, `looms/` and `suites/` answer for their kind of document.
"""
