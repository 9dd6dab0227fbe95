"""Client services: gates of a session that use the client's open files, terminals and forms.

These modules may import the core, the gates, the wire and the rendering. Start reading in `editor_files`. The function
that redirects gate calls to them is `gate_router`.
"""

__all__ = ["forms"]
