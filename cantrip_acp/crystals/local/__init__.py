"""Local and other Chat Completions servers: presets by name, any address, and the search for servers on this machine.

These modules may import the core, the catalog, the `openai` crystals and the shared modules of `crystals`. Start
reading in `crystal`.
"""

__all__ = ["crystal", "discovery", "presets"]
