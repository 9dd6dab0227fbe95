"""Measurements: one file a question, each beside a baseline that is run in the same minute.

`python -m bench --list` names them. Nothing here is a test: no time fails a build.
"""
