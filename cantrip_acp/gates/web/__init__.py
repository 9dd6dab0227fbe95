"""The gate ``fetch``: downloads the text of a public web address.

It may import the gate contract, the loom and the sandbox's host lists (`sandbox/network/hosts.py`). Start with
`fetch.py`.
"""

__all__ = ["named_hosts"]
