"""Gate calls from shell commands. Inside, each gate is a command on PATH, and the host answers the calls.

It may import small parts of `sandbox/launch`. Start with `server.py`. `command_words.py` parses on the host what a command in
`inside/call.bash` or `inside/call.dash` was called with.
"""
