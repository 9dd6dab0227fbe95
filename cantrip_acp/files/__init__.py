"""Paths and files of the host: the user's folders, protected and hidden paths, output files, temporary folders and
scratch copies.

Imports core errors and, for the check of a loom, its records. Start with `paths.py` (where state and settings are).
"""
