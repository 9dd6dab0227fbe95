"""Terminal output. `from_events.py` and `from_acp.py` translate what happened into the items of `display.py`, and `renderer.py`
prints them. `cast_output.py` and `client_output.py` add the beginning and the end of a cast or session, and JSON.

It may import the core, the ACP client and `acp/render`, but not the commands. Start with `display.py`.
"""
