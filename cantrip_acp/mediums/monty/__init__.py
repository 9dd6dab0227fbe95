"""The monty medium: restricted Python that can only call gates. Start with `medium.py`."""

__all__ = ["medium"]
