"""How a cantrip differs from the recorded one under which a turn was written: an edited recipe, for example."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cantrip_acp.gates.registry import BUILT_IN

if TYPE_CHECKING:
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.loom.loom import Loom

_PLACES = ("workspace", "folders")
"""Keys of a circle's record that say where it works. Another folder does not make another definition."""

_PATH_WARDS = ("bash_writable_paths", "code_readable_paths", "code_writable_paths")
"""Wards that contain the folders of the session."""


def definition_changes(loom: Loom, turn_id: str, cantrip: CantripDefinition) -> list[str]:
    """What differs in call, medium, gates and wards, in words for people. Empty if it is the same definition, or if the loom
    does not know that of the turn.

    Gates of MCP servers are not compared, because they are known only after the servers were connected.
    """
    record = loom.cantrip(loom.places[turn_id].cantrip_id)
    if record is None:
        return []
    call, circle = cantrip.records
    return [*_call_changes(record.call, call), *_circle_changes(record.circle, circle, sources=bool(cantrip.sources))]


def _call_changes(was: Mapping[str, Any], is_now: Mapping[str, Any]) -> Iterator[str]:
    for name in sorted({*was, *is_now}):
        if _plain(was.get(name)) != _plain(is_now.get(name)):
            yield "system prompt" if name == "system_prompt" else name


def _circle_changes(was: Mapping[str, Any], is_now: Mapping[str, Any], *, sources: bool) -> Iterator[str]:
    if was.get("medium") != is_now.get("medium"):
        yield f"medium {is_now.get('medium')} (it was {was.get('medium')})"
    moved = any(_plain(was.get(key)) != _plain(is_now.get(key)) for key in _PLACES)
    old, new = _by_name(was), _by_name(is_now)
    for name in new.keys() - old.keys():
        yield f"new gate {name}"
    for name in () if sources else old.keys() - new.keys():
        yield f"gate {name} removed"
    for name in (name for name in new if name in old):
        # The descriptions of this package's own gates change with its version, and name the folders.
        ignored = ("description",) if name in BUILT_IN or moved else ()
        if _without(old[name], ignored) != _without(new[name], ignored):
            yield f"gate {name}"
    before, after = was.get("wards") or {}, is_now.get("wards") or {}
    for name in sorted({*before, *after}):
        if not (moved and name in _PATH_WARDS) and _plain(before.get(name)) != _plain(after.get(name)):
            yield f"ward {name}"
    known = ("medium", "gates", "wards", *_PLACES)
    for name in sorted({*was, *is_now}.difference(known)):
        if _plain(was.get(name)) != _plain(is_now.get(name)):
            yield name


def _by_name(circle: Mapping[str, Any]) -> dict[str, Any]:
    return {str(gate.get("name")): gate for gate in circle.get("gates") or () if isinstance(gate, Mapping)}


def _without(gate: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return _plain({key: value for key, value in gate.items() if key not in names})


def _plain(value: Any) -> Any:
    """Convert a value to JSON data, so that a tuple equals a recorded list."""
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value
