"""Filtered network access of a sandbox: a proxy on the host that connects to listed hosts only.

It may import the core, `sandbox/policy` and small parts of `sandbox/launch`. Start with `proxy.py`.
"""
