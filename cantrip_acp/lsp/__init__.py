"""The language server, ``cantrip lsp``: recipes in any editor that speaks the Language Server Protocol.

A file a feature, over three that all of them share: `text` (what the editor holds, by the protocol's positions), `tree`
(what stands where, also in a broken file) and `findings` (what is wrong, as the loader says it). Only this package
imports pygls. Nobody's recipe is run here: Python files of gates are read and never imported.
"""
