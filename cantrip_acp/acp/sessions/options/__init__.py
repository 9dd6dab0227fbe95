"""What a user sets for a session: its config options (mode, model, effort, recipe), what each mode forbids, and plan mode."""

__all__ = ["modes"]
