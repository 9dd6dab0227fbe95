"""Replay: runs a thread again with the crystal's recorded answers in the real circle, turn by turn (LOOM-10).

It reports the first turn whose observation differs. What the user sent while a cast ran comes before the same query again.
Cells, commands and gates that write files write to a copy, which is deleted afterwards: no file of the user changes. Gates
that write elsewhere, and children, return their recorded answers. With recorded answers for all gates the replay is as
deterministic as the code.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec

from cantrip_acp.core.entity import Entity
from cantrip_acp.core.forking.child_turn import cantrip_for_turn
from cantrip_acp.core.forking.fork import divergence
from cantrip_acp.core.forking.reload_modules import LOADING_GATE as MODULES
from cantrip_acp.crystals.contract import CrystalBase, Emit, Query, Response
from cantrip_acp.gates import registry
from cantrip_acp.gates.contract import Gate, GateInvocation, GateReply, Proceed
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.query.history import CastPart, casts_of
from cantrip_acp.types.context_block import block_of
from cantrip_acp.types.errors import CrystalError, GateError, LoomError
from cantrip_acp.types.records import DURING_CAST, SentQuery, Turn

if TYPE_CHECKING:
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.contract import CircleView, GateSource
    from cantrip_acp.types.context_block import CastInfo, ContextBlock

_ENDED = "the recording of this cast ends here"


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of a replay: the turn's place in the thread (from 1), its id, and what differs, in words."""

    number: int
    turn_id: str
    how: str

    def __str__(self) -> str:
        return f"turn {self.number} ({self.turn_id}): {self.how}"


@dataclass(frozen=True, slots=True)
class Replay:
    """The result of a replay: how many turns ran again, and the first difference, None if there is none."""

    turns: int
    divergence: Divergence | None


