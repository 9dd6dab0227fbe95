"""Syntax trees of recipes, also of texts that are incomplete or broken.
It may import `recipes/parse` and the open documents (`lsp/server/documents.py`).
Start with `tree.py`.
"""
