"""Recorder: every cast becomes a session of chunks, from the records that its entity writes into the loom.

`SessionRecorder` is given to a cantrip as a contributor. It adds no context; the loop registers its `recorded` as an
observer of the loom. Records wait in a queue, and a thread commits them in batches, so that a turn does not wait for the
database: when a cast ends, when there are many, or a second after the first. All ids are fixed (made from cast, turn and
call ids): to record something again changes nothing, and `catch_up` completes a session whose process was killed.

A session is ``session:<entity id>``. Its prompts, answers, tool calls and results are instances on the session, in order,
and on their type. A child's session relates to the session of its parent. What was attached to a prompt is placed on it.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from cantrip_acp.core.context import Context
from cantrip_acp.core.history.recorded_circle import RecordedCircle, recorded_call
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn_parts import joined
from cantrip_acp.substrate.chunks import Change, NewChunk, NewPlacement, encode_body, one_line, why_not_stored
from cantrip_acp.substrate.projects import Project, create, session_id
from cantrip_acp.substrate.substrate import Substrate, shared_substrate
from cantrip_acp.substrate.types import install, of_type
from cantrip_acp.text.logs import logger
from cantrip_acp.types.context_block import KNOWLEDGE, CastInfo, ContextBlock
from cantrip_acp.types.records import NOTE, STEERING, CantripRecord, CastRecord, ContextRecord, Turn, UtteranceRecord

_LOG = logger(__name__)
_BATCH = 200
"""How many records one commit holds at most."""
_LINGER_S = 1.0
"""The time in which a record waits for others of its cast. A commit costs two to three times as much as a turn."""
_PATIENCE_S = 10.0
"""How long a process that ends waits for the last commit."""
_LONGEST_TITLE = 80
_LONGEST_TEXT = 150_000
"""Maximum number of characters of one recorded text, each at most six bytes in JSON. The loom has all of it."""

Observed = CastRecord | ContextRecord | Turn | UtteranceRecord


class Observation(Struct, frozen=True):
    """A record with facts that the loom knows: the cantrip, and the parent's entity, at the start of a cast."""

    record: Observed
    location: str = ""
    workspace: Path | None = None
    made: CantripRecord | None = None
    parent: str | None = None

    @classmethod
    def of(cls, loom: Loom, record: Observed, workspace: Path | None) -> Observation:
        if not isinstance(record, CastRecord) or record.event != "start":
            return cls(record)
        above = loom.places.get(record.parent_turn_id) if record.parent_turn_id is not None else None
        made = loom.cantrip(record.cantrip_id)
        return cls(record, loom.location or "", workspace, made, above.entity_id if above is not None else None)


class _Reader(Protocol):
    """The view that reads the substrate for the same sessions (`view.SessionView`). ``missing``: why it could not be opened,
    or empty."""

    missing: str


class SessionRecorder:
    """Records the casts of one workspace. One object serves all entities of a cantrip."""

    def __init__(
        self, address: Path | str, workspace: Path | None, view: _Reader | None = None, *, batches: bool = False
    ) -> None:
        """``view`` is the view of the same sessions. If it could not open the substrate, nothing is recorded. ``batches``:
        casts of batches are recorded, too."""
        self._batches = batches
        self._address = address
        self._workspace = workspace
        self._view = view

    def for_batch(self) -> SessionRecorder | None:
        """The recorder for casts of a batch, which share nothing."""
        return self if self._batches else None

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]:
        """Add nothing to the crystal's context: the recorder only records."""
        return ()

    def recorded(self, loom: Loom, record: object) -> None:
        """Queue a record that was just written, and return at once."""
        if isinstance(record, Observed) and not (self._view is not None and self._view.missing):
            _writer_of(self._address).take(loom, record, self._workspace)

    def flush(self) -> bool:
        """Wait until everything is committed. False if that took longer than ten seconds."""
        return _writer_of(self._address).flush()


def flush(address: Path | str) -> bool:
    """Wait until all sessions of this process are committed to a substrate. False if that took longer than ten seconds."""
    return _writer_of(address).flush()


def wait_for_ended(address: Path | str) -> None:
    """Wait until the casts of this process that have ended are committed to a substrate, ten seconds at most."""
    with _starting:
        writer = _writers.get(str(address))
    if writer is not None:
        writer.wait_for_ended()


_writers: dict[str, _Writer] = {}
_starting = threading.Lock()


