"""Paths and files of the host: the user's folders, output files, temporary folders and scratch copies."""
