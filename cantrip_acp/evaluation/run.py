"""Runs a suite: samples of each task with each crystal, in a result folder that keeps them over an interruption.

The folder has ``samples.jsonl`` (a line for each sample that ended), ``looms/`` (one loom for each crystal, and one for verifiers),
``result.json`` and ``report.html``. A sample that ended is not run again, as long as task, recipe and crystal are the same.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.evaluation.grading import Grade, Left, grade, put
from cantrip_acp.evaluation.statistics import Cell, Comparison, Difference, cell, compare, differences
from cantrip_acp.evaluation.suite import Suite, Task
from cantrip_acp.files.folder import Folder
from cantrip_acp.files.temporary import TemporaryFolder
from cantrip_acp.gates.contract import as_text
from cantrip_acp.gates.web.named_hosts import NamedHosts
from cantrip_acp.git import run as git
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.output_file import output_file
from cantrip_acp.recipes.build import crystals
from cantrip_acp.recipes.build.build import build
from cantrip_acp.substrate.substrate import close_shared
from cantrip_acp.text.redaction import beginning
from cantrip_acp.text.storable import storable
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import CantripError, DefinitionError, LoomError
from cantrip_acp.types.records import now
from cantrip_acp.types.usage import NO_USAGE, Usage
from cantrip_acp.version import __version__

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.recipes.recipe import Recipe
    from cantrip_acp.types.records import Turn

RECIPE, RECORDED = "recipe", "recorded"
"""Words in the place of a crystal: that of the recipe, and the recorded session of each task."""
SAMPLES, RESULT, PAGE = "samples.jsonl", "result.json", "report.html"
_FORMAT = 1

Record = Mapping[str, Any]
"""A sample that ended, as a line of ``samples.jsonl``. Its ``outcome`` is passed, failed or error (not judged)."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The samples to run. ``budget_usd`` is the maximum cost of all samples. ``keep`` also keeps the files that they leave."""

    suite: Suite
    tasks: Sequence[Task]
    crystals: Sequence[str]
    samples: int
    jobs: int = 1
    budget_usd: float | None = None
    keep: bool = False
    hosts: Sequence[str] = ()

    def wanted(self) -> Iterator[tuple[Task, str, int]]:
        """The samples in order: first one of every task with every crystal, then the second ones."""
        for number in range(self.samples):
            for task in self.tasks:
                for crystal in self.crystals:
                    if crystal != RECORDED or task.recorded:
                        yield task, crystal, number


def key_of(task: Task, crystal: str, number: int, default: str | None = None) -> str:
    """The key of a sample: the same for the same work. ``default`` is the crystal of recipes that name none."""
    parts: list[Any] = [task.name, task.digest, task.recipe_digest, crystal, number]
    if crystal == RECORDED:
        parts += [task.recorded, task.children]
    elif crystal == RECIPE and "crystal" not in task.recipe.data:
        parts.append(default)
    return hashlib.sha256(json.dumps(parts, default=str).encode()).hexdigest()[:16]


class ResultFolder:
    """The folder of a result. One process writes it at a time.

    Raises `DefinitionError` if another process writes it, or if the folder has other files.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.is_dir() and not (path / SAMPLES).exists() and any(path.iterdir()):
            raise DefinitionError(
                "this folder has other files; name a new folder, or one with a result", where=str(path)
            )
        try:
            with Folder.of(path, make=True) as folder:
                for name in ("looms", "files"):
                    if folder.entry(name) is not None:
                        folder.beneath(name).close()
                self._file = folder.open_file(SAMPLES, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise DefinitionError(error.strerror or str(error), where=str(error.filename or path)) from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._file)
            raise DefinitionError("another process runs an evaluation into this folder", where=str(path)) from None
        self.records: dict[str, Record] = {}
        """The last record of each sample by its key."""
        with open(os.dup(self._file), "rb") as file:
            raw = file.read()
        whole = raw.rfind(b"\n") + 1
        # A process that was killed while it wrote leaves a part of a line.
        os.ftruncate(self._file, whole)
        for number, line in enumerate(raw[:whole].splitlines(), 1):
            try:
                record = json.loads(line)
                self.records[record["key"]] = record
            except (ValueError, KeyError, TypeError):
                os.close(self._file)
                raise DefinitionError("not a sample; remove this line", where=f"{path / SAMPLES}:{number}") from None
        self._looms: dict[str, Loom] = {}

    def add(self, record: Record) -> None:
        self.records[record["key"]] = record
        os.write(self._file, json.dumps(record, ensure_ascii=False).encode() + b"\n")

    def loom(self, name: str) -> Loom:
        """The loom of a crystal, or of verifiers."""
        if name not in self._looms:
            (self.path / "looms").mkdir(exist_ok=True)
            self._looms[name] = Loom.open(self.path / "looms" / f"{file_name(name)}.loom.jsonl")
        return self._looms[name]

    def close(self) -> None:
        for loom in self._looms.values():
            loom.close()
        os.close(self._file)


def file_name(name: str) -> str:
    """A name as part of a file's name. Different names have different file names."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.")[:60]
    return plain if plain == name else f"{plain}-{hashlib.sha256(name.encode()).hexdigest()[:6]}"


