"""The prompts of a session: `prompts` runs them. What one says, the queue of those that wait, steering while one runs, and the
updates that the client gets."""

__all__ = ["prompt_content", "prompt_queue"]
