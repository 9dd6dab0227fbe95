"""`cantrip loom fork --samples`: run several forks of one turn at a time and print a line when each one ends."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import anyio
import click

from cantrip_acp.cli.app import DONE, FAILED, INTERRUPTED
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.session.loop_thread import SIGNALS

if TYPE_CHECKING:
    from cantrip_acp.cli.session.setup import Opening
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.forking.fork import State
    from cantrip_acp.core.result import ForkGroup, Sample
    from cantrip_acp.loom.loom import Loom


def run_group(
    opening: Opening,
    origin: str,
    intent: str | None,
    *,
    group: str,
    samples: int,
    concurrency: int,
    state: State,
    worktree: bool | str,
    as_json: bool,
    cast_id: str | None = None,
) -> int:
    """Fork a turn ``samples`` times, cast each fork on the intent (None: resume the cast), and return the exit status.
    0 if every cast terminated, 130 if a signal stopped them, else 1.
    """
    loom = opening.loom
    face = _JsonLines(group, origin, loom) if as_json else _Lines(group, origin, samples, loom)
    cantrips = _cantrips(opening, samples)
    intents = None if intent is None else [intent] * samples
    made = anyio.run(_cast, cantrips, loom, origin, intents, group, concurrency, state, worktree, face, cast_id)
    if made is None:
        face.stopped()
        return INTERRUPTED
    face.ended(made)
    done = all(sample.result is not None and sample.result.terminated for sample in made.samples)
    return DONE if done else FAILED


def _cantrips(opening: Opening, samples: int) -> list[Cantrip]:
    """The cantrip for each fork. A scripted crystal starts at its beginning in each fork, as in a cast alone."""
    from cantrip_acp.crystals.scripted import ScriptedCrystal
    from cantrip_acp.recipes.build.crystals import crystal_for

    first = opening.cantrip
    if not isinstance(first.crystal, ScriptedCrystal):
        return [first] * samples
    return [first, *(first.with_crystal(crystal_for(opening.recipe)) for _ in range(samples - 1))]


async def _cast(
    cantrips: list[Cantrip],
    loom: Loom,
    origin: str,
    intents: list[str] | None,
    group: str,
    concurrency: int,
    state: State,
    worktree: bool | str,
    face: _Lines | _JsonLines,
    cast_id: str | None,
) -> ForkGroup | None:
    """Run the group. Returns None if a signal stopped it; the loom then holds what had happened."""
    from cantrip_acp.core.forking.group import fork_group

    made: ForkGroup | None = None
    async with anyio.create_task_group() as tasks:

        async def on_signal() -> None:
            with anyio.open_signal_receiver(*(signal.Signals(number) for number in SIGNALS)) as received:
                async for _ in received:
                    tasks.cancel_scope.cancel()

        tasks.start_soon(on_signal)
        made = await fork_group(
            cantrips,
            origin,
            intents,
            loom=loom,
            concurrency=concurrency,
            state=state,
            worktree=worktree,
            group=group,
            ended=face.sample,
            resume=cast_id or True,
        )
        tasks.cancel_scope.cancel()
    return made


class _Lines:
    """Output for people."""

    def __init__(self, group: str, origin: str, samples: int, loom: Loom) -> None:
        self._screen = screen = Screen()
        self._loom = loom
        screen.line((f"group {group}", "bold"), (f" {screen.marks.dot} {samples} forks of {origin}", "dim"))

    def sample(self, sample: Sample) -> None:
        screen, result = self._screen, sample.result
        dot, number = f" {screen.marks.dot} ", f"{sample.number + 1}"
        if result is None:
            screen.line((f"{screen.marks.failed} {number}", "red"), (f"{dot}{sample.entity_id}", "dim"))
            screen.line((str(sample.error), "red"), indent=2)
        else:
            mark, style = (screen.marks.done, "green") if result.terminated else (screen.marks.stop, "yellow")
            turns = f"{result.turns} turn{'' if result.turns == 1 else 's'}"
            screen.line((f"{mark} {number}", style), (dot.join(("", sample.entity_id, result.reason, turns)), "dim"))
            text = result.result if isinstance(result.result, str) else json.dumps(result.result, default=str)
            if result.terminated:
                screen.line(text, indent=2)
        if sample.worktree is not None:
            screen.line((f"worktree {sample.worktree}", "dim"), indent=2)

    def ended(self, made: ForkGroup) -> None:
        screen = self._screen
        done = sum(sample.result is not None and sample.result.terminated for sample in made.samples)
        screen.line(f"{done} of {len(made.samples)} done")
        if self._loom.location is not None:
            screen.line((f"compare them: cantrip loom compare {self._loom.location}", "dim"))
        if any(sample.worktree is not None for sample in made.samples):
            screen.line(("a worktree stays until you remove it: git worktree remove --force DIR", "dim"))

    def stopped(self) -> None:
        self._screen.line((f"{self._screen.marks.stop} stopped; what had happened is in the loom", "yellow"))


class _JsonLines:
    """Output for programs: a JSON object when each fork ends, and one for the group."""

    def __init__(self, group: str, origin: str, loom: Loom) -> None:
        self._about: dict[str, Any] = {"group": group, "from_turn": origin, "loom": loom.location}

    def sample(self, sample: Sample) -> None:
        outcome = sample.result.record() if sample.result is not None else {"entity_id": sample.entity_id}
        error = None if sample.error is None else str(sample.error)
        self._put({"event": "fork", "number": sample.number, **outcome, "error": error, "worktree": sample.worktree})

    def ended(self, made: ForkGroup) -> None:
        self._put({"event": "group", "forks": [sample.entity_id for sample in made.samples], "stopped": False})

    def stopped(self) -> None:
        self._put({"event": "group", "stopped": True})

    def _put(self, data: dict[str, Any]) -> None:
        click.echo(json.dumps(data | self._about, default=str))
