"""Local and other Chat Completions servers: presets by name, any address, and servers found on this machine.

These modules may import the core, the catalog, the `openai` crystals and the shared modules of `crystals`. Start
reading in `crystal`.
"""
