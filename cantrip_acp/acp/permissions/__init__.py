"""Permissions: which gate calls need the user's permission, the permission request, and the remembered answers.

These modules may import the core, the gate contracts and the wire. Start reading in `interceptor`.
"""
