"""Filtered network access of a sandbox: a proxy on the host that connects only to listed hosts.

It may import the core, `sandbox/policy` and small parts of `sandbox/launch`. Start with `proxy.py`.
"""
