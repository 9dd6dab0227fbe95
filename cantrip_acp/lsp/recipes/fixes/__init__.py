"""Quick fixes for diagnostics of recipes: each module takes a finding and yields fixes.
They may import the rest of `lsp/recipes` and the core's definitions. Start with `simple.py`, which defines `Fix`."""
