"""Gate calls from shell commands. Inside, each gate is a command on PATH, and the host answers the calls.

It may import the gate contract and small parts of `sandbox/launch`. Start with `server.py`. `gate_cli.py` parses the
command line of a gate.
"""
