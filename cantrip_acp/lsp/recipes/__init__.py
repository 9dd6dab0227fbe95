"""What the language server answers about recipes: diagnostics, completion, hover, fixes and outlines.

`answers.py` has a function for each question."""
