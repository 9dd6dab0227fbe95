"""Mediums: the environments that entities work in (§4.1). A circle has exactly one.

A medium may import core, gates, files and the sandbox. Start with `contract.py`; then each file or folder is one medium.
"""
