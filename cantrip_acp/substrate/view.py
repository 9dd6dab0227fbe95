"""A session's view of the substrate: what it reads from the beginning, what it added, and how it looks for more.

`SessionView` is a context contributor (`types.context_block.KnowledgeSource`) and a source of gates. What is *pinned* is
fixed when a cast begins: the user's culture, the project's, its documents, then what the user pinned. The entity may add
scopes of its read boundary with the gate `add_scope`, and searches with `recall`. The texts of these scopes are read again
before each query.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio.to_thread
from msgspec import Struct

from cantrip_acp.gates.contract import Gate, GateContext
from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import OutsideBoundary, SubstrateError
from cantrip_acp.substrate.documents import DOCUMENTS
from cantrip_acp.substrate.projects import (
    CULTURE,
    Project,
    earlier_sessions,
    session_id,
    sync,
)
from cantrip_acp.substrate.stores import IN_MEMORY
from cantrip_acp.substrate.substrate import EVERYTHING, Substrate, open_substrate, shared_substrate
from cantrip_acp.substrate.types import TYPES
from cantrip_acp.types.context_block import KNOWLEDGE, CastInfo, ContextBlock
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.substrate.engine.engine import Depth
    from cantrip_acp.substrate.knowledge import Knowledge

EARLIER = "memory"
"""The source of the block with earlier sessions."""
MOST_ADDED = 20
"""How many scopes an entity may add."""
_MOST_ENTITIES = 10_000


class Limits(Struct, frozen=True):
    """The scopes that a sub-agent may read and those that it reads from the beginning, and the process of its run."""

    boundary: Boundary
    scopes: tuple[str, ...] | None
    process: str
    depth: Depth


class _Reading(Struct):
    """The reading state of one entity. ``pinned`` is fixed for the cast ``cast_id``. ``knowledge`` is that of ``scopes`` at
    the commit ``seen``.

    ``told_earlier``: whether its earlier sessions were summed up already. ``cast_id`` is None before the first cast.
    """

    cast_id: str | None = None
    project: Project | None = None
    told_earlier: bool = False
    pinned: tuple[str, ...] = ()
    added: list[str] = []
    files: object = None
    seen: int = -1
    scopes: tuple[str, ...] = ()
    knowledge: Knowledge | None = None


class SessionView:
    """The knowledge that the sessions of one workspace read. One object serves all entities of a cantrip."""

    def __init__(
        self,
        address: Path | str | None,
        workspace: Path,
        *,
        config_dir: Path | None = None,
        documents: bool = True,
        sessions: int = 0,
        placement: Literal["system", "history"] = "system",
        most_tokens: int = 16_000,
        always: bool = False,
        hidden: tuple[str, ...] = (),
        alone: bool = False,
        batches: bool = False,
    ) -> None:
        """``documents``: pin culture and documents. ``sessions``: how many earlier sessions are summed up at the start.

        ``always``: without a substrate (``address`` is None), or if it cannot be opened, what is in files is read all the
        same, from a substrate in memory. Then `missing` says why, and the user sees it once. ``hidden`` is the ward
        ``hidden_paths``: documents in it are not read. ``alone``: for one of many casts, which find nothing that was said or run
        in other sessions. ``batches``: a batch is no reason for that.
        """
        self._alone, self._batches = alone, batches
        self._for_batch: SessionView | None = None
        self.workspace = workspace
        self._project: Project | None = None
        self._address = address
        self._config_dir = config_dir
        self._documents = documents
        self._sessions = sessions
        self._placement = placement
        self._most_tokens = most_tokens
        self._entities: dict[str, _Reading] = {}
        self._limits: dict[str, Limits] = {}
        self._lock = threading.RLock()
        self._opened: Substrate | None = None
        self._synced = False
        self._always = always
        self._hidden = hidden
        self._notices: list[str] = []
        self.missing = ""
        """Why there is no substrate that stays. Nothing is recorded then, and nothing remembered."""

    def for_batch(self) -> SessionView:
        """The view for casts of a batch, which share nothing."""
        if self._alone or self._batches:
            return self
        with self._lock:
            if self._for_batch is None:
                self._for_batch = SessionView(
                    self._address,
                    self.workspace,
                    config_dir=self._config_dir,
                    documents=self._documents,
                    placement=self._placement,
                    most_tokens=self._most_tokens,
                    always=self._always,
                    hidden=self._hidden,
                    alone=True,
                )
            return self._for_batch

    @property
    def address(self) -> Path | str | None:
        """The address of the substrate; None if it is off."""
        return self._address

    @property
    def substrate(self) -> Substrate:
        """The substrate, opened at first use. Raises `SubstrateError`."""
        with self._lock:
            if self._opened is None:
                try:
                    if self._address is None:
                        raise SubstrateError("CANTRIP_SUBSTRATE is `off`")
                    self._opened = shared_substrate(self._address)
                except SubstrateError as problem:
                    if not self._always:
                        raise
                    # Without the driver's advice, which is for the one who runs the server.
                    self.missing = re.split(r"[.\s]+Is the server", " ".join(str(problem).split()))[0]
                    self._notices.append(
                        "This session reads documents and culture, but no remembered facts and no earlier sessions, and it is "
                        f"not recorded in the substrate: {self.missing}"
                    )
                    self._opened = open_substrate(IN_MEMORY)
            return self._opened

    @property
    def project(self) -> Project:
        """The project of the workspace. Its id changes when the folder gets a git remote, or an id of its own."""
        with self._lock:
            if self._project is None:
                self._project = Project.of(self.workspace)
            return self._project

    @property
    def boundary(self) -> Boundary:
        """The boundary of an entity in this workspace: it limits reading, and allows no writing."""
        project = self.project
        read = (*project.pinned, project.nested, project.pins) if self._alone else project.near
        return Boundary.of(read=[*read, TYPES], holder=project.id)

    def limit(self, entity_id: str, limits: Limits | None) -> None:
        """Limit what one entity reads, before its first cast; None removes the limits after its last cast."""
        if limits is not None:
            self._limits[entity_id] = limits
        else:
            self._limits.pop(entity_id, None)

    def limits_of(self, entity_id: str) -> Limits | None:
        """The limits of a running sub-agent; None for every other entity."""
        return self._limits.get(entity_id)

    def boundary_of(self, entity_id: str) -> Boundary:
        """The boundary of one entity."""
        limits = self.limits_of(entity_id)
        return self.boundary if limits is None else limits.boundary

    # As a contributor

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]:
        """Add a summary of earlier sessions, once for each entity."""
        # Before the cast is recorded it is known whether it can be.
        await anyio.to_thread.run_sync(lambda: self.substrate)
        if self._sessions <= 0 or any(block.source == EARLIER for block in info.pinned()):
            return ()
        with self._lock:
            reading = self._reading(info.entity_id)
            if reading.told_earlier:
                return ()
            reading.told_earlier = True
        lines = await anyio.to_thread.run_sync(self._earlier, info.entity_id)
        if not lines:
            return ()
        head = (
            "What was asked in this project in earlier sessions, the latest first, and how it ended. Files may have changed "
            "since; none of this is a task now. `recall` finds more of them.\n"
        )
        return (ContextBlock(head + "\n".join(lines), "earlier sessions here", EARLIER),)

    async def refresh(self, info: CastInfo) -> ContextBlock | None:
        """The block of knowledge before a query."""
        knowledge = await anyio.to_thread.run_sync(self._refresh, info.entity_id, info.cast_id)
        return self.block(info.entity_id, knowledge)

    def block(self, entity_id: str, knowledge: Knowledge) -> ContextBlock:
        """Make a context block of the knowledge. Its address names the scopes that were read."""
        scopes = ",".join(self.scopes(entity_id)) if knowledge.text else ""
        return ContextBlock(
            knowledge.text, "what this session knows", KNOWLEDGE, f"substrate:{scopes}", placement=self._placement
        )

    def _earlier(self, entity_id: str) -> list[str]:
        if self._address is not None:
            from cantrip_acp.substrate.recorder import wait_for_ended

            # The one that ended a moment ago is the first that is asked for.
            wait_for_ended(self._address)
        self._sync(nested=True)
        return earlier_sessions(self.substrate, self.project, self._sessions, without=entity_id)

    def _refresh(self, entity_id: str, cast_id: str) -> Knowledge:
        # Not at the start: an editor shows a session before its first cast.
        from cantrip_acp.substrate.knowledge import Knowledge, render

        with self._lock:
            reading = self._reading(entity_id)
            reading.knowledge = reading.knowledge or Knowledge()
            if self._documents:
                self._read_files(reading, nested=not self._synced)
            elif not self._synced:
                self._sync(nested=False)
            if reading.cast_id != cast_id:
                reading.cast_id, reading.project = cast_id, self.project
                reading.pinned = self._pinned(self.limits_of(entity_id))
            elif reading.project is not None and reading.project != self.project:
                # The folder got another id meanwhile. What the user pinned still waits for the next cast.
                old, new = (dict.fromkeys(each.pinned) for each in (reading.project, self.project))
                if reading.pinned[: len(old)] == (*old,):
                    reading.pinned = (*dict.fromkeys((*new, *reading.pinned[len(old) :])),)
                reading.project = self.project
            scopes = (*reading.pinned, *(each for each in reading.added if each not in reading.pinned))
            limits, latest = self.limits_of(entity_id), self.substrate.latest()
            known = {*scopes, *(part.chunk for part in reading.knowledge.parts)}
            # An entity's own turns are commits too; only those of what it reads matter. What is inside the boundary of a
            # sub-agent changes with placements anywhere.
            if limits is not None or reading.scopes != scopes or self.substrate.changed(known, after=reading.seen):
                # Everything that is pinned or was added is inside the boundary of a session.
                boundary = EVERYTHING if limits is None else limits.boundary
                inside = [each for each in scopes if limits is None or self.substrate.readable(each, boundary)]
                reading.knowledge = render(self.substrate, inside, boundary=boundary, most_tokens=self._most_tokens)
            reading.seen, reading.scopes = latest, scopes
            return reading.knowledge

    def _read_files(self, reading: _Reading, *, nested: bool) -> None:
        files = (Project.of(self.workspace), _fingerprint(self.workspace, self._config_dir))
        if reading.files != files or nested:
            self._sync(nested=nested)
            reading.files = files

    def _sync(self, *, nested: bool) -> None:
        with self._lock:
            self._project = sync(self.substrate, self.workspace, self._config_dir, nested=nested, hidden=self._hidden)
            self._synced = True

    def bring_files(self) -> None:
        """Bring the present documents and skills into the substrate."""
        if self._documents or not self._synced:
            self._sync(nested=True)

    def _pinned(self, limits: Limits | None) -> tuple[str, ...]:
        if limits is not None and limits.scopes is not None:
            return limits.scopes
        own = self.project.pinned if self._documents else ()
        more = [each.chunk.id for each in self.substrate.scope(self.project.pins).placed]
        return tuple(dict.fromkeys((*own, *more)))

    def _reading(self, entity_id: str) -> _Reading:
        found = self._entities.get(entity_id)
        if found is None:
            if len(self._entities) >= _MOST_ENTITIES:
                self._entities.pop(next(iter(self._entities)))
            found = self._entities[entity_id] = _Reading()
        return found

    # For people and gates

    def scopes(self, entity_id: str) -> tuple[str, ...]:
        """The ids of the scopes that an entity reads: pinned ones, then those that it added."""
        with self._lock:
            reading = self._reading(entity_id)
            return (*reading.pinned, *(each for each in reading.added if each not in reading.pinned))

    def knowledge(self, entity_id: str) -> Knowledge:
        """The knowledge that the next query of an entity will contain, also before its first cast."""
        with self._lock:
            cast_id = self._reading(entity_id).cast_id or ""
        return self._refresh(entity_id, cast_id)

    def add(self, entity_id: str, name: str, boundary: Boundary | None = None) -> tuple[str, int]:
        """Add a scope, by id or name, to an entity's reading. Returns its id and its size in tokens.

        The size is the growth of the next query: 0 if the scope was already read. Raises `SubstrateError` if it is not inside
        the boundary, or if the entity has added too many.
        """
        boundary = boundary or self.boundary_of(entity_id)
        with self._lock:
            chunk = self.substrate.one(name, boundary=boundary, prefer=self.project.near)
            reading, before = self._reading(entity_id), self.knowledge(entity_id).tokens
            if chunk.id not in self.scopes(entity_id):
                if len(reading.added) >= MOST_ADDED:
                    raise SubstrateError(f"a session adds at most {MOST_ADDED} scopes")
                reading.added.append(chunk.id)
            return chunk.id, max(0, self.knowledge(entity_id).tokens - before)

    # As a source of gates

    async def open(self, circle: CircleView) -> OpenedGates:
        """Make the gates without reading anything. The first call reports problems with the substrate to the user."""
        import cantrip_acp.substrate.knowledge  # noqa: F401 - the first cast needs it

        if self._always:
            await anyio.to_thread.run_sync(lambda: self.substrate)
        notices, self._notices = self._notices, []
        return OpenedGates(self.gates, notices)

    @property
    def gates(self) -> list[Gate]:
        return [
            Gate(
                "recall",
                "Search what is known here: documents, remembered facts, skills, and earlier sessions of this project. Returns "
                "references; read one with add_scope.",
                {
                    "type": "object",
                    "properties": {
                        "query": {
                            "type": "string",
                            "minLength": 1,
                            "maxLength": 1_000,
                            "description": "Words to find.",
                        },
                        "limit": {"type": "integer", "minimum": 1, "maximum": 50, "description": "Default: 10."},
                    },
                    "required": ["query"],
                    "additionalProperties": False,
                },
                self._gate(self._recall),
                kind="search",
                main_text="query",
                blocking=True,
            ),
            Gate(
                "add_scope",
                "Read a scope that recall found: from the next query on, its text is part of what you know.",
                {
                    "type": "object",
                    "properties": {
                        "scope": {"type": "string", "minLength": 1, "maxLength": 200, "description": "Its id or name."}
                    },
                    "required": ["scope"],
                    "additionalProperties": False,
                },
                self._gate(self._add_scope),
                kind="read",
                main_text="scope",
                blocking=True,
            ),
        ]

    def _gate(
        self, call: Callable[[Mapping[str, Any], GateContext], Any]
    ) -> Callable[[Mapping[str, Any], GateContext], Any]:
        def handler(args: Mapping[str, Any], context: GateContext) -> Any:
            try:
                return call(args, context)
            except OutsideBoundary as problem:
                raise GateError(str(problem), "Use recall to find what this session may read") from None
            except SubstrateError as problem:
                raise GateError(str(problem)) from None

        return handler

    def _recall(self, args: Mapping[str, Any], context: GateContext) -> list[dict[str, Any]]:
        if not self._synced:
            self._sync(nested=True)
        # The entity's own session is in its context already.
        own, boundary = session_id(context.entity_id), self.boundary_of(context.entity_id)
        hits = self.substrate.search(args["query"], boundary=boundary, limit=int(args.get("limit", 10)), without=own)
        return [
            {"scope": hit.chunk.id, "name": hit.chunk.name, "source": hit.chunk.source, "text": hit.snippet}
            for hit in hits
        ]

    def _add_scope(self, args: Mapping[str, Any], context: GateContext) -> dict[str, Any]:
        scope, tokens = self.add(context.entity_id, args["scope"])
        return {"scope": scope, "tokens": tokens, "note": "its text is part of the next query"}


class OpenedGates(Struct):
    """Gates of one entity, with problems to report to the user."""

    gates: list[Gate] = []
    problems: list[str] = []

    async def close(self) -> None:
        """Do nothing: the process closes the substrate, and each run ends with its call."""


def _fingerprint(workspace: Path, config_dir: Path | None) -> object:
    """A value that changes when a document changes, appears or disappears."""
    places = [*(workspace / name for name in DOCUMENTS), workspace / CULTURE]
    if config_dir is not None:
        places.append(config_dir / "culture")
    found: list[tuple[str, int, int, int]] = []
    for place in places:
        try:
            status = os.lstat(place)
            found.append((str(place), status.st_mtime_ns, status.st_size, status.st_ino))
            if place.name == "culture":
                with os.scandir(place) as entries:
                    for entry in entries:
                        inner = entry.stat(follow_symlinks=False)
                        found.append((entry.path, inner.st_mtime_ns, inner.st_size, inner.st_ino))
        except OSError:
            continue
    return sorted(found)
