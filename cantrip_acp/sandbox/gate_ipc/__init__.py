"""Gate calls from shell commands: inside, each gate is a command on PATH; the host answers the calls.

It may import the gate contract and small parts of `sandbox/launch`. Start with `server.py`; `gate_cli.py` parses a
gate's command line.
"""
