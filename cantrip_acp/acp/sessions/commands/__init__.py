"""The slash commands of a session, and what they do: files (undo, review), knowledge, and programs that the user runs."""

__all__ = ["slash_commands", "user_shell"]
