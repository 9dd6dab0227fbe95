"""The server's answers for recipes: diagnostics, completion, hover, fixes, outlines and navigation.
It may import `cantrip_acp.recipes`, the core's definitions, `lsp/server` and `lsp/commands`.
Start with `answers.py`: one function per request."""
