"""Paths and files of the host: the user's folders, protected and hidden paths, temporary folders and
scratch copies.

Imports `types` and `text` alone. Start with `paths.py` (where state and settings are).
"""