def _writer_of(address: Path | str) -> _Writer:
    with _starting:
        found = _writers.get(str(address))
        if found is None:
            found = _writers[str(address)] = _Writer(address)
            atexit.register(found.flush)
        return found


class _Writer:
    """The thread that commits to one substrate. It starts with the first record."""

    def __init__(self, address: Path | str) -> None:
        self._address = address
        self._waiting: queue.SimpleQueue[Observation] = queue.SimpleQueue()
        self._taken = 0
        self._done = 0
        self._wanted = 0
        """The number of the record for which somebody waits: a flush, or a reader of a session that has ended."""
        self._progress = threading.Condition()
        self._thread: threading.Thread | None = None
        self._complained = False

    def take(self, loom: Loom, record: Observed, workspace: Path | None) -> None:
        observation = Observation.of(loom, record, workspace)
        with self._progress:
            self._taken += 1
            self._waiting.put(observation)
            if isinstance(record, CastRecord) and record.event != "start":
                self._wanted = self._taken
            if self._due:
                self._progress.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="substrate recorder", daemon=True)
                self._thread.start()

    def flush(self) -> bool:
        with self._progress:
            until = self._wanted = self._taken
            self._progress.notify_all()
            return self._progress.wait_for(lambda: self._done >= until, _PATIENCE_S)

    def wait_for_ended(self) -> None:
        with self._progress:
            until = self._wanted
            self._progress.wait_for(lambda: self._done >= until, _PATIENCE_S)

    @property
    def _due(self) -> bool:
        """Whether the queued records must be committed now."""
        return self._wanted > self._done or self._taken - self._done >= _BATCH

    def _run(self) -> None:
        sessions: Sessions | None = None
        while True:
            batch = [self._waiting.get()]
            with self._progress:
                self._progress.wait_for(lambda: self._due, _LINGER_S)
            with contextlib.suppress(queue.Empty):
                while len(batch) < _BATCH:
                    batch.append(self._waiting.get_nowait())
            try:
                if sessions is None:
                    sessions = Sessions(shared_substrate(self._address))
                sessions.record(batch)
            except Exception as problem:  # noqa: BLE001
                # A cast must not fail because its record of it cannot be written; the loom has all of it.
                if not self._complained:
                    _LOG.warning("sessions are not recorded in the substrate: %s", problem)
                self._complained = True
                sessions = None
            with self._progress:
                self._done += len(batch)
                self._progress.notify_all()


