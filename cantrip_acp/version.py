"""The one place that holds the version: the wheel, `--version` and ACP's `agentInfo` read it from here.

A module of its own with nothing else in it, so that the ACP start path can read it without touching
`importlib.metadata`, which costs more than the whole reply to `initialize`.
"""

__version__ = "0.1.0"
