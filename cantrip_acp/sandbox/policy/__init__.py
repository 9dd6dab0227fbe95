"""Sandbox policy: what is visible, what can be written, which limits apply.

It may import the core, the lists of protected names in `files/`, `sandbox/network/hosts.py` and small parts of
`sandbox/launch`. Start with `policy.py`, which makes a `Policy`. The other modules collect the facts that it needs.
"""
