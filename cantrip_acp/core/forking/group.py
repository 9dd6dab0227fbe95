"""Fork groups: several forks of one turn, cast concurrently, to compare their results (LOOM-4).

Each fork is an entity with its own thread. Their records in the loom share a group id, so that programs that compare,
rank or export can find them. A failure affects only its own fork.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from cantrip_acp.core.casting.result import ForkGroup, Sample
from cantrip_acp.core.forking.fork import fork
from cantrip_acp.core.history.continuation import find_point
from cantrip_acp.loom.query.history import casts_of
from cantrip_acp.loom.rewards import of_thread
from cantrip_acp.types.errors import CantripError, DefinitionError, IntentRequired
from cantrip_acp.types.records import ForkRecord, new_id

if TYPE_CHECKING:
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.core.forking.fork import State
    from cantrip_acp.loom.loom import Loom

SAMPLES = 4
CONCURRENCY = 4


async def fork_group(
    cantrips: Sequence[CantripDefinition],
    turn_id: str,
    intents: Sequence[str] | None,
    *,
    loom: Loom,
    concurrency: int = CONCURRENCY,
    state: State = "snapshot",
    worktree: bool | str | os.PathLike[str] = False,
    group: str | None = None,
    ended: Callable[[Sample], None] | None = None,
    resume: bool | str = False,
    reference: Any = None,
) -> ForkGroup:
    """Fork a turn once for each of ``cantrips`` and cast each fork on the intent at that place, at most
    ``concurrency`` at once.

    ``reference`` is that of each cast (`Entity.cast`).
    With ``intents`` None each fork resumes without a new message; ``resume`` may then name the cast (`forking.fork`).
    ``worktree`` gives each fork a worktree: with True in the state folder, with a path in a numbered folder there.
    ``ended`` is called with each sample as it ends.
    Raises `TurnNotFound`, and `LoomError` if the turn itself cannot be continued.
    """
    if not cantrips or (intents is not None and len(cantrips) != len(intents)):
        raise DefinitionError(
            f"a group of forks needs an intent for each: {len(cantrips)} forks, {len(intents or ())} intents"
        )
    if any(not isinstance(intent, str) or not intent.strip() for intent in intents or ()):
        raise IntentRequired("intent is required: say what each fork is to do (INTENT-1)")
    if intents is None:
        # Decide on the cast now. Otherwise a turn of the first fork could change which cast the next fork continues.
        where = find_point(loom, turn_id, resume if isinstance(resume, str) else None)
        turn_id, resume = where.turn_id, where.cast.id
    casts_of(loom, turn_id)
    name = group or new_id("g")
    samples: list[Sample | None] = [None] * len(cantrips)
    limiter = anyio.CapacityLimiter(max(1, concurrency))

    async def one(number: int) -> None:
        entity_id = new_id("e")
        where = worktree if isinstance(worktree, bool) else Path(worktree) / str(number + 1)
        async with limiter:
            result, error = None, None
            try:
                entity = await fork(
                    cantrips[number],
                    turn_id,
                    loom=loom,
                    state=state,
                    entity_id=entity_id,
                    worktree=where,
                    group=name,
                    resume=resume if intents is None else False,
                )
                async with entity:
                    result = await (
                        entity.resume() if intents is None else entity.cast(intents[number], reference=reference)
                    )
            except (CantripError, OSError) as failure:
                error = failure
        record = loom.fork_of(entity_id)
        place = record.worktree if isinstance(record, ForkRecord) and isinstance(record.worktree, str) else None
        leaf = None if result is None else loom.last_turn(entity_id)
        reward = None if leaf is None else of_thread(loom, leaf)
        samples[number] = sample = Sample(number, entity_id, result, error, place, reward)
        if ended is not None:
            ended(sample)

    async with anyio.create_task_group() as tasks:
        for number in range(len(cantrips)):
            tasks.start_soon(one, number)
    return ForkGroup(name, turn_id, tuple(sample for sample in samples if sample is not None))
