"""The gate ``search``: searches the lines of files for a regular expression, with ripgrep or Python.

It may import the gate contract and the confined path handling of `gates/`. Start with `search.py`; `ripgrep.py` and
`search_python.py` are the two engines.
"""

__all__ = ["search"]