class Runner:
    """Runs the samples of a plan that have not ended. ``ended`` is called with each record."""

    def __init__(self, plan: Plan, folder: ResultFolder, ended: Callable[[Record], None]) -> None:
        self.plan = plan
        self.folder = folder
        self.running = 0
        self.budget_is_spent = False
        self._ended = ended
        wanted = list(plan.wanted())
        without = any(name == RECIPE and "crystal" not in task.recipe.data for task, name, _ in wanted)
        default = crystals.default_name() if without else None
        self._wanted = {key_of(*each, default): each for each in wanted}
        self._spent = sum(r["usage"]["cost"] or 0.0 for r in self.records())
        """The known cost of this plan in US dollars."""

    @property
    def planned(self) -> int:
        return len(self._wanted)

    def records(self) -> list[Record]:
        """The records of this plan, in its order."""
        return [self.folder.records[key] for key in self._wanted if key in self.folder.records]

    def waiting(self) -> list[tuple[Task, str, int]]:
        """The samples without a result. A sample that ended with an error is one of them, so it is run again."""
        return list(self._waiting().values())

    def _waiting(self) -> dict[str, tuple[Task, str, int]]:
        done = {r["key"] for r in self.records() if r["outcome"] != "error"}
        return {key: each for key, each in self._wanted.items() if key not in done}

    def cantrips(self) -> list[Cantrip]:
        """Each recipe, without a folder. Raises the errors of an unavailable crystal or verifier."""
        seen: dict[str, Cantrip] = {}
        checked = set()
        for task, crystal, _ in self._wanted.values():
            if (task.recipe_digest, crystal) not in checked:
                checked.add((task.recipe_digest, crystal))
                recipe = _for_sample(task.recipe, self.folder.path, task.seconds, self.plan.budget_usd)
                # The folder of a sample does not exist yet. Any other one gives the same gates.
                made = build(recipe, workspace=self.folder.path, crystal=_crystal(task, recipe, crystal))
                seen.setdefault(task.recipe_digest, made)
            if task.verifier is not None:
                crystals.crystal_for(task.verifier)
        return list(seen.values())

    async def run(self) -> None:
        """Run the waiting samples, at most ``jobs`` at once. After a cancel, finished samples stay."""
        waiting = iter(self._waiting().items())
        temporary = TemporaryFolder("cantrip-eval-")

        async def work(place: Path) -> None:
            for key, (task, crystal, number) in waiting:
                left = None if self.plan.budget_usd is None else self.plan.budget_usd - self._spent
                if left is not None and left <= 0:
                    self.budget_is_spent = True
                    return
                self.running += 1
                try:
                    record = {"key": key, **await self._sample(task, crystal, number, left, place)}
                finally:
                    self.running -= 1
                    place = _cleared(place)
                self.folder.add(record)
                self._spent += record["usage"]["cost"] or 0.0
                self._ended(record)

        try:
            async with anyio.create_task_group() as tasks:
                for number in range(self.plan.jobs):
                    tasks.start_soon(work, Path(temporary.path) / str(number))
        finally:
            temporary.close()

    async def _sample(self, task: Task, crystal: str, number: int, left: float | None, base: Path) -> Record:
        """Cast in a fresh folder below ``base``, and judge.

        Samples in a folder of the same path are casts of the same cantrip, so looms compare those of one task as a group.
        """
        workspace = base / "workspace"
        await anyio.to_thread.run_sync(lay, task, workspace)
        loom = self.folder.loom(crystal)
        recipe = _for_sample(task.recipe, base / "state", task.seconds, left)
        hosts = NamedHosts()
        hosts.allow(self.plan.hosts)
        hosts.add_from_text(task.intent)
        cantrip = build(recipe, workspace=workspace, crystal=_crystal(task, recipe, crystal), loom=loom).for_session(
            (), hosts
        )
        cast = _Cast(cantrip, task.reference)
        began = time.monotonic()
        state, error = None, None
        try:
            if task.foreign is None:
                await cast.ask(task.intent)
            else:
                state = await task.foreign.solve(cast.solve, cantrip.crystal.model)
        except LoomError:
            raise
        except CantripError as failure:
            error = str(failure)
        except Exception as failure:  # noqa: BLE001 - a solver is somebody else's code
            error = f"the solver failed: {type(failure).__name__}: {failure}"
        finally:
            await cast.close()
        seconds = time.monotonic() - began
        leaf = None if cast.entity is None else loom.last_turn(cast.entity.id)
        result = Grade(False, (), 0.0, error)
        if error is None:
            verifier = None
            if task.verifier is not None:
                verifier = build(task.verifier, workspace=base, loom=self.folder.loom("verifiers"))
            judged = Left(workspace, cast.answer, loom, leaf, base, verifier)
            result = await (grade(task, judged) if task.foreign is None else _scored(task, judged, state))
        if leaf is not None and result.error is None:
            note = beginning("; ".join(result.wrong), 2_000) or None
            loom.annotate_reward(
                leaf, result.score, by=f"eval:{self.plan.suite.name}", note=note, kind="shaped", grade=True
            )
        if self.plan.keep:
            self._keep(task, crystal, number, workspace, loom, cast)
        usage = cast.usage if result.usage is None else cast.usage + result.usage
        record = {
            "task": task.name,
            "kind": task.kind,
            "digest": task.digest,
            "crystal": crystal,
            "model": cantrip.crystal.model,
            "sample": number,
            "outcome": "error" if result.error is not None else "passed" if result.passed else "failed",
            "score": result.score,
            "wrong": list(result.wrong),
            "error": result.error,
            "answer": as_text("" if cast.answer is None else cast.answer),
            "reason": cast.reason,
            "turns": cast.turns,
            "seconds": round(seconds, 3),
            "usage": {"queries_without_usage": 0, "queries_without_cost": 0, **usage.record()},
            "loom": f"looms/{Path(loom.location or '').name}",
            "turn": leaf,
            "ended": now(),
        }
        kept: Record = storable(record, shapes=True)
        return kept

    def _keep(self, task: Task, crystal: str, number: int, workspace: Path, loom: Loom, cast: _Cast) -> None:
        """Keep the files that the entity left, and the entity's words as a script that replays them."""
        place = self.folder.path / "files" / file_name(crystal) / file_name(task.name) / str(number)
        shutil.rmtree(place, ignore_errors=True)
        # All that can be read: a pipe or a path that is too long must not end the evaluation.
        with suppress(shutil.Error):
            shutil.copytree(workspace, place / "files", symlinks=True)
        entity = cast.entity
        turns = [t for t in loom.turns() if entity is not None and t.entity_id == entity.id and t.role == "crystal"]
        said = [response(turn) for turn in turns if turn.continues is None]
        (place / "responses.json").write_text(json.dumps(said, indent=1, ensure_ascii=False), encoding="utf-8")


