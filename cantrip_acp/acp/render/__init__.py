"""Rendering: turns events and recorded turns into `session/update` notifications.

These modules may import the core, the loom, the gates, the mediums and the crystals. Start reading in `event_translator`
(live events) and `loaded_session` (recorded turns).
"""

__all__ = ["event_translator", "formatting", "loaded_session", "notices", "open_call", "plan", "subagent_view"]
