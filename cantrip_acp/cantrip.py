"""The cantrip: crystal, call and circle bound together; a value that can be cast any number of times (§1.4)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Any
from typing import cast as typed

import anyio

from cantrip_acp.call import Call
from cantrip_acp.circle import Circle
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.entity import CastStream, Entity
from cantrip_acp.errors import DefinitionError
from cantrip_acp.folding import Folding
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loop import CastResult
from cantrip_acp.mediums.text_program import writes_calls

if TYPE_CHECKING:
    from os import PathLike
    from pathlib import Path

    from cantrip_acp.context import Contributor
    from cantrip_acp.forkgroup import ForkGroup
    from cantrip_acp.forking import State
    from cantrip_acp.gates.contract import Interceptor
    from cantrip_acp.gates.sources import GateSource

_ABSENT: Any = object()


class Cantrip:
    """A recipe for entities.

    ``call`` left out is an empty call; ``loom`` left out is one in memory that all casts share. ``interceptors`` may answer
    in any gate's place, ``contributors`` add context to each cast; both belong to the host, never to the entity.
    ``folding`` says when earlier turns are folded: at 80 % of the crystal's window where nothing else is given (PROD-4).
    ``crystals`` are those that children may be given, by name (COMP-7). ``sources`` give each entity further gates when it
    begins, such as the tools of MCP servers (`cantrip_acp.mcp.servers.McpServers`).

    Raises `DefinitionError`, checked in the order crystal, call, circle: "cantrip requires a crystal", "cantrip requires
    a call", "cantrip requires a circle" (CANTRIP-1), "circle must have a done gate" (CIRCLE-1), "cantrip must have at
    least one truncation ward" (CIRCLE-2, LOOP-2, CANTRIP-3).

    >>> from cantrip_acp import Cantrip, Circle, ScriptedCrystal
    >>> spell = Cantrip(
    ...     ScriptedCrystal([{"tool_calls": [{"gate": "done", "args": {"answer": "hello"}}]}]),
    ...     circle=Circle(gates=["done"], wards=[{"max_turns": 3}]),
    ... )
    >>> spell.cast_sync("Say hello.").result
    'hello'
    """

    def __init__(
        self,
        crystal: Crystal | None = None,
        call: Call | Mapping[str, Any] | None = _ABSENT,
        circle: Circle | None = None,
        *,
        loom: Loom | None = None,
        retry: RetryPolicy | None = None,
        interceptors: Sequence[Interceptor] = (),
        contributors: Sequence[Contributor] = (),
        name: str | None = None,
        loom_settings: Mapping[str, Any] | None = None,
        folding: Folding | Mapping[str, Any] | None = None,
        crystals: Mapping[str, Crystal] | None = None,
        sources: Sequence[GateSource] = (),
    ) -> None:
        if crystal is None:
            raise DefinitionError("cantrip requires a crystal: the model that is to act (CANTRIP-1)")
        if not isinstance(crystal, Crystal):
            raise DefinitionError(
                f"cantrip requires a crystal with name, model, context_window and query, not {type(crystal).__name__}"
            )
        if call is None:
            raise DefinitionError("cantrip requires a call; leave it out for an empty one (CANTRIP-1)")
        if circle is None:
            raise DefinitionError("cantrip requires a circle: a medium, gates and wards (CANTRIP-1)")
        self.name = name
        self.crystal = crystal
        self.call = Call() if call is _ABSENT else Call.of(call)
        self.circle = circle
        self.require_done = self.call.require_done_tool or circle.wards.require_done_tool
        self.retry = retry or RetryPolicy()
        self.interceptors = tuple(interceptors)
        self.contributors = tuple(contributors)
        self.loom_settings: Mapping[str, Any] = dict(loom_settings or {})
        """What a recipe says of how its loom is kept (``store``, ``fsync``), for the door that opens one."""
        self.folding = Folding.of(folding)
        self.scores = True
        """Whether the circle's scoring function is asked; a replay does not ask it."""
        self.crystals: Mapping[str, Crystal] = crystals if crystals is not None else {}
        if self.crystals:
            self.circle = circle.naming(self.crystals)
        self.sources = tuple(sources)
        self._loom = loom
        _validate(circle, self.require_done)

    def __repr__(self) -> str:
        return f"Cantrip({self.name or self.id}, {self.crystal.model}, {self.circle!r})"

    @property
    def loom(self) -> Loom:
        """Where its casts are recorded."""
        if self._loom is None:
            self._loom = Loom.memory()
        return self._loom

    @cached_property
    def records(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Call and circle as the loom keeps them."""
        return self.call.record(), self.circle.record()

    @cached_property
    def shown(self) -> Mapping[str, Any]:
        """What a crystal sees of the circle, as the loom keeps it: how it is told is a matter of this package's version."""
        tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in self.circle.tools]
        return {"capabilities": self.circle.capabilities(text_calls=writes_calls(self.crystal)), "tools": tools}

    @cached_property
    def id(self) -> str:
        """The same for the same call and circle, whatever the crystal: ``cantrip_`` and 16 hex digits.

        Only a crystal that writes its calls as text makes a difference, because it is shown another capability block.
        """
        text = json.dumps(self.records, sort_keys=True, ensure_ascii=True, default=str)
        text += "\ntext calls" if self.circle.medium.tool is not None and writes_calls(self.crystal) else ""
        return f"cantrip_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def with_crystal(self, crystal: Crystal) -> Cantrip:
        """The same cantrip with another crystal and nothing else changed (§2.2)."""
        return Cantrip(
            crystal,
            self.call,
            self.circle,
            loom=self.loom,
            retry=self.retry,
            interceptors=self.interceptors,
            contributors=self.contributors,
            name=self.name,
            loom_settings=self.loom_settings,
            folding=self.folding,
            crystals=self.crystals,
            sources=self.sources,
        )

    def with_sources(self, sources: Sequence[GateSource]) -> Cantrip:
        """The same cantrip with further sources of gates."""
        made = copy(self)
        made.sources = (*self.sources, *sources)
        return made

    def with_circle(self, circle: Circle) -> Cantrip:
        """The same cantrip in another circle, and nothing else changed."""
        made = copy(self)
        for name in ("records", "shown", "id"):
            made.__dict__.pop(name, None)
        made.circle = circle
        made._loom = self.loom
        return made

    def standing_in(self, crystal: Crystal, interceptors: Sequence[Interceptor], loom: Loom) -> Cantrip:
        """The same call and circle with another crystal, further interceptors, and a loom of its own: for replays."""
        cantrip = Cantrip(
            crystal,
            self.call,
            self.circle,
            loom=loom,
            retry=self.retry,
            interceptors=(*self.interceptors, *interceptors),
            name=self.name,
            crystals=self.crystals,
        )
        cantrip.scores = False
        return cantrip

    def reaching(self, folders: Sequence[Path], interceptor: Interceptor | None = None) -> Cantrip:
        """The same cantrip for a session: with folders beside its workspace, and one more interceptor, the last to be asked."""
        made = copy(self)
        for name in ("records", "shown", "id"):
            made.__dict__.pop(name, None)
        if folders:
            circle = self.circle
            made.circle = Circle(
                circle.medium,
                circle.declared_gates,
                circle.wards,
                workspace=circle.workspace,
                folders=folders,
                score=circle.score,
                data=circle.data,
            )
        if interceptor is not None:
            made.interceptors = (*self.interceptors, interceptor)
        return made

    def invoke(self, *, loom: Loom | None = None, entity_id: str | None = None) -> Entity:
        """A persistent entity, independent of every other (ENTITY-6). It acts when it is given its first intent."""
        return Entity(self, loom if loom is not None else self.loom, entity_id=entity_id)

    async def fork(
        self,
        turn_id: str,
        *,
        loom: Loom | None = None,
        state: State = "auto",
        entity_id: str | None = None,
        worktree: bool | str | PathLike[str] = False,
        resume: bool | str = False,
    ) -> Entity:
        """An entity that goes on from any turn of a loom, with everything that led to it; the original is untouched (LOOM-4).

        ``loom`` is the cantrip's own where it is left out. ``state`` says how a code medium's variables are had: auto,
        snapshot, replay or none. With ``worktree`` the fork works in a git worktree of its own, with the files as they were
        pinned at that turn (``loom: {files: true}``): True for one in the state folder, or a folder that is not there yet.
        ``resume`` makes a fork for `Entity.resume`, which goes on without a new intent; `resume` does both.
        Any number of forks of one turn can live at once. Close the entity as any other; its worktree stays.

        Raises `TurnNotFound`, `LoomError` where the path to the turn is damaged, `SandboxError` where ``state`` cannot be
        had, `GitError` where no worktree can be.
        """
        from cantrip_acp.forking import fork

        where = loom if loom is not None else self.loom
        return await fork(self, turn_id, loom=where, state=state, entity_id=entity_id, worktree=worktree, resume=resume)

    async def resume(
        self,
        turn_id: str,
        *,
        cast: str | None = None,
        loom: Loom | None = None,
        state: State = "auto",
        entity_id: str | None = None,
        worktree: bool | str | PathLike[str] = False,
        **options: Any,
    ) -> CastResult:
        """One fork of a turn that continues its cast without a new message, to its end; the original is untouched.

        Its first query has the messages that the original entity sent after that turn (`resuming` says what comes after which
        turn). ``cast`` names the cast where several could be meant. See `fork` for the rest; ``options`` are those of
        `Entity.resume`.
        """
        entity = await self.fork(
            turn_id, loom=loom, state=state, entity_id=entity_id, worktree=worktree, resume=cast or True
        )
        async with entity:
            return await entity.resume(**options)

    async def resample(
        self,
        turn_id: str,
        samples: int | None = None,
        *,
        cast: str | None = None,
        concurrency: int = 4,
        loom: Loom | None = None,
        state: State = "auto",
        worktree: bool | str | PathLike[str] = False,
    ) -> ForkGroup:
        """Several samples of one state: forks of a turn that each continue its cast without a new message; 4 by default.

        They are a group, as those of `fork_group` are. See `resume` and `fork_group`.
        """
        from cantrip_acp.forkgroup import SAMPLES, fork_group

        return await fork_group(
            [self] * (SAMPLES if samples is None else samples),
            turn_id,
            None,
            loom=loom if loom is not None else self.loom,
            concurrency=concurrency,
            state=state,
            worktree=worktree,
            resume=cast or True,
        )

    async def fork_group(
        self,
        turn_id: str,
        intent: str | Sequence[str],
        *,
        samples: int | None = None,
        concurrency: int = 4,
        loom: Loom | None = None,
        state: State = "auto",
        worktree: bool | str | PathLike[str] = False,
    ) -> ForkGroup:
        """Several forks of one turn, cast side by side: the group that comparative methods judge (LOOM-4).

        Each gets ``intent``, or its own where they are several; ``samples`` is how many there are, 4 of one intent where it
        is left out. Results come in order, and what fails is that fork's alone; all carry the group's id in the loom.
        With a path as ``worktree`` each fork gets a numbered folder in it. See `fork` for the rest and for what is raised.
        """
        from cantrip_acp.forkgroup import SAMPLES, fork_group

        intents = [intent] * (SAMPLES if samples is None else samples) if isinstance(intent, str) else list(intent)
        if samples is not None and samples != len(intents):
            raise DefinitionError(
                f"{samples} samples and {len(intents)} intents: leave samples out, or give one intent"
            )
        where = loom if loom is not None else self.loom
        return await fork_group(
            [self] * len(intents),
            turn_id,
            intents,
            loom=where,
            concurrency=concurrency,
            state=state,
            worktree=worktree,
        )

    async def cast(self, intent: str, **options: Any) -> CastResult:
        """One entity, one intent, one result; then the entity is gone and its thread stays (ENTITY-4).

        ``options`` are those of `Entity.cast`.
        """
        async with self.invoke() as entity:
            return await entity.cast(intent, **options)

    @asynccontextmanager
    async def cast_stream(self, intent: str, **options: Any) -> AsyncIterator[CastStream]:
        """One cast as a stream of events; leaving the block early cancels it. See `Entity.stream`."""
        async with self.invoke() as entity, entity.stream(intent, **options) as stream:
            yield stream

    async def cast_batch(
        self, intents: Sequence[str], *, concurrency: int = 8, **options: Any
    ) -> list[CastResult | Exception]:
        """Many casts, at most ``concurrency`` at once; results in the order of the intents.

        One cast's failure is that place's exception and hurts no other. Every cast is an entity of its own (CANTRIP-2).
        """
        results: list[CastResult | Exception | None] = [None] * len(intents)
        limiter = anyio.CapacityLimiter(max(1, concurrency))

        async def one(index: int, intent: str) -> None:
            from cantrip_acp.errors import CantripError

            async with limiter:
                try:
                    results[index] = await self.cast(intent, **options)
                except CantripError as error:
                    results[index] = error

        async with anyio.create_task_group() as group:
            for index, intent in enumerate(intents):
                group.start_soon(one, index, intent)
        return typed("list[CastResult | Exception]", results)

    def cast_sync(self, intent: str, **options: Any) -> CastResult:
        """`cast` for scripts that have no event loop. Raises RuntimeError inside a running one."""
        from functools import partial

        return anyio.run(partial(self.cast, intent, **options))


def _validate(circle: Circle, require_done: bool) -> None:
    if "done" not in circle.gates:
        if require_done:
            raise DefinitionError("cantrip with require_done must have a done gate: add 'done' to the circle's gates")
        raise DefinitionError("circle must have a done gate: add 'done' to its gates (CIRCLE-1)")
    if "answer" not in circle.gates["done"].properties and not circle.gates["done"].properties:
        raise DefinitionError("the done gate must accept at least one argument, the answer (CIRCLE-8)")
    if circle.wards.max_turns is None:
        raise DefinitionError(
            "cantrip must have at least one truncation ward: add max_turns to the circle's wards, "
            "such as {max_turns: 10} (CIRCLE-2, LOOP-2)"
        )


__all__ = ["Cantrip", "CastResult"]