class _Cast:
    """The casts of one sample: one, or those that a foreign solver asks for."""

    def __init__(self, cantrip: Cantrip, reference: Any) -> None:
        self._cantrip = cantrip
        self._reference = reference
        self._closed = NO_USAGE
        self.entity: Entity | None = None
        self.answer: Any = None
        self.reason: str | None = None
        self.turns = 0

    @property
    def usage(self) -> Usage:
        return self._closed if self.entity is None else self._closed + self.entity.usage

    async def ask(self, intent: str, context: Sequence[ContextBlock] = ()) -> CastResult:
        if self.entity is None:
            self.entity = self._cantrip.invoke()
        self.reason = "error"
        result = await self.entity.cast(intent, context=context, reference=self._reference)
        self.answer, self.reason = result.result, result.reason
        self.turns += result.turns
        return result

    async def solve(self, system: str, messages: Sequence[tuple[str, str]], goes_on: bool) -> str:
        """See `inspect_tasks.Ask`."""
        if not goes_on or self.entity is None:
            before = self.entity
            if before is not None:
                await before.close()
                self._closed += before.usage
            call = self._cantrip.call
            prompt = "\n\n".join(part for part in (call.system_prompt or "", system) if part)
            self.entity = self._cantrip.replace(call=call.replace(system_prompt=prompt)).invoke()
        *earlier, last = messages or [("user", "")]
        text = "\n\n".join(f"{role}: {said}" for role, said in earlier)
        blocks = [ContextBlock(text, title="earlier messages")] if text else []
        return as_text((await self.ask(last[1], blocks)).result or "")

    async def close(self) -> None:
        if self.entity is not None:
            await self.entity.close()


