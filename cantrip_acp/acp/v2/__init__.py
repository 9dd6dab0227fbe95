"""The draft of version 2 of ACP: a second renderer of the same sessions. Imported only for clients that negotiate it.

`initialize` holds the answer to ``initialize``, `agent` the methods, `client` what is sent to the client, and `render` turns the
updates of version 1 into those of version 2. It may import everything in `acp`; nothing outside of `acp` imports it.
"""
