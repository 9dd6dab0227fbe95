"""Conformance: runs suites in the format of ``tests.yaml`` against the real loop, loom and mediums.

``suite`` reads the cases, ``setup`` builds what a case needs, ``actions`` carries it out, ``expect`` checks the result.
Commands, the language server and tests use this folder. Start with `runner.py` and `case.py`.
"""

__all__ = ["case", "runner", "suite"]
