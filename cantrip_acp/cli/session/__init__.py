"""Shared by `cast`, `repl` and `client`: setup, the thread of the event loop, resuming sessions, and permission requests.

It may import the core, recipes, loom, acp and `cli/render`, but not the commands. Start with `setup.py` and `loop_thread.py`.
"""
