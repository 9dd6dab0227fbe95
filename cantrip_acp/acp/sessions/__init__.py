"""The sessions of one connection: opens, loads, forks, prompts, configures and closes them.

These modules may import the core, the loom, the recipes and the rest of `acp`. Start reading in `agent` (opens, finds
and closes sessions) and `session` (one session with its running prompt).
"""

__all__ = ["commands", "factory", "options", "prompt", "session_store"]
