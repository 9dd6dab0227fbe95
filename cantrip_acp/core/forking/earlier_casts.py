"""Casts that a loom has of an earlier run: which of them a batch need not do again, and which of them it goes on with."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import anyio
import anyio.to_thread
from msgspec import UNSET, structs

from cantrip_acp.core.casting.result import CastResult, Value
from cantrip_acp.core.definition.result_type import typed_result
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.loom.base import as_kept
from cantrip_acp.loom.query.thread import answer
from cantrip_acp.telemetry.tracing import trace_from
from cantrip_acp.text.json_data import plain
from cantrip_acp.types.errors import DefinitionError, LoomError
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import CastRecord

CUT_OFF = ("error", "cancelled", "parent_terminated")
"""The reasons of ends after which a cast may continue: neither an answer nor a ward."""


def recorded_result(loom: Loom, entity_id: str, casts: Sequence[CastRecord]) -> CastResult[Any] | None:
    """How the last of an entity's casts ended. None if it was cut off, so that it may go on.

    ``casts`` are the starts of all of them. The usage is that of all of them.
    """
    if not casts:
        return None
    end = loom.cast_end(casts[-1].id)
    ends = [found for each in casts if (found := loom.cast_end(each.id)) is not None and found.usage]
    below = [_children(each) for each in ends if "children" in each.usage]
    about: dict[str, Any] = {
        "usage": sum((Usage.of_record(each.usage).counted() for each in ends), NO_USAGE),
        "children_usage": sum(below, NO_USAGE) if below else None,
        "entity_id": entity_id,
        "cast_id": casts[-1].id,
        "trace_id": casts[-1].trace_id or "",
        "loom": loom.location,
    }
    if end is not None and end.reason not in CUT_OFF:
        return CastResult(
            end.result,
            end.terminated,
            end.truncated,
            end.reason or "",
            turns=end.turns,
            summary=end.summary,
            warnings=end.warnings or (),
            **about,
        )
    last = loom.last_turn(entity_id)
    turn = loom.turn(last) if last is not None else None
    if turn is None or not turn.terminated:
        return None
    # The process ended between the last turn and the end of the cast.
    return CastResult(answer(turn), True, False, turn.reason or "", turns=turn.sequence, **about)


def _children(end: CastRecord) -> Usage:
    return Usage.of_record(end.usage["children"]).counted()


class BatchInputs:
    """The values recorded with each cast of a batch: the digest of the files on which results depend, and the project.

    They are read once, when the batch begins.
    """

    def __init__(self, cantrip: CantripDefinition) -> None:
        self._cantrip = cantrip
        self._found: tuple[str, tuple[str, ...]] | None = None
        self._lock = anyio.Lock()

    async def read(self) -> tuple[str, tuple[str, ...]]:
        """The digest, "" if the cantrip names no files, and the ids of the project. Raises `DefinitionError` if the files cannot
        be read."""
        cantrip = self._cantrip
        if cantrip.circle.workspace is None or (not cantrip.inputs and cantrip.loom.location is None):
            return "", ()
        async with self._lock:
            if self._found is None:
                self._found = await anyio.to_thread.run_sync(lambda: (self._digest(), self._projects()))
            return self._found

    def _projects(self) -> tuple[str, ...]:
        from cantrip_acp.git.project_identity import known_ids

        workspace = self._cantrip.circle.workspace
        return known_ids(workspace) if workspace is not None and self._cantrip.loom.location is not None else ()

    def _digest(self) -> str:
        workspace, inputs = self._cantrip.circle.workspace, self._cantrip.inputs
        if not inputs or workspace is None:
            return ""
        from cantrip_acp.files.digests import MOST_FILES, FileDigests
        from cantrip_acp.files.hidden_paths import matcher

        patterns = [matcher(each) for each in inputs]
        found = FileDigests().folder(workspace, lambda name: any(each.fullmatch(f"/{name}") for each in patterns))
        if found is None:
            raise DefinitionError(
                f"cantrip.inputs: {workspace} has more than {MOST_FILES:,} of these files, or one cannot be read; name fewer"
            )
        return f"blake2b:{found}"

    async def record(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        """Add the digest and the project to the options of a cast, so that its record has them."""
        digest, projects = await self.read()
        more = {**({"inputs": digest} if digest else {}), **({"project": projects[0]} if projects else {})}
        if not more:
            return options
        others = {key: value for key, value in options.items() if key not in ("trace", "trace_id")}
        given = options.get("trace_id")
        trace = options.get("trace") or trace_from({"trace_id": given} if given else None)
        return {**others, "trace": structs.replace(trace, attributes={**trace.attributes, **more})}


class EarlierCasts:
    """What a loom has of the casts of a batch, for `Cantrip.cast_batch`.

    A cast is the same if its cantrip (call and circle), crystal, intent, reference and inputs are. The same intent twice is two
    casts of it, in the order in which they began. Children and forks do not count.

    ``casts`` are the intents with their references. ``again``: what ended without a result is not taken.
    """

    def __init__(
        self, cantrip: CantripDefinition, casts: Sequence[tuple[str, Any]], inputs: BatchInputs, *, again: bool
    ) -> None:
        self._cantrip = cantrip
        self._inputs = inputs
        self._casts = casts
        self._again = again
        self._found: list[list[CastRecord]] | None = None
        self._lock = anyio.Lock()

    async def result(self, number: int, **trace: Any) -> tuple[CastResult[Any] | None, bool]:
        """The result of a cast of the batch, and whether an earlier run had it. None if it must be cast.

        What was cut off goes on from its last turn; ``trace`` are the options of `Entity.resume`. Raises `LoomError` while
        another process runs it.
        """
        async with self._lock:
            if self._found is None:
                self._found = await anyio.to_thread.run_sync(self._search, *await self._inputs.read())
        casts, loom = self._found[number], self._cantrip.loom
        if not casts:
            return None, False
        entity_id = casts[-1].entity_id
        ended = await anyio.to_thread.run_sync(recorded_result, loom, entity_id, casts)
        if ended is not None:
            if self._again and not ended.terminated:
                return None, False
            return typed_result(ended, self._cantrip.result_type), True
        if loom.running_casts({each.id for each in casts}):
            raise LoomError(f"the cast {casts[-1].id} of an earlier run still runs in another process")
        resumed = await anyio.to_thread.run_sync(resume_entity, self._cantrip, loom, entity_id)
        async with resumed.entity as entity:
            result = await entity.resume(**trace)
            return replace(result, usage=entity.usage, children_usage=self._children(casts, result)), False

    def _children(self, casts: Sequence[CastRecord], result: CastResult[Any]) -> Usage | None:
        """The usage of the children of a cast and of those that it continued."""
        ends = (self._cantrip.loom.cast_end(each.id) for each in casts)
        below = [_children(each) for each in ends if each is not None and "children" in each.usage]
        below += [] if result.children_usage is None else [result.children_usage]
        return sum(below, NO_USAGE) if below else None

    def _search(self, inputs: str, projects: tuple[str, ...]) -> list[list[CastRecord]]:
        """Find, for each cast of the batch, the starts of an earlier cast and of those that continued it. Blocks."""
        loom, crystal = self._cantrip.loom, self._cantrip.crystal
        forks = {each.entity_id for each in loom.forks()}
        same = {each for each in loom.cantrip_ids if self._is_same(each)}
        moved = {each for each in loom.cantrip_ids if projects and self._is_same(each, moved=True)}
        entities: dict[str, list[CastRecord]] = {}
        for start in loom.cast_starts().values():
            if start.parent_turn_id is None and start.entity_id not in forks:
                entities.setdefault(start.entity_id, []).append(start)
        known: dict[str, list[list[CastRecord]]] = {}
        for casts in entities.values():
            own = casts[0]
            model = (own.attributes.get("crystal"), own.attributes.get("model"))
            # An entity with further intents is a conversation, not a cast of a batch.
            single = all(each.resumes is not UNSET for each in casts[1:])
            of_cantrip = own.cantrip_id in same or (
                own.cantrip_id in moved and own.attributes.get("project") in projects
            )
            of_inputs = own.attributes.get("inputs", "") == inputs
            if of_cantrip and model == (crystal.name, crystal.model) and single and of_inputs:
                known.setdefault(_key(own.intent, own.reference), []).append(casts)
        found: list[list[CastRecord]] = []
        for intent, reference in self._casts:
            wanted = _key(*as_kept((intent, reference)))
            found.append(known[wanted].pop(0) if known.get(wanted) else [])
        return found

    def _is_same(self, cantrip_id: str, *, moved: bool = False) -> bool:
        """Whether a recorded cantrip is this one, or with ``moved`` this one in another folder. Sources, such as MCP servers, add
        gates when an entity begins."""
        cantrip = self._cantrip
        if not cantrip.sources and not moved:
            return cantrip_id == cantrip.id
        record = cantrip.loom.cantrip(cantrip_id)
        if record is None:
            return False
        call, circle = cantrip.records
        there, here = dict(record.circle), dict(circle)
        if moved:
            folder = there.get("workspace")
            if not isinstance(folder, str):
                return False
            there, here = _in_folder(there, folder, str(here["workspace"])), _in_folder(here, "", "")
        gates, wanted = there.pop("gates", ()), here.pop("gates")
        more = bool(cantrip.sources)
        fits = all(gate in gates for gate in wanted) if more else list(gates) == list(wanted)
        return record.call == call and fits and there == here


def _in_folder(data: Any, old: str, new: str) -> Any:
    """Plain JSON data of a circle, with the paths in one folder as paths in another one."""
    if isinstance(data, Mapping):
        return {key: _in_folder(each, old, new) for key, each in data.items()}
    if isinstance(data, list | tuple):
        return [_in_folder(each, old, new) for each in data]
    if isinstance(data, str) and old and (data == old or data.startswith(f"{old}/")):
        return new + data[len(old) :]
    return data


def _key(intent: str | None, reference: Any) -> str:
    return repr((intent, None if reference is UNSET else plain(reference)))


def casts_of_batch(
    cantrip: CantripDefinition,
    cast: Callable[..., Awaitable[CastResult[Value]]],
    wanted: Sequence[tuple[str, Mapping[str, Any]]],
    resume: bool | Literal["failed"],
) -> list[tuple[str, Callable[[], Awaitable[tuple[CastResult[Value], bool]]]]]:
    """What a batch runs for each intent with its options: ``cast``, or with ``resume`` what an earlier run has of it.

    Each function returns the result, and whether it is of an earlier run. Raises `DefinitionError`.
    """
    inputs = BatchInputs(cantrip)
    earlier: EarlierCasts | None = None
    if resume:
        if cantrip.loom.location is None and not len(cantrip.loom):
            raise DefinitionError(
                "cast_batch: resume looks for earlier casts in the cantrip's loom, and this loom is in memory and empty; "
                'give the cantrip one that lasts, such as loom=Loom.open("batch.loom.jsonl")'
            )
        asked = [(intent, options.get("reference")) for intent, options in wanted]
        earlier = EarlierCasts(cantrip, asked, inputs, again=resume == "failed")

    async def one(number: int, intent: str, options: Mapping[str, Any]) -> tuple[CastResult[Value], bool]:
        if earlier is not None:
            trace = {key: value for key, value in options.items() if key in ("trace_id", "trace")}
            result, known = await earlier.result(number, **trace)
            if result is not None:
                return result, known
        return await cast(intent, **await inputs.record(options)), False

    return [(intent, partial(one, number, intent, options)) for number, (intent, options) in enumerate(wanted)]