class RecordedCrystal(CrystalBase):
    """Returns recorded responses, query by query. Raises `CrystalError` at the end of the recording."""

    name = "recording"
    context_window: int | None = None
    text_calls = False
    """The mode of the last response: recorded text stays text, whatever mode the crystal has today."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self._turns = turns
        self.answered = 0
        """The number of queries that it has answered."""
        self.model = next((t.metadata.model for t in turns if t.metadata.model), None) or "recording"

    async def query(self, query: Query, emit: Emit) -> Response:
        if self.answered >= len(self._turns):
            raise CrystalError(_ENDED)
        turn = self._turns[self.answered]
        self.answered += 1
        said, counted = turn.utterance, turn.metadata
        # An output without a call says why a program in the text was not run.
        self.text_calls = said.text_calls is True or (not said.tool_calls and turn.observation.output is not None)
        return Response(
            content=said.content,
            thinking=said.thinking,
            tool_calls=said.tool_calls,
            usage=counted.usage,
            stop_reason=counted.stop_reason if isinstance(counted.stop_reason, str) else None,
            model=counted.model,
            refused=turn.reason == "refusal",
            request=counted.request or None,
            fingerprint=counted.fingerprint or None,
            provider=said.provider if said.provider is not msgspec.UNSET else None,
            text_calls=said.text_calls is True,
            refused_media=counted.query.refused if isinstance(counted.query, SentQuery) else (),
        )


class _RecordedSteering:
    """A contributor that repeats recorded messages of the user and notes to the entity, each before the query that first saw
    it."""

    def __init__(self, parts: Sequence[CastPart], crystal: RecordedCrystal) -> None:
        self._crystal = crystal
        self._due: dict[int, list[ContextBlock]] = {}
        """The blocks by the number of queries before them."""
        self.entity: Entity
        answered, places = 0, dict[str, int]()
        for part in parts:
            at_start = answered
            for turn in part.turns:
                answered += turn.role == "crystal"
                places[turn.id] = answered
            for block in map(block_of, part.context):
                place = at_start if block.after is None else places.get(block.after)
                # After the last turn of the path there is no query, and a turn of another path is not replayed.
                if block.source in DURING_CAST and place is not None:
                    self._due.setdefault(place, []).append(block)

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]:
        return ()

    async def refresh(self, info: CastInfo) -> None:
        """Add the context blocks that are due now. Called before each query (`core.casting.loop`)."""
        blocks = self._due.pop(self._crystal.answered, None)
        if blocks:
            self.entity.steer("", context=blocks)


_IN_COPIES = ("write_file", "edit_file")
"""Gates that write and really run: in a replay they write to copies."""


class _RecordedGates:
    """An interceptor that answers gate calls from the record. With ``every`` it answers all but ``done`` and the loading of
    modules, without which their gates would not exist; otherwise only children and gates that write outside of the copies."""

    def __init__(self, turns: Sequence[Turn], *, every: bool) -> None:
        self._left = [r for t in turns for r in t.observation.results if r.gate != "done"]
        self._every = every

    def _acts(self, gate: Gate) -> bool:
        if gate.name == "done" or (gate.name == MODULES and _is_own(gate)):
            return True
        if self._every or gate.name in registry.DELEGATION:
            return False
        return not gate.writes or (gate.name in _IN_COPIES and _is_own(gate))

    async def __call__(self, call: GateInvocation, proceed: Proceed) -> GateReply:
        if self._acts(call.gate):
            return await proceed(call)
        for place, record in enumerate(self._left):
            if record.gate == call.gate.name:
                del self._left[: place + 1]
                return GateReply(record.result, is_error=record.is_error, attachments=record.attachments or ())
        return GateReply(f"gate {call.gate.name!r} was not called here in the recording", is_error=True)


def _is_own(gate: Gate) -> bool:
    """Whether a gate is the built-in one with its name. A gate with a session has the handler of that session."""
    known = registry.find(gate.name)
    return gate.handler is known.handler if known.opens is None else gate.opens is known.opens


class _RecordedSource:
    """Gates that came from gate sources, as the loom describes them.

    Enough for calls that are answered from the record.
    """

    def __init__(self, loom: Loom, turns: Sequence[Turn]) -> None:
        self.problems: list[str] = []
        found: dict[str, Gate] = {}
        for cantrip_id in dict.fromkeys(turn.cantrip_id for turn in turns):
            record = loom.cantrip(cantrip_id)
            for declared in record.circle.get("gates", ()) if record is not None else ():
                name = declared["name"]
                found[name] = Gate(
                    name, declared.get("description", ""), declared.get("parameters", {}), _no_recorded_answer
                )
        self._recorded_gates = found
        self.gates: list[Gate] = []

    async def open(self, circle: CircleView) -> _RecordedSource:
        own = {gate.name for gate in circle.declared_gates}
        self.gates = [gate for name, gate in self._recorded_gates.items() if name not in own]
        return self

    async def close(self) -> None:
        """Do nothing: no source was opened."""


def _no_recorded_answer(args: Any, context: Any) -> Any:
    raise GateError("this gate is from an editor or a server, and the recording has no answer for it")


async def replay(cantrip: CantripDefinition, loom: Loom, turn_id: str, *, recorded_gates: bool = False) -> Replay:
    """Run the path to ``turn_id`` again in ``cantrip``'s circle.

    Neither the loom nor a file of the workspace is written.

    What cells, commands, ``write_file`` and ``edit_file`` write goes to a copy of the folders that the circle may
    write. Other gates that write (``git_commit``, ``run_tests``, an editor's), and children, return recorded answers.
    Gates that read are really called, or with ``recorded_gates`` return recorded answers too. Modules are really loaded
    in both cases (`compile_and_load`); with ``recorded_gates`` their gates return recorded answers.

    A thread of a child runs in the child's own circle, as far as ``cantrip`` allows it (`forking.child_turn`).

    Raises `TurnNotFound`, `LoomError` if the path is damaged, `DefinitionError` if ``cantrip`` lacks what a child had,
    `SandboxError` if no copy can be made.
    """
    parts = casts_of(loom, turn_id)
    turns = [t for part in parts for t in part.turns if t.role == "crystal"]
    if not turns:
        raise LoomError(f"turn {turn_id!r} has no turn before it that could be replayed")
    cantrip = cantrip_for_turn(cantrip, loom, turn_id)
    # Refusals of the circle and stops by wards are not replayed: they happen again by themselves.
    sources: Sequence[GateSource] = [_RecordedSource(loom, turns)] if recorded_gates else cantrip.sources
    crystal = RecordedCrystal(turns)
    steering = _RecordedSteering(parts, crystal)
    again = cantrip.replace(
        crystal=crystal,
        interceptors=(*cantrip.interceptors, _RecordedGates(turns, every=recorded_gates)),
        loom=Loom.memory(),
        contributors=(steering,),
        loom_settings=None,
        folding=None,
        sources=sources if cantrip.sources else (),
        scores=False,
    )
    async with _in_copies(again.circle, gates=not recorded_gates), Entity(again, again.loom) as entity:
        steering.entity = entity
        cut, before = False, None
        for part in parts:
            # The recording continues by itself into a part that resumes, unless a ward ended the cast here too.
            if not part.goes_on(before) or cut:
                cut = await _cast(entity, part, resumed=part.goes_on(before))
            before = part.id
    after = casts_of(entity.loom, entity.last_turn) if entity.last_turn else []
    lived_again = [t for part in after for t in part.turns if t.role == "crystal"]
    for number, turn in enumerate(turns, 1):
        if number > len(lived_again):
            return Replay(len(lived_again), Divergence(number, turn.id, "the replay ended before it"))
        how = compared(turn, lived_again[number - 1])
        if how is not None:
            return Replay(len(lived_again), Divergence(number, turn.id, how))
    return Replay(len(turns), None)


@asynccontextmanager
async def _in_copies(circle: Circle, *, gates: bool) -> AsyncIterator[None]:
    """Let everything in this block write to copies, and delete the copies at its end."""
    from cantrip_acp.files.scratch_copy import Copies, in_force
    from cantrip_acp.files.temporary import TemporaryFolder

    folder = await anyio.to_thread.run_sync(TemporaryFolder, "cantrip-copies-")
    try:
        copies = Copies(folder.path)
        await anyio.to_thread.run_sync(copies.add, _writable(circle, gates=gates))
        with in_force(copies):
            yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(folder.close)


def _writable(circle: Circle, *, gates: bool) -> list[str]:
    """The folders that the circle's programs and gates can write, known before anything runs."""
    wards, medium = circle.wards, circle.medium
    found: list[str] = []
    if medium.tool is not None:
        found += wards.bash_writable_paths if medium.name == "bash" else wards.code_writable_paths
    if gates:
        for name in ("write_file", "edit_file"):
            gate = circle.gates.get(name)
            root = gate.dependencies.get("root") if gate is not None else None
            if root is not None:
                found.append(os.fspath(root))
            elif gate is not None:
                found += map(str, circle.folders)
            if gate is not None and circle.workspace is not None:
                found.append(str(circle.workspace))
    base = str(circle.workspace) if circle.workspace is not None else os.sep
    return [os.path.join(base, path) for path in found]


async def _cast(entity: Any, part: CastPart, *, resumed: bool) -> bool:
    """Run one cast of the recording. Returns whether a ward cut it."""
    try:
        if resumed:
            result = await entity.resume()
        else:
            # Changes of knowledge name turns of the original; a replay has the knowledge of the beginning.
            known = (block for block in map(block_of, part.context) if block.source not in DURING_CAST)
            blocks = [block for block in known if block.after is None]
            result = await entity.cast(part.intent or "(no intent was recorded)", context=blocks)
    except CrystalError as error:
        if str(error) != _ENDED:
            raise
        return False
    return bool(result.truncated)


def compared(was: Turn, now: Turn) -> str | None:
    """How two observations of one utterance differ; None if they do not."""
    if was.utterance.tool_calls != now.utterance.tool_calls:
        return "the crystal called something else: the replay is a turn off"
    if was.reason in ("cancelled", "parent_terminated"):
        # The result of a cancelled call depends on the moment of the cancel.
        return None
    before, after = was.observation.results, now.observation.results
    for place, record in enumerate(before):
        if place >= len(after):
            return f"gate {record.gate} was not called"
        other = after[place]
        if other.gate != record.gate:
            return f"gate {other.gate} was called in place of {record.gate}"
        if other.args != record.args:
            return f"gate {record.gate} was called with {_short(other.args)} in place of {_short(record.args)}"
        if other.is_error != record.is_error or other.result != record.result:
            return f"gate {record.gate} answered {_short(other.result)} in place of {_short(record.result)}"
    if len(after) > len(before):
        return f"gate {after[len(before)].gate} was called and had not been"
    one, two = was.observation.output, now.observation.output
    if (one is None) != (two is None):
        return "it has an output, unlike before" if one is None else "it has no output, unlike before"
    return divergence(one, two) if one is not None and two is not None else None


def _short(value: Any) -> str:
    text = " ".join(str(value).split())
    return repr(text if len(text) <= 100 else text[:99] + "…")
