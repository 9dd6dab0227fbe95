"""Builds a `Cantrip` from checked recipe data: crystal, gates, circle, and the loom of its casts.

It may import the core, crystals, gates, mediums, memory and the loom; never the CLI or ACP. Start with `build.py`.
"""

__all__ = ["build", "crystal_choices", "crystal_factory", "crystals", "providers", "python_files"]