async def _scored(task: Task, left: Left, state: Any) -> Grade:
    """The grade by the scorers of an Inspect task, or the rewards of a task of verifiers."""
    assert task.foreign is not None
    try:
        value, why = await task.foreign.score(state)
    except Exception as error:  # noqa: BLE001 - a scorer is somebody else's code
        return Grade(False, (), 0.0, f"not judged: {type(error).__name__}: {error}")
    passed = value >= task.pass_at
    wrong = () if passed else (f"the score is {value:g}, below {task.pass_at:g}" + (f": {why[:300]}" if why else ""),)
    return Grade(passed, wrong, value)


def _crystal(task: Task, recipe: Recipe, crystal: str) -> Crystal | None:
    """The crystal of a sample. None for the recipe's own. Its price must be known if the recipe limits the cost."""
    if crystal == RECORDED:
        return ScriptedCrystal([dict(r) for r in task.recorded], children=list(task.children))
    return None if crystal == RECIPE else crystals.crystal_named(crystal, recipe, "--crystal")


def _for_sample(recipe: Recipe, state: Path, seconds: float, left: float | None) -> Recipe:
    """The recipe with the limits of a sample. It reads nothing from other sessions and leaves nothing for them."""
    circle = recipe.data["circle"]
    limits = [{"max_seconds": seconds}, *([] if left is None else [{"max_cost_usd": left}])]
    alone = recipe.independent()
    data = {**alone.data, "circle": {**circle, "wards": [*circle["wards"], *limits]}, "loom": {"files": False}}
    return replace(alone, data=data, state_dir=state)


def _cleared(folder: Path) -> Path:
    """Delete a sample's folder. Returns the folder for the next sample: another path if something cannot be deleted."""
    close_shared(folder)
    shutil.rmtree(folder, ignore_errors=True)
    while folder.exists():
        folder = folder.with_name(f"{folder.name}-")
    return folder


