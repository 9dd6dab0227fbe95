"""One attempt at a task: a fresh repository, one cast of the recipe in it, and what came of it."""

from __future__ import annotations

import json
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

from bench.evals.grading import grade
from bench.evals.task import Task
from cantrip_acp import Loom
from cantrip_acp.core.errors import CantripError
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.gates.contract import as_text
from cantrip_acp.loom.records.turn import Turn
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build import build


@dataclass(frozen=True, slots=True)
class Attempt:
    """What an attempt took and what became of it. ``cost`` is in US dollars; None is unknown."""

    task: str
    kind: str
    crystal: str
    passed: bool
    wrong: tuple[str, ...]
    reason: str
    turns: int
    tokens_prompt: int | None
    tokens_completion: int | None
    tokens_cached: int | None
    cost: float | None
    seconds: float
    answer: str

    def record(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


async def attempt(task: Task, recipe: str, *, recorded: bool, seconds: float, keep: Path | None = None) -> Attempt:
    """Cast the recipe on the task; ``recorded`` plays the task's own session in place of the recipe's crystal.

    ``seconds`` is the longest that the cast may take; ``keep`` a folder for the loom, the answers and the files that are left.
    """
    with tempfile.TemporaryDirectory(prefix="cantrip-eval-") as folder:
        base = Path(folder)
        workspace = base / task.name
        task.lay(workspace)
        loom = Loom.memory() if keep is None else Loom.open(_place(keep, task) / "session.loom.jsonl")
        found = load(recipe, workspace, state_dir=base / "state")
        cantrip = build.build(found, workspace=workspace, crystal=_recorded(task) if recorded else None, loom=loom)
        began = time.monotonic()
        reason, answer, turns, usage = "error", "", 0, None
        try:
            with anyio.move_on_after(seconds) as limit:
                result = await cantrip.cast(task.intent)
                reason, answer, turns, usage = result.reason, as_text(result.result or ""), result.turns, result.usage
            if limit.cancelled_caught:
                reason = "max_seconds"
        except CantripError as error:
            reason = f"error: {' '.join(str(error).split())[:200]}"
        took = time.monotonic() - began
        graded = await grade(task, workspace, answer, base)
        if keep is not None:
            _keep(_place(keep, task), workspace, loom)
        loom.close()
        return Attempt(
            task=task.name,
            kind=task.kind,
            crystal=cantrip.crystal.model,
            passed=graded.passed,
            wrong=graded.wrong,
            reason=reason,
            turns=turns,
            tokens_prompt=usage.prompt_tokens if usage else 0,
            tokens_completion=usage.completion_tokens if usage else 0,
            tokens_cached=usage.cached_tokens if usage else 0,
            cost=usage.cost if usage else None,
            seconds=took,
            answer=answer,
        )


def _recorded(task: Task) -> Crystal:
    from cantrip_acp import ScriptedCrystal

    if not task.recorded:
        raise ValueError(f"{task.name} has no recorded session; name a crystal with --crystal")
    return ScriptedCrystal([dict(r) for r in task.recorded], children=[[dict(r) for r in c] for c in task.children])


def _place(keep: Path, task: Task) -> Path:
    where, n = keep / task.name, 2
    while (where / "responses.json").exists():
        where, n = keep / f"{task.name}-{n}", n + 1
    where.mkdir(parents=True, exist_ok=True)
    return where


def _keep(where: Path, workspace: Path, loom: Loom) -> None:
    """The files as they were left, and the entity's words as a script that plays them again."""
    import shutil

    shutil.copytree(workspace, where / "files", symlinks=True, dirs_exist_ok=True)
    said = [response(turn) for turn in loom.turns() if turn.role == "crystal" and turn.continues is None]
    (where / "responses.json").write_text(json.dumps(said, indent=1, ensure_ascii=False), encoding="utf-8")


def response(turn: Turn) -> dict[str, Any]:
    """A turn's words as a scripted crystal takes them."""
    said: dict[str, Any] = {}
    if turn.utterance.content:
        said["content"] = turn.utterance.content
    calls = []
    for call in turn.utterance.tool_calls:
        try:
            args = json.loads(call.args) if call.args.strip() else {}
        except ValueError:
            args = call.args
        calls.append({"id": call.id, "gate": call.gate, "args": args})
    if calls:
        said["tool_calls"] = calls
    return said or {"content": ""}
