"""Starts a sandbox, runs a command in it, and kills all processes that it started.

It may import the other host-side folders of the sandbox and `files/`, never a medium. Start with `sandbox.py` (one
entity's sandbox) and `command.py` (one command in it). `bubblewrap.py` and `process_tree.py` are for Linux,
`seatbelt.py` and `macos_processes.py` for macOS; `causes.py` says why a machine has no sandbox.
"""
