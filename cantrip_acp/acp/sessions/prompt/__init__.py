"""One prompt of a session: what it says, the queue of prompts that wait, steering while it runs, and the updates that the
client gets."""

__all__ = ["prompt_content", "prompt_queue"]
