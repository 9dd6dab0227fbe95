"""Syntax trees of recipes, also of texts that are incomplete or broken.
It may import recipes' parsers and the open documents (`lsp/server/documents.py`).
Start with `tree.py`, then `yaml_tree.py` and `toml_tree.py`.
"""