class Sessions:
    """Makes chunks of records. One object follows any number of entities."""

    def __init__(self, substrate: Substrate) -> None:
        self._substrate = substrate
        self._contexts: dict[str, Context] = {}
        self._entities: dict[str, str] = {}
        """The cantrip of each entity."""
        self._parts: dict[str, list[Turn]] = {}
        """The turns of each utterance that a delegation split, by its first turn."""
        self._prompts: dict[str, dict[str, Any]] = {}
        """The body of the prompt of each cast that runs, by the id of the cast."""
        self._known: set[str] = set()
        """Sessions that are in the substrate, and projects."""
        install(substrate)

    def record(self, batch: Iterable[Observation]) -> None:
        """Commit the content of the records: one commit for each session, which is its source."""
        sessions: dict[str, tuple[dict[str, NewChunk], dict[tuple[str, str, str], NewPlacement]]] = {}
        for seen in batch:
            chunks, placements = sessions.setdefault(f"session:{seen.record.entity_id}", ({}, {}))
            for each in self.chunks_of(seen):
                if isinstance(each, NewChunk):
                    chunks[each.id] = each
                else:
                    placements[(each.chunk, each.scope, each.kind)] = each
        for session, (chunks, placements) in sessions.items():
            if chunks or placements:
                change = Change(list(chunks.values()), list(placements.values()))
                # The loom is the durable record; `catch_up` completes this one after a power failure.
                self._substrate.commit(change, author=session, source=session, durable=False)

    def chunks_of(self, seen: Observation) -> Iterator[NewChunk | NewPlacement]:
        """The chunks and placements of one record."""
        record = seen.record
        if isinstance(record, CastRecord):
            yield from self._start(seen, record) if record.event == "start" else self._end(record)
        elif isinstance(record, ContextRecord):
            yield from self._context(record)
        elif isinstance(record, UtteranceRecord):
            if record.partial and record.utterance.content:
                body = {
                    "text": _cut(record.utterance.content),
                    "cast": record.cast_id,
                    "interrupted": record.stop_reason,
                }
                yield from _placed(record.entity_id, "answer", f"answer:{record.id}", body)
        elif record.cast_id is not None and record.role == "fold":
            body = {"text": _cut(record.utterance.content or ""), "turn": record.id}
            yield from _placed(record.entity_id, "context", f"context:{record.id}", body, name="fold")
        elif record.cast_id is not None and record.role == "crystal":
            yield from self._turn(record)

    def _start(self, seen: Observation, record: CastRecord) -> Iterator[NewChunk | NewPlacement]:
        entity, session, made = record.entity_id, session_id(record.entity_id), seen.made
        if made is not None:
            self._entities[entity] = made.id
            if made.id not in self._contexts:
                self._contexts[made.id] = Context(recorded_call(made), RecordedCircle(made))  # type: ignore[arg-type]
        if session not in self._known and not self._substrate.exists(session):
            title = one_line(record.intent or "", _LONGEST_TITLE) or "a session"
            # Its name is what people search; its ids are not.
            body: dict[str, Any] = {
                "text": "",
                "started": record.timestamp,
                "entity": entity,
                "cantrip": record.cantrip_id,
            }
            model = record.attributes.get("model")
            body |= {"loom": seen.location} if seen.location else {}
            body |= {"model": model} if isinstance(model, str) else {}
            yield NewChunk(session, title, body=body)
            yield of_type("session", session)
            if seen.parent is not None and seen.parent != entity:
                yield NewPlacement(session, session_id(seen.parent), "relates")
            elif seen.workspace is not None:
                project = Project.of(seen.workspace)
                if project.id not in self._known:
                    create(self._substrate, seen.workspace)
                    self._known.add(project.id)
                yield NewPlacement(session, project.sessions)
        self._known.add(session)
        if isinstance(record.resumes, str):
            # The prompt is that of the cast which goes on.
            self._prompts[record.id] = self._prompt(record.resumes)
            return
        body = {"text": _cut(record.intent or ""), "cast": record.id, "at": record.timestamp}
        self._prompts[record.id] = body
        yield from _placed(entity, "prompt", f"prompt:{record.id}", body)

    def _prompt(self, cast_id: str) -> dict[str, Any]:
        known = self._prompts.get(cast_id)
        if known is not None:
            return known
        chunk_id = f"prompt:{cast_id}"
        return dict(self._substrate.chunk(chunk_id).body) if self._substrate.exists(chunk_id) else {}

    def _end(self, record: CastRecord) -> Iterator[NewChunk | NewPlacement]:
        body = self._prompt(record.id)
        self._prompts.pop(record.id, None)
        result = record.result if record.result is not None else record.summary
        text = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, default=str)
        outcome = {"reason": record.reason or "", "text": "" if result is None else _cut(text, 2_000)}
        if body:
            yield NewChunk(f"prompt:{body['cast']}", "prompt", body={**body, "outcome": outcome})

    def _context(self, record: ContextRecord) -> Iterator[NewChunk | NewPlacement]:
        if record.source == KNOWLEDGE:
            chunk_id = f"context:{record.id}"
            if self._substrate.exists(chunk_id):
                return
            scopes = [each for each in (record.uri or "").removeprefix("substrate:").split(",") if each]
            body: dict[str, Any] = {"cast": record.cast_id, "scopes": scopes, "at": self._substrate.latest()}
            yield from _placed(record.entity_id, "context", chunk_id, body)
            for scope in scopes:
                if self._substrate.exists(scope):
                    yield NewPlacement(scope, chunk_id, "relates")
        elif record.source == NOTE:
            return  # what the entity was told of its own circle
        elif record.source == STEERING and not record.uri and record.text:
            body = {"text": _cut(record.text), "cast": record.cast_id, "at": record.timestamp, "from": STEERING}
            yield from _placed(record.entity_id, "prompt", f"prompt:{record.id}", body)
        elif record.cast_id is not None:
            chunk_id = f"attachment:{record.id}"
            body = {"text": _cut(record.text), "uri": _cut(record.uri or ""), "from": record.source}
            yield NewChunk(chunk_id, one_line(record.title or record.uri or "") or "attachment", body=body)
            yield of_type("document", chunk_id)
            yield NewPlacement(chunk_id, f"prompt:{record.cast_id}")

    def _turn(self, turn: Turn) -> Iterator[NewChunk | NewPlacement]:
        first = turn.continues or turn.id
        parts = self._parts.setdefault(first, [])
        parts.append(turn)
        output = turn.observation.output
        if output is None or output.unfinished is not True:
            self._parts.pop(first, None)
        whole = joined(parts)
        context = self._contexts.get(self._entities.get(turn.entity_id, ""))
        if context is None:
            return
        said, results = context.turns.render(whole)[0], context.turns.render(whole)[1:]
        if said.content or not said.tool_calls:
            body: dict[str, Any] = {"text": _cut(said.content or ""), "turn": first}
            yield from _placed(turn.entity_id, "answer", f"answer:{first}", body)
        programs: dict[str, str] = {}
        for place, call in enumerate(said.tool_calls):
            programs[call.id] = call.gate
            body = {"program": call.gate, "tool_use_id": call.id, "input": _arguments(call.args), "turn": first}
            yield from _placed(turn.entity_id, "tool-call", f"call:{first}:{place}", body, name=call.gate)
        for place, message in enumerate(results):
            if message.role == "tool":
                program = programs.get(message.tool_call_id or "", "")
                body = {"program": program, "tool_use_id": message.tool_call_id, "turn": first}
                body["text"] = _cut(message.content or "")
                if message.is_error:
                    body["is_error"] = True
                yield from _placed(turn.entity_id, "tool-result", f"result:{first}:{place}", body, name=program)
            else:
                body = {"text": _cut(message.content or ""), "turn": first, "from": "cantrip"}
                yield from _placed(turn.entity_id, "prompt", f"prompt:{first}:{place}", body)


