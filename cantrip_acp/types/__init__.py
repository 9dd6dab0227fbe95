"""The types that everything shares: usage, messages and tool calls, the records of a loom, events and errors.

Plain data, below everything else: nothing here imports another part of the package. Start with `records.py` (what a loom
keeps) and `events.py` (what happens while a cast runs).
"""

__all__ = [
    "call", "checked_values", "context_block", "errors", "events", "file_changes", "messages", "records", "styled",
    "usage",
]  # fmt: skip
