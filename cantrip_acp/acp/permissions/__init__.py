"""Permissions: which gate calls need the user's permission, the permission request, and the remembered answers.

These modules may import the core, the gates, the mediums and the other parts of `acp`. Start reading in `interceptor`.
"""

__all__ = ["allowed", "edits", "interceptor", "patterns", "request"]
