"""Quick fixes for diagnostics of recipes."""
