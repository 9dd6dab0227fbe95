"""Embedded crystals: models that run on this machine without a server of the user's, from weights in a GGUF file.

`weights` finds and downloads them, `server` shares one sandboxed process of a model between all sessions of the user,
`server_process` is that process, and `crystal` queries it.
"""

__all__ = ["crystal", "weights"]
