"""The gate ``fetch``, which downloads the text of a public web address, and the question whether a command may reach a host.

It may import the gate contract, the loom and the sandbox's host lists (`sandbox/network/hosts.py`). Start with
`fetch.py`.
"""

__all__ = ["named_hosts", "network_question", "registries"]
