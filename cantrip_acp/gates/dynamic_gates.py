"""Dynamic gates: gates that an entity adds while it runs, in addition to the gates of its circle.

A circle is immutable. Added gates belong to one entity and end with it. Check a name with `name_problem` before you add a
gate, because an added gate must never replace a gate that the circle has, had or could have.
"""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from cantrip_acp.gates import registry
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.messages import ToolDefinition

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView

Listener = Callable[[Mapping[str, Gate]], None]

_USED_BY_MEDIUMS = frozenset({"context", "loom", "submit_answer", "GateError", "python", "bash", "call"})
"""Names that mediums use themselves."""


class DynamicGates:
    """The gates that one entity added. ``gates`` maps names to gates; each change replaces the whole mapping."""

    def __init__(self, circle: CircleView) -> None:
        self._circle = circle
        self._listener: Listener | None = None
        self.gates: Mapping[str, Gate] = {}

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The gates as tools, in the order in which they were added."""
        return tuple(ToolDefinition(g.name, g.description, g.parameters) for g in self.gates.values())

    def set_listener(self, listener: Listener) -> None:
        """Call ``listener`` with all added gates now (if there are any) and after each change.

        It replaces the previous listener, because an entity has one medium session at a time.
        """
        self._listener = listener
        if self.gates:
            listener(self.gates)

    @cached_property
    def reserved(self) -> Mapping[str, str]:
        """Names that an added gate cannot have, with the reasons."""
        circle = self._circle
        tool = (circle.medium.tool,) if circle.medium.tool is not None else ()
        return {
            **dict.fromkeys((*registry.RESERVED, *registry.names()), "a known gate has that name"),
            **dict.fromkeys((*_USED_BY_MEDIUMS, *tool), "mediums use that name themselves"),
            **dict.fromkeys((*circle.tool_names, *circle.gates), "the circle has a gate of that name"),
            **dict.fromkeys(circle.wards.remove_gate, "the ward remove_gate removes that name"),
        }

    def name_problem(self, name: str) -> str | None:
        """Say why no gate of this name can be added; None if it can.

        Names are single words, so that every medium can call them directly.
        """
        if not (name.isascii() and name.isidentifier()) or keyword.iskeyword(name) or name.startswith("_"):
            return "it is not a valid name: use letters, digits and '_', with a letter first"
        # A shell also offers the gate NAME as `cantrip_NAME`.
        if name.startswith("cantrip"):
            return "names that begin with cantrip are reserved"
        return self.reserved.get(name)

    def change(self, added: Mapping[str, Gate], removed: frozenset[str] | set[str] = frozenset()) -> None:
        """Remove some gates and add others in one step. Names must have passed `name_problem`."""
        kept = {name: gate for name, gate in self.gates.items() if name not in removed or name in added}
        self.gates = {**kept, **added}
        if self._listener is not None:
            self._listener(self.gates)
