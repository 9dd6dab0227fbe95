"""Local and other Chat Completions servers: presets by name, any address, and servers found on this machine.

These modules may import the contract, the catalog and the `openai` crystals. Start reading in `crystal`.
"""