def catch_up(substrate: Substrate, loom: Loom) -> int:
    """Record all casts of a loom that the substrate lacks, or lacks in part. Returns the number of commits made."""
    before = substrate.latest()
    sessions = Sessions(substrate)
    batch: list[Observation] = []
    for seen in _observations(loom):
        batch.append(seen)
        if len(batch) >= _BATCH:
            sessions.record(batch)
            batch = []
    sessions.record(batch)
    return substrate.latest() - before


def differences(substrate: Substrate, loom: Loom) -> list[str]:
    """Compare the sessions of the substrate with the loom: a line for each difference, none if they agree."""
    sessions, expected = Sessions(substrate), dict[str, NewChunk]()
    for seen in _observations(loom):
        for each in sessions.chunks_of(seen):
            if isinstance(each, NewChunk):
                expected[each.id] = each
    found: list[str] = []
    for start in {each.entity_id: each for each in loom.cast_starts().values()}.values():
        if not substrate.exists(session_id(start.entity_id)):
            found.append(f"{session_id(start.entity_id)}: not recorded")
    for chunk in expected.values():
        if chunk.id.startswith("session:"):
            continue
        if not substrate.exists(chunk.id):
            found.append(f"{chunk.id}: not recorded")
        # The loom does not have the number of the commit at which a context was recorded.
        elif not chunk.id.startswith("context:") and encode_body(substrate.chunk(chunk.id).body) != encode_body(
            chunk.body
        ):
            found.append(f"{chunk.id}: the chunk has other contents than the loom")
    return found


def _observations(loom: Loom) -> Iterator[Observation]:
    for record in loom.records():
        if isinstance(record, Observed):
            seen = Observation.of(loom, record, None)
            yield replace(seen, workspace=_folder(seen.made))


def _folder(made: CantripRecord | None) -> Path | None:
    folder = made.circle.get("workspace") if made is not None else None
    return Path(folder) if isinstance(folder, str) else None


def _placed(
    entity_id: str, kind: str, chunk_id: str, body: dict[str, Any], *, name: str = ""
) -> Iterator[NewChunk | NewPlacement]:
    """Make a chunk of a session: an instance of its type and of the session."""
    yield NewChunk(chunk_id, one_line(name) or kind, body=body)
    yield of_type(kind, chunk_id)
    yield NewPlacement(chunk_id, session_id(entity_id))


def _arguments(text: str) -> Any:
    """The arguments of a call as data; as a text if they are not JSON, or too large for a chunk."""
    try:
        data = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return _cut(text)
    return data if len(text) <= _LONGEST_TEXT and why_not_stored({"input": data}) is None else _cut(text)


def _cut(text: str, most: int = _LONGEST_TEXT) -> str:
    """Shorten a text for the record. Lone surrogates, as from input that is not UTF-8, are replaced, because JSON has none."""
    text = text if text.isascii() else text.encode("utf-8", "replace").decode()
    return text if len(text) <= most else f"{text[:most]}\n[cut here: the loom has all {len(text):,} characters]"
