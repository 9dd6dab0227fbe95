"""Sandbox policy: what is visible, what can be written, which limits apply.

It may import the core, `git/`, the gates' lists of protected names, host lists and small parts of `sandbox/launch`.
Start with `policy.py`, the value; the other modules collect the facts that it needs from the host.
"""
