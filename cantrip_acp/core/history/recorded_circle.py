"""A circle rebuilt from the loom: enough to render turns as the crystal saw them. It can run nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from cantrip_acp.mediums import registry as mediums
from cantrip_acp.text import codecs
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import CantripError, DefinitionError, LoomError
from cantrip_acp.types.messages import ToolDefinition
from cantrip_acp.types.records import CantripRecord

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.mediums.contract import Medium


class RecordedGate(Struct, frozen=True):
    """The properties of a gate that rendering needs."""

    ephemeral: bool | str


class RecordedCircle:
    """The medium, the gates, and how both were presented. ``rebuilt``: an older loom lacks the presentation, so it is
    created again, in the words of this version."""

    def __init__(self, record: CantripRecord | None) -> None:
        circle: Mapping[str, Any] = record.circle if record is not None else {}
        self.medium: Medium = _medium(str(circle.get("medium", "conversation")))
        declared = [g for g in circle.get("gates", ()) if isinstance(g, Mapping)]
        self.gates = {
            str(g.get("name")): RecordedGate(
                "after_use" if g.get("ephemeral") == "after_use" else bool(g.get("ephemeral"))
            )
            for g in declared
        }
        shown = record.shown if record is not None else msgspec.UNSET
        self.rebuilt = not isinstance(shown, Mapping)
        self.presentation: str | None = None
        self.tools: tuple[ToolDefinition, ...] = ()
        if isinstance(shown, Mapping):
            text = shown.get("capabilities")
            self.presentation = text if isinstance(text, str) else None
            self.tools = _definitions(shown.get("tools"))
        elif record is not None:
            self.presentation, self.tools = _present_again(circle)

    def capabilities(self, *, text_calls: bool = False) -> str | None:
        """The capability block, as the crystal saw it."""
        return self.presentation


class RecordedCircles:
    """The medium and the ephemeral gates with which the turns of a cantrip were written (`core.context.Context`)."""

    __slots__ = ("_ephemeral", "_loom", "_mediums")

    def __init__(self, loom: Loom) -> None:
        self._loom = loom
        self._mediums: dict[str, Medium | None] = {}
        self._ephemeral: dict[str, Mapping[str, bool | str] | None] = {}

    def medium_of(self, cantrip_id: str) -> Medium | None:
        """The medium of a cantrip; None if the loom does not name it, or if it belongs to a package that is not installed."""
        if cantrip_id not in self._mediums:
            record = self._loom.cantrip(cantrip_id)
            name = record.circle.get("medium") if record is not None else None
            try:
                self._mediums[cantrip_id] = mediums.find(name) if isinstance(name, str) else None
            except DefinitionError:
                self._mediums[cantrip_id] = None
        return self._mediums[cantrip_id]

    def ephemeral_of(self, cantrip_id: str) -> Mapping[str, bool | str] | None:
        """The ephemeral gates with their marks. None if the loom does not name the cantrip."""
        if cantrip_id not in self._ephemeral:
            record = self._loom.cantrip(cantrip_id)
            self._ephemeral[cantrip_id] = None if record is None else ephemeral_gates(record.circle)
        return self._ephemeral[cantrip_id]


def ephemeral_gates(circle: Mapping[str, Any]) -> dict[str, bool | str]:
    """The ephemeral gates of a recorded circle, each with its mark."""
    declared = (g for g in circle.get("gates", ()) if isinstance(g, Mapping) and g.get("ephemeral"))
    return {str(g.get("name")): "after_use" if g["ephemeral"] == "after_use" else True for g in declared}


def recorded_call(record: CantripRecord | None) -> Call:
    """The call; fields of other versions are ignored."""
    given = record.call if record is not None else {}
    known = {k: v for k, v in given.items() if k in Call.__dataclass_fields__}
    try:
        return Call.of(known)
    except (CantripError, TypeError):
        prompt = given.get("system_prompt")
        return Call(prompt if isinstance(prompt, str) else None)


def _medium(name: str) -> Medium:
    try:
        return mediums.find(name)
    except DefinitionError:
        raise LoomError(f"its medium {name!r} belongs to a package that is not installed here") from None


def _definitions(tools: Any) -> tuple[ToolDefinition, ...]:
    try:
        return codecs.convert(tools, tuple[ToolDefinition, ...])
    except msgspec.ValidationError:
        return ()


def _present_again(circle: Mapping[str, Any]) -> tuple[str | None, tuple[ToolDefinition, ...]]:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.contract import Gate

    options = {k: v for k, v in circle.items() if k not in ("medium", "gates", "wards", "workspace")}
    if "code_python" in options:
        options["python"] = options.pop("code_python")
    try:
        gates = [
            Gate(
                name=str(g["name"]),
                description=str(g["description"]),
                parameters=g["parameters"],
                handler=_not_callable,
            )
            for g in circle.get("gates", ())
        ]
        medium = mediums.find(str(circle.get("medium")), **options)
        again = Circle(medium, gates, circle.get("wards") or (), workspace=circle.get("workspace"))
        return again.presentation, again.tools
    except (CantripError, KeyError, TypeError, ValueError):
        return None, ()


def _not_callable(args: Any, context: Any) -> Any:
    raise RuntimeError("a recorded gate does nothing")
