"""What recording a cast in the substrate adds to its turns.

Two entities of one process take turns, cast by cast, in the same seconds: one whose recipe records its sessions, and one with
``memory: {record: false}``, which is the baseline. All else is the same: recipe, crystal, a durable JSON-lines loom.

- model: a turn as people have it: a real model is asked, and one sandboxed command (`true`) runs. The model is the smallest
  one, SmolLM2 with 135 million parameters on this machine, which answers with 32 tokens. Then the script says what to run. It
  needs `pip install .[embedded]` and `cantrip models pull smollm2`. This has the goal.
- bash, code: the same without a model: one sandboxed command (`true`), or one cell of a warm Python (`1 + 1`).
- gate: the harshest case, a turn of one call of `echo` in the conversation medium, without a sandbox and without a model.

The recorder is a thread, so its processor time shares the interpreter with the loop. Wall time is until the cast has ended;
processor time is until all of it is in the substrate, and has the agent's process with the commands that ended. What it adds
is a share of the same; with a model it is a share of the wall time, as the model's own work is in another process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import Any

import anyio

from bench.embedded import MODEL, end_servers
from bench.embedded import RECIPE as MODEL_RECIPE
from bench.loops import ROOT
from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp import Call, Cantrip, Entity, Loom, ScriptedCrystal
from cantrip_acp.crystals.contract import Crystal, Emit, Query, Response
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build import build
from cantrip_acp.recipes.build.crystals import crystal_for
from cantrip_acp.substrate.recorder import SessionRecorder
from cantrip_acp.types.messages import Message

CALLS: dict[str, dict[str, Any]] = {
    "model": {"content": "I look.", "bash": "true"},
    "bash": {"content": "I look.", "bash": "true"},
    "code": {"content": "I count.", "code": "1 + 1"},
    "gate": {"content": "I say it.", "tool_calls": [{"gate": "echo", "args": {"text": "the quick brown fox"}}]},
}
TURNS = {"model": 2, "bash": 20, "code": 50, "gate": 200}
"""Turns of one cast."""
LABELS = {
    "model": "bash turn of a real model",
    "bash": "bash turn (`true`)",
    "code": "code turn, warm (`1 + 1`)",
    "gate": "gate call, no sandbox",
}
_RECIPE = """\
crystal: {{provider: scripted, responses: []}}
circle: {{medium: {medium}, gates: [done, echo], wards: [{{max_turns: 1000}}]}}
memory: {{record: {record}}}
"""


def run(options: Options) -> Table:
    rows: list[Row] = []
    for kind in CALLS:
        if kind == "model" and not MODEL.pulled:
            print(f"  a real model is left out; get it with: cantrip models pull {MODEL.name}")
            continue
        samples = _samples(kind, options.rounds(20 if kind == "model" else 40))
        rows += _rows(kind, samples)
    return Table("recording", "what recording a cast in the substrate adds to a turn", tuple(rows))


def _samples(kind: str, rounds: int) -> dict[str, list[float]]:
    """One process's milliseconds a turn, a sample a cast."""
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as folder:
        environment = {
            **os.environ,
            "CANTRIP_SUBSTRATE": f"sqlite:{folder}/substrate.db",
            "CANTRIP_STATE_DIR": f"{folder}/state",
            "CANTRIP_CONFIG_DIR": f"{folder}/config",
            "XDG_RUNTIME_DIR": folder,
        }
        command = [sys.executable, "-m", "bench.recording", kind, str(rounds), folder]
        done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, check=True)
        end_servers(folder)
    found: dict[str, list[float]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _rows(kind: str, samples: dict[str, list[float]]) -> list[Row]:
    rows = []
    for what, said in (("wall", "wall time"), ("processor", "processor time")):
        off, on = samples[f"off {what}"], samples[f"on {what}"]
        # Of casts that followed each other: the machine's pace changes more than what is measured.
        whole = samples["off wall"] if kind == "model" else off
        shares = [100 * (after - before) / turn for before, after, turn in zip(off, on, whole, strict=True)]
        base = row(f"{LABELS[kind]}: {said}, not recorded", off, "ms")
        rows += [base, row(f"{LABELS[kind]}: {said}, recorded", on, "ms", baseline=base)]
        goal = {"goal": "<= 5 %", "reached": lambda r: r.median <= 5} if kind == "model" else {}
        share = " to the wall time" if whole is not off else ""
        rows.append(row(f"{LABELS[kind]}: {said}, what it adds{share}", shares, "%", **goal))  # type: ignore[arg-type]
    behind = samples["behind"]
    rows.append(row(f"{LABELS[kind]}: from a cast's end until it is committed", behind, "ms"))
    return rows


async def _measure(kind: str, rounds: int, folder: Path) -> dict[str, list[float]]:
    workspace = folder / "workspace"
    workspace.mkdir()
    cast = [CALLS[kind]] * TURNS[kind] + [{"tool_calls": [{"gate": "done", "args": {"answer": "finished"}}]}]
    samples: dict[str, list[float]] = {}
    async with anyio.create_task_group() as entities:
        made = {name: _cantrip(kind, name, folder, workspace, cast * (rounds + 1)) for name in ("off", "on")}
        async with made["off"].invoke() as off, made["on"].invoke() as on:
            for number in range(rounds + 1):
                # Each is first as often as the other is.
                for name, entity in (("off", off), ("on", on))[:: 1 if number % 2 else -1]:
                    found = await _cast(entity, made[name], TURNS[kind])
                    for what, value in found.items() if number else ():
                        samples.setdefault(f"{name} {what}", []).append(value)
        entities.cancel_scope.cancel()
    samples["behind"] = samples.pop("on behind")
    return samples


def _cantrip(kind: str, name: str, folder: Path, workspace: Path, responses: list[dict[str, Any]]) -> Cantrip:
    recipe = folder / f"{name}.cantrip.yaml"
    medium = {"gate": "conversation", "model": "bash"}.get(kind, kind)
    recipe.write_text(_RECIPE.format(medium=medium, record=str(name == "on").lower()))
    loom = Loom.open(folder / f"{name}.loom.jsonl")
    crystal = (_Asked if kind == "model" else ScriptedCrystal)(responses)
    return build.build(load(recipe), workspace=workspace, crystal=crystal, loom=loom)


class _Asked(ScriptedCrystal):
    """Asks a real model, then answers by the script: so small a model calls no tools."""

    async def query(self, query: Query, emit: Emit) -> Response:
        async def ignore(delta: object) -> None: ...

        call = Call(max_tokens=32, temperature=0)
        await self.asked.query(Query([Message("user", "Write a long story.")], params=call), ignore)
        return await super().query(query, emit)

    @cached_property
    def asked(self) -> Crystal:
        with tempfile.NamedTemporaryFile("w", suffix=".cantrip.yaml") as recipe:
            # One thread, so that the agent does not wait for a processor.
            answering = "crystal: {provider: embedded, model: smollm2, threads: 1}"
            print(MODEL_RECIPE.replace("crystal: embedded", answering), file=recipe, flush=True)
            return crystal_for(load(Path(recipe.name)))


async def _cast(entity: Entity, cantrip: Cantrip, turns: int) -> dict[str, float]:
    """One cast: milliseconds a turn, and how many after its end its record is complete."""
    used, began = _processor(), time.perf_counter()
    result = await entity.cast("go")
    ended = time.perf_counter()
    if not result.terminated or result.turns != turns + 1:
        raise SystemExit(f"the cast ended with {result.reason} after {result.turns} turns")
    assert all(each.flush() for each in cantrip.contributors if isinstance(each, SessionRecorder))
    behind = time.perf_counter() - ended
    return {
        "wall": (ended - began) * 1000 / turns,
        "processor": (_processor() - used) * 1000 / turns,
        "behind": behind * 1000,
    }


def _processor() -> float:
    """Seconds of processor time of this process and of its children that ended."""
    times = os.times()
    return time.process_time() + times.children_user + times.children_system


if __name__ == "__main__":
    print(json.dumps(anyio.run(_measure, sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))))
