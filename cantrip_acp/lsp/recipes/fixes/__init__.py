"""Fixes: the code actions for a recipe, with the edits that correct its findings. Start at `code_actions`.

`quick_fixes` has the fixes by rule; `value_fixes` those that change one value. May import: what `lsp/recipes` may.
"""
