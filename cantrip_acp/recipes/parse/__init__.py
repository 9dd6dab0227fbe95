"""Parses a recipe's text into checked plain data, or reports every problem with its position.

It may import the recipe models, the gate and medium registries, and the YAML parser. Start with
`document.py` (text to data) and `validation.py` (data to canonical data).
"""

__all__ = ["cross_field", "document", "names", "problem_positions", "validation", "yaml_text"]