def lay(task: Task, folder: Path) -> None:
    """Make the folder of a task: its files, in one commit of git."""
    folder.mkdir(parents=True)
    put(task.files, folder)
    if not task.files:
        return
    who = {f"GIT_{who}_{what}": "eval@example.org" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-qm", "The beginning"]):
        line = [git.executable(), *words]
        done = subprocess.run(line, cwd=folder, env=git.environment() | who, capture_output=True, check=False)
        if done.returncode:
            raise DefinitionError(
                f"git {words[0]} failed: {done.stderr.decode(errors='replace').strip()}", where=task.name
            )


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


# --- Results.


@dataclass(frozen=True)
class Result:
    """The records of a plan with their cells: for each crystal one of all tasks, and one of each task."""

    suite: str
    records: Sequence[Record]
    planned: int
    crystals: Sequence[str]
    tasks: Sequence[str]

    @cached_property
    def _groups(self) -> dict[tuple[str, str | None], list[Record]]:
        groups: dict[tuple[str, str | None], list[Record]] = {}
        for record in self.records:
            for task in (None, record["task"]):
                groups.setdefault((record["crystal"], task), []).append(record)
        return groups

    def of(self, crystal: str, task: str | None = None) -> list[Record]:
        """The records of a crystal, or of a task with it."""
        return self._groups.get((crystal, task), [])

    def cell(self, crystal: str, task: str | None = None) -> Cell:
        return cell(self.of(crystal, task))

    def data(self) -> dict[str, Any]:
        """As JSON: the content of ``result.json``."""
        return {
            "format": _FORMAT,
            "suite": self.suite,
            "version": __version__,
            "written": now(),
            "planned": self.planned,
            "ended": len(self.records),
            "crystals": {
                crystal: {
                    **asdict(self.cell(crystal)),
                    "tasks": {task: asdict(self.cell(crystal, task)) for task in self.tasks if self.of(crystal, task)},
                }
                for crystal in self.crystals
            },
            "samples": list(self.records),
        }


def result_of(runner: Runner) -> Result:
    """The result of the finished samples of a plan."""
    plan = runner.plan
    return Result(plan.suite.name, runner.records(), runner.planned, plan.crystals, [task.name for task in plan.tasks])


def write_result(result: Result, folder: Path, comparisons: Sequence[Comparison]) -> None:
    data = result.data() | ({"comparisons": [asdict(each) for each in comparisons]} if comparisons else {})
    if found := differing(result):
        data["differences"] = [asdict(each) for each in found]
    with output_file(folder / RESULT, mode=0o600) as file:
        file.write(json.dumps(data, indent=1, ensure_ascii=False).encode() + b"\n")


def read_baseline(path: Path) -> list[Record]:
    """The samples of an earlier result: its folder, or its ``result.json``. Raises `DefinitionError`."""
    file = path / RESULT if path.is_dir() else path
    try:
        data = json.loads(file.read_bytes())
        if data["format"] != _FORMAT:
            raise DefinitionError(f"has format {data['format']!r}; this version reads {_FORMAT}", where=str(file))
        return [
            {"score": float(each["score"]), **{key: str(each[key]) for key in ("crystal", "task", "digest", "outcome")}}
            for each in data["samples"]
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DefinitionError(f"is not a result of cantrip eval: {error!r}", where=str(file)) from None


def compared(result: Result, baseline: Sequence[Record], *, any_drop: bool) -> tuple[list[Comparison], list[str]]:
    """Compare with an earlier result. Also returns what could not be compared.

    A crystal is compared with the same one, or with the only one of the earlier result if there is only one here too. A task
    is compared if its question and its judging have not changed; the recipe may have.
    """
    found: list[Comparison] = []
    left_out: list[str] = []
    labels = list(dict.fromkeys(r["crystal"] for r in baseline))
    for crystal in result.crystals:
        other = crystal if crystal in labels else labels[0] if len(labels) == len(result.crystals) == 1 else None
        if other is None:
            left_out.append(f"{crystal}: not in the baseline (it has {', '.join(labels) or 'no samples'})")
            continue
        before, after = _judged(r for r in baseline if r["crystal"] == other), _judged(result.of(crystal))
        same = {
            task: group for task, group in before.items() if task in after and _digests(group) == _digests(after[task])
        }
        left_out += [f"{crystal}, {task}: new, or changed since the baseline" for task in after if task not in same]
        if gone := [task for task in before if task not in after]:
            left_out.append(f"{crystal}: tasks of the baseline without a judged sample in this run: {', '.join(gone)}")
        found += compare(crystal, other, same, {task: after[task] for task in same}, any_drop=any_drop)
    return found, left_out


def differing(result: Result) -> list[Difference]:
    """The differences between the crystals of a result, on the tasks that both were judged on."""
    return differences({crystal: _judged(result.of(crystal)) for crystal in result.crystals})


def _judged(records: Any) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record["outcome"] != "error":
            groups.setdefault(record["task"], []).append(record)
    return groups


def _digests(records: Sequence[Record]) -> set[str]:
    return {record["digest"] for record in records}


@contextmanager
def result_folder(path: Path) -> Iterator[ResultFolder]:
    """Open the folder of a result, and close it with its looms."""
    with closing(ResultFolder(path)) as folder:
        yield folder
