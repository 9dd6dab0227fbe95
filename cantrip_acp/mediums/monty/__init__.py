"""The monty medium: restricted Python that can do nothing but call gates."""
