"""Modules that `cast`, `repl`, `client` and others share: setup, event loop thread, resuming sessions, permissions.

It may import the core, recipes, loom, acp and `cli/render`, but not the commands. Start with `setup.py` and `loop_thread.py`.
"""
