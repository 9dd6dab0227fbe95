"""Sandbox policy: what is visible, what can be written, which limits apply.

It may import the core, `files/`, `git/` and the gates' lists of protected names. Start with `policy.py`, the value;
the other modules collect the facts that it needs from the host.
"""
