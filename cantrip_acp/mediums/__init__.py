"""Mediums: the environments that entities work in (§4.1). A circle has exactly one.

A medium may import core, gates, files and the sandbox. Start with `contract.py`; each other file or folder is one
medium or a part that several share.
"""

__all__ = ["bash", "code", "contract", "monty", "program_events", "registry", "text_program", "ward_paths"]
