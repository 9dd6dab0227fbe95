"""Cantrips: the public class, which makes entities of a definition, casts them and forks them (§1.4)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from typing import cast as typed

import anyio

from cantrip_acp.core.casting.cast_control import CastStream
from cantrip_acp.core.casting.result import CastResult, ForkGroup
from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
from cantrip_acp.core.entity import Entity, check_new
from cantrip_acp.core.errors import CantripError, DefinitionError

if TYPE_CHECKING:
    from os import PathLike

    from cantrip_acp.core.forking.fork import State
    from cantrip_acp.loom.loom import Loom


class Cantrip(CantripDefinition):
    """A crystal, a call and a circle together. It is a value that can be cast any number of times.

    Its arguments are those of `CantripDefinition`.

        >>> from cantrip_acp import Cantrip, Circle, ScriptedCrystal
        >>> spell = Cantrip(
        ...     ScriptedCrystal([{"tool_calls": [{"gate": "done", "args": {"answer": "hello"}}]}]),
        ...     circle=Circle(gates=["done"], wards=[{"max_turns": 3}]),
        ... )
        >>> spell.cast_sync("Say hello.").result
        'hello'
    """

    __slots__ = ()

    def invoke(self, *, loom: Loom | None = None, entity_id: str | None = None) -> Entity:
        """Make a persistent entity, independent of all others (ENTITY-6). It acts when it gets its first intent.

        ``entity_id`` must be new to the loom. Raises `EntityExists` if the loom has it or a live entity uses it.
        """
        where = loom if loom is not None else self.loom
        check_new(where, entity_id)
        return Entity(self, where, entity_id=entity_id)

    async def fork(
        self,
        turn_id: str,
        *,
        loom: Loom | None = None,
        state: State = "snapshot",
        entity_id: str | None = None,
        worktree: bool | str | PathLike[str] = False,
        resume: bool | str = False,
        live: Entity | None = None,
    ) -> Entity:
        """Make an entity that continues from any turn of a loom, with the whole history up to it (LOOM-4).

        The original does not change.

        ``loom`` defaults to the cantrip's own.
        ``state`` says how to restore a code medium's variables: ``snapshot`` (raises `SandboxError` if there is
        none), ``replay``, ``auto`` (a snapshot, otherwise replay) or ``none``.
        With ``worktree`` the fork works in its own git worktree, with the files as they were recorded at that turn
        (unless ``loom: {files: false}``). True puts the worktree in the state folder; a path names a folder that does not
        exist yet.
        ``live`` is the entity that the turn belongs to, if it still exists: the state of its last turn is then its own.
        ``resume`` makes a fork for `Entity.resume`, which continues without a new intent. The method `resume` does
        both steps.
        Any number of forks of one turn can exist at once. Close the fork like any other entity; its worktree stays.

        Raises `TurnNotFound`, `LoomError` if the path to the turn is damaged, `SandboxError` where ``state``
        cannot be restored, `GitError` if the worktree cannot be made.
        """
        from cantrip_acp.core.forking.fork import fork

        where = loom if loom is not None else self.loom
        return await fork(
            self, turn_id, loom=where, state=state, live=live, entity_id=entity_id, worktree=worktree, resume=resume
        )

    async def resume(
        self,
        turn_id: str,
        *,
        cast: str | None = None,
        loom: Loom | None = None,
        state: State = "snapshot",
        entity_id: str | None = None,
        worktree: bool | str | PathLike[str] = False,
        **options: Any,
    ) -> CastResult:
        """Fork a turn and continue its cast to the end without a new message. The original does not change.

        Its first query has the messages that the original entity sent after that turn (`forking.continuation` says
        what follows which turn). ``cast`` names the cast if there are several. See `fork` for the other arguments;
        ``options`` are those of `Entity.resume`.
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
        state: State = "snapshot",
        worktree: bool | str | PathLike[str] = False,
    ) -> ForkGroup:
        """Several samples of one state: each fork continues the cast of the turn without a new message.

        Makes 4 by default.

        The result is a group, as from `fork_group`. See `resume` and `fork_group`.
        """
        from cantrip_acp.core.forking.group import SAMPLES, fork_group

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
        state: State = "snapshot",
        worktree: bool | str | PathLike[str] = False,
        reference: Any = None,
    ) -> ForkGroup:
        """Fork one turn several times and cast the forks concurrently.

        Methods that compare answers judge such a group (LOOM-4).

        One ``intent`` goes to every fork; a sequence gives each fork its own. ``samples`` is the number of forks, by
        default 4 for one intent. ``reference`` is that of each cast (`Entity.cast`).
        Results are in order. A failure affects only its own fork. All forks have the group's id in the loom.
        If ``worktree`` is a path, each fork gets a numbered folder in it. See `fork` for the other arguments and
        errors.
        """
        from cantrip_acp.core.forking.group import SAMPLES, fork_group

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
            reference=reference,
        )

    async def cast(self, intent: str, **options: Any) -> CastResult:
        """Cast one intent with a new entity, then close the entity. Its thread stays in the loom (ENTITY-4).

        ``options`` are those of `Entity.cast`.
        """
        async with self.invoke() as entity:
            return await entity.cast(intent, **options)

    @asynccontextmanager
    async def cast_stream(self, intent: str, **options: Any) -> AsyncIterator[CastStream]:
        """Run one cast as a stream of events. Leaving the block early cancels the cast. See `Entity.stream`."""
        async with self.invoke() as entity, entity.stream(intent, **options) as stream:
            yield stream

    async def cast_batch(
        self, intents: Sequence[str], *, references: Sequence[Any] = (), concurrency: int = 8, **options: Any
    ) -> list[CastResult | Exception]:
        """Run many casts, at most ``concurrency`` at once. Results are in the order of the intents.

        A cast that fails puts its exception in its place; the others go on. Every cast has its own entity
        (CANTRIP-2). ``references`` are the expected answers, one for each intent, or none.
        """
        if references and len(references) != len(intents):
            raise DefinitionError(
                f"{len(references)} references for {len(intents)} intents: give one for each, or none"
            )
        results: list[CastResult | Exception | None] = [None] * len(intents)
        limiter = anyio.CapacityLimiter(max(1, concurrency))

        async def one(index: int, intent: str) -> None:
            own = {**options, "reference": references[index]} if references else options
            async with limiter:
                try:
                    results[index] = await self.cast(intent, **own)
                except CantripError as error:
                    results[index] = error

        async with anyio.create_task_group() as group:
            for index, intent in enumerate(intents):
                group.start_soon(one, index, intent)
        return typed("list[CastResult | Exception]", results)

    def cast_sync(self, intent: str, **options: Any) -> CastResult:
        """`cast` for scripts without an event loop. Raises RuntimeError inside a running event loop."""
        return anyio.run(partial(self.cast, intent, **options))
