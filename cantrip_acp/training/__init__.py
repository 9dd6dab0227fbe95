"""Training data from looms: rewards, exports to trainers' formats, and imports of foreign traces.

`trainer` trains a small model (`cantrip train`) on the folders of `examples`. Nothing here imports a front end (CLI, ACP, LSP).
Start with `judge.py`, then `export/registry.py` and `importing/import_file.py`.
"""
