"""The cantrip with which a turn of a child is continued or run again: that of the child, not that of the recipe.

The loom has the child's call, gates and wards, and its parent's request, which also has the folders of gates and the
child's data. The circle is the recipe's, narrowed to these: it never allows more than the recipe does now.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cantrip_acp.gates import registry
from cantrip_acp.gates.contract import NOTHING
from cantrip_acp.gates.wards import Wards, compose
from cantrip_acp.text.json_data import plain
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import ChildRefused, DefinitionError

if TYPE_CHECKING:
    from pathlib import Path

    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.gates.contract import CircleView, Gate, GateSource, OpenedSource
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import CantripRecord, CastRecord

_OWN_GATES = ("done", "read_context")
"""Gates that a child has by itself."""


def cantrip_for_turn(cantrip: CantripDefinition, loom: Loom, turn_id: str) -> CantripDefinition:
    """``cantrip`` itself, or for a turn of a child the child's own cantrip as far as ``cantrip`` allows it.

    The crystal stays. Raises `TurnNotFound`, and `DefinitionError` if the recipe lacks what the child had, or if the
    loom does not say what the child had.
    """
    first = loom.turn(loom.own_path(turn_id)[0])
    if first.role != "call" or first.parent_id is None:
        return cantrip
    turn = loom.turn(turn_id)
    record = loom.cantrip(turn.cantrip_id)
    if record is None:
        raise _refused(turn_id, first.parent_id, f"the loom does not have its cantrip {turn.cantrip_id}", None)
    try:
        return _narrowed(cantrip, loom, first.entity_id, record)
    except DefinitionError as error:
        raise _refused(turn_id, first.parent_id, str(error), record) from None


def _refused(turn_id: str, parent_id: str, why: str, record: CantripRecord | None) -> DefinitionError:
    had = ""
    if record is not None:
        names = ", ".join(each["name"] for each in record.circle.get("gates", ()))
        had = f"a recipe that allows what the child had (medium {record.circle.get('medium')}; gates {names}), or "
    return DefinitionError(
        f"turn {turn_id!r} is of a child, and this cantrip cannot go on with it: {why}. Use {had}the turn of its parent, "
        f"{parent_id!r}"
    )


def _narrowed(cantrip: CantripDefinition, loom: Loom, entity_id: str, record: CantripRecord) -> CantripDefinition:
    from cantrip_acp.core.delegation.child_circle import circle_for
    from cantrip_acp.core.delegation.request import Request

    circle, own = record.circle, cantrip.circle
    if circle.get("medium") != own.medium.name and not registry.DELEGATION & own.gates.keys():
        # Only an entity that may have children may have one with another medium.
        raise DefinitionError(f"it worked in the medium {circle.get('medium')}, and this circle has {own.medium.name}")
    requests = _requests(loom, entity_id)
    recorded = _recorded_wards(circle, own.workspace)
    names = [each["name"] for each in circle.get("gates", ()) if each["name"] not in _OWN_GATES]
    declared = {gate.name for gate in own.declared_gates}
    # Gates of sources are known only after a connection.
    later = frozenset(name for name in names if name not in declared) if cantrip.sources else frozenset[str]()
    ephemeral = {each["name"]: each["ephemeral"] for each in circle.get("gates", ()) if each.get("ephemeral")}
    gates = [
        {"name": name, **_folder(requests, name), **({"ephemeral": ephemeral[name]} if name in ephemeral else {})}
        for name in names
        if name not in later
    ]
    wards: dict[str, Any] = {} if recorded.max_turns is None else {"max_turns": recorded.max_turns}
    request = Request("", gates=tuple(gates), medium=circle.get("medium"), wards=(wards,), max_depth=recorded.max_depth)
    try:
        narrowed = circle_for(own, request)
    except ChildRefused as error:
        raise DefinitionError(str(error)) from None
    changes: dict[str, Any] = {"wards": compose(own.wards, recorded)}
    if circle.get("data") is True:
        changes["data"] = _data(requests)
    call = Call.of(plain(record.call))
    return cantrip.replace(
        call=replace(call, require_done_tool=call.require_done_tool or cantrip.call.require_done_tool),
        circle=narrowed.replace(**changes),
        contributors=(),
        sources=tuple(_SomeGates(source, later) for source in cantrip.sources) if later else (),
        result_type=None,
    )


def _recorded_wards(circle: Mapping[str, Any], workspace: Path | None) -> Wards:
    """The recorded wards, with paths inside the recorded workspace moved to the present one."""
    was, now = circle.get("workspace"), str(workspace) if workspace is not None else None

    def moved(value: Any) -> Any:
        if isinstance(value, list):
            return [moved(each) for each in value]
        if isinstance(value, str) and was and now and (value == was or value.startswith(was.rstrip("/") + "/")):
            return now + value[len(was) :]
        return value

    return Wards.of({name: moved(plain(value)) for name, value in circle.get("wards", {}).items()}, base=workspace)


def _requests(loom: Loom, entity_id: str) -> list[Mapping[str, Any] | None]:
    """The requests that made a child and the parents above it, innermost first. None where the loom does not have one,
    because the process ended before the parent's turn was written.
    """
    starts: dict[str, CastRecord] = {}
    for start in loom.cast_starts().values():
        starts.setdefault(start.entity_id, start)
    found: list[Mapping[str, Any] | None] = []
    at = starts.get(entity_id)
    while at is not None and at.parent_turn_id is not None:
        found.append(_request(loom, at))
        parent = loom.turn(at.parent_turn_id)
        above = loom.turn(loom.own_path(parent.id)[0])
        at = starts.get(above.entity_id if above.role == "call" else parent.entity_id)
    return found


def _request(loom: Loom, start: CastRecord) -> Mapping[str, Any] | None:
    assert start.parent_turn_id is not None
    cast_id = loom.turn(start.parent_turn_id).cast_id
    for turn in loom.turns():
        if turn.cast_id != cast_id:
            continue
        for result in turn.observation.results:
            if result.call_id == start.parent_call_id and isinstance(result.args, Mapping):
                args: Any = plain(result.args)
                if isinstance(start.parent_call_index, int) and "requests" in args:
                    args = args["requests"][start.parent_call_index]
                return args if isinstance(args, Mapping) else None
    return None


def _folder(requests: Sequence[Mapping[str, Any] | None], name: str) -> dict[str, str]:
    """The folder that the innermost request sets for a gate, as a change of that gate; empty if no request sets one."""
    for request in requests:
        if request is None:
            if registry.reaches_files(name):
                raise DefinitionError(
                    f"the loom does not have the request that made it, and so not the folder of {name}"
                )
            return {}
        for spec in request.get("gates") or ():
            if isinstance(spec, Mapping) and registry.ALIASES.get(spec.get("name", ""), spec.get("name")) == name:
                if "root" in spec:
                    return {"root": spec["root"]}
    return {}


def _data(requests: Sequence[Mapping[str, Any] | None]) -> Any:
    request = requests[0] if requests else None
    data = NOTHING if request is None else request.get("context", NOTHING)
    if data is NOTHING or (isinstance(data, Mapping) and data.get("kept_elsewhere") is True):
        raise DefinitionError("the loom does not have the data that its parent gave it")
    return data


class _SomeGates:
    """A gate source reduced to gates with certain names."""

    def __init__(self, source: GateSource, names: frozenset[str]) -> None:
        self._source = source
        self._names = names

    async def open(self, circle: CircleView) -> OpenedSource:
        return _OpenedSome(await self._source.open(circle), self._names)


class _OpenedSome:
    def __init__(self, opened: OpenedSource, names: frozenset[str]) -> None:
        self._opened = opened
        self._names = names
        self.problems = opened.problems

    @property
    def gates(self) -> Sequence[Gate]:
        return [gate for gate in self._opened.gates if gate.name in self._names]

    async def close(self) -> None:
        await self._opened.close()
