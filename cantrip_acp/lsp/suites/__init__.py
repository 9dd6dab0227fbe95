"""Conformance suites in the editor: files in the format of ``tests.yaml`` (`conformance`).
They may import `conformance/`, `lsp/recipes` and `lsp/server`. Start with `answers.py` (answers the editor), then `document.py`
(cases and diagnostics) and `results.py` (runs cases); `spec.md` explains each rule.
"""
