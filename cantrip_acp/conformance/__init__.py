"""Conformance: any suite in the format of ``tests.yaml`` is run against the real loop, loom and mediums.

``suite`` reads cases, ``setup`` builds what a case names, ``actions`` does what it says, ``expect`` judges. For commands and tests.
"""
