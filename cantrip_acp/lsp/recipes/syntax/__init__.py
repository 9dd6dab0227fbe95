"""Syntax trees of recipes, also of texts that are incomplete or broken.
It imports only recipes' parsers and the standard library. Start with `tree.py`, then `yaml_tree.py` and `toml_tree.py`.
"""
