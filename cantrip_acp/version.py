"""The package's version.

The wheel, `--version` and ACP's `agentInfo` read it from here. This module holds nothing else, because the ACP start
must not import `importlib.metadata`: that import takes longer than the whole reply to `initialize`.
"""

__version__ = "0.1.0"
