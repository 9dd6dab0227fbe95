"""The mode of an entity in the terminal. One key switches to `ask` and back, also while a cast runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.acp.permissions.interceptor import Permissions
from cantrip_acp.acp.sessions import modes
from cantrip_acp.acp.sessions.factory import apply_mode

if TYPE_CHECKING:
    from collections.abc import Callable

    from cantrip_acp.core.entity import Entity


class TerminalMode:
    """The mode of one entity that asks in the terminal. Its methods run in the entity's thread. ``show`` prints a note."""

    def __init__(self, entity: Entity, show: Callable[[str], None]) -> None:
        self._entity = entity
        self._show = show
        self._permissions = next(each for each in entity.cantrip.interceptors if isinstance(each, Permissions))
        self.name = self._permissions.mode
        self._before_ask = modes.TRUSTED
        apply_mode(entity, self.name, known=self.name if entity.note is None else None)

    def move_to(self, entity: Entity) -> None:
        """Apply the present mode to another entity with the same permissions: a new conversation."""
        self._entity = entity
        apply_mode(entity, self.name, known=self.name)

    @property
    def told_next(self) -> bool:
        """Whether the entity is told of the present mode with its next query."""
        return self._entity.due_note is not None

    def set(self, mode: str) -> None:
        """Apply a mode at once: its wards, when the user is asked, and what it decides of the questions that are open."""
        self.name = self._permissions.mode = mode
        apply_mode(self._entity, mode)
        self._permissions.settle_open_questions()

    def toggle_ask(self) -> None:
        """Switch to the mode `ask`, or back to the mode before it, and say so."""
        if self.name == modes.ASK:
            self.set(self._before_ask)
        else:
            self._before_ask = self.name
            self.set(modes.ASK)
        now = next(mode for mode in modes.MODES if mode.id == self.name)
        self._show(f"mode {now.id}: {now.description}")
