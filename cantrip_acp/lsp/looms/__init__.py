"""Looms in the editor: read from disk, never from the client's text, so that a large one costs as little as a small one.

`book` is one loom as far as it was read, `shelf` keeps those that are in use and follows them, `kind` answers what an editor asks
of a loom's file (`outline`, `lenses`, `hovering`, `links`, `damage`), `requests` what a tree of looms asks.
"""
