"""The training run: steps of rollout, export and update, with a state that survives the end of the process at any time.

The folder of a run contains:

    state.safetensors        everything needed to continue: LoRA weights, optimizer, step, settings, history
    adapter/                 the LoRA weights in the format of peft
    steps/0001/              the loom of each step and its token rows (not for the method ``sft``)
    teacher/                 the loom of the demonstrations that the method ``sft`` learns
    evaluations/0000/        the looms of the casts of held-out questions
    workspace/               the folder in which the casts work
    curve.html               the rewards so far

The state is replaced at once, after each step. A step that did not end is done again: its folder is deleted first. Which
questions a step has, and its random numbers, follow from the seed and the number of the step.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.files.folder import Folder
from cantrip_acp.files.paths import private
from cantrip_acp.loom.loom import Loom
from cantrip_acp.text.codecs import convert, json_decoder
from cantrip_acp.training.trainer.example import Example, Question, Settings
from cantrip_acp.training.trainer.history import Evaluation, Step, write_page
from cantrip_acp.training.trainer.rollouts import Rollout, compared, export, roll_out
from cantrip_acp.types.errors import CantripError, DefinitionError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cantrip_acp.training.trainer.learner import Learner, TokenRow, Update
    from cantrip_acp.training.trainer.model import Model
    from cantrip_acp.training.trainer.sampler import Sampler
    from cantrip_acp.training.trainer.sampling_server import SamplerServer

STATE = "state.safetensors"
_FORMAT = 1


class Run:
    """A run in its folder. `train` begins it or continues it."""

    def __init__(self, example: Example, settings: Settings, cantrip: Cantrip, folder: Path) -> None:
        """Raises `DefinitionError` if the folder has a run with other settings (other than the number of steps)."""
        if cantrip.call.temperature not in (None, 1.0) or cantrip.call.top_p not in (None, 1.0):
            raise DefinitionError(
                "the recipe's temperature and top_p must be 1: the learner needs what was sampled",
                where=str(example.recipe),
            )
        if cantrip.call.seed is not None:
            raise DefinitionError(
                "the recipe must not set call.seed: all samples of a question would be equal", where=str(example.recipe)
            )
        if settings.method == "grpo" and settings.groups > len(example.train):
            raise DefinitionError(
                f"groups is {settings.groups}, but train.jsonl has {len(example.train)} questions",
                where=str(example.folder),
            )
        self.example = example
        self.settings = settings
        self.folder = private(folder)
        self.device = ""
        """Where the model is computed and in which type of number, such as "cuda, bfloat16"; "" before it is loaded."""
        self.changed: list[str] = []
        """The files of the example that have changed since the last save."""
        self._files = _files(example.folder)
        self._cantrip = cantrip
        self.history, self._saved = self._load()

    async def train(self, progress: Callable[[Step], None]) -> list[Step]:
        """Train until the run has ``settings.steps`` steps. ``progress`` gets each step that ended.

        Raises `CantripError` if another process trains in this folder.
        """
        with (
            Folder.top(self.folder) as folder,
            os.fdopen(folder.open_file("lock", os.O_RDWR | os.O_CREAT), "r+") as lock,
        ):
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise CantripError(f"another process trains in {self.folder}; wait for it or stop it") from None
            # Another process may have trained since.
            self.history, self._saved = self._load()
            return await self._train(progress)

    async def _train(self, progress: Callable[[Step], None]) -> list[Step]:
        if len(self.history) > self.settings.steps:
            return self.history
        async with self._serving() as (sampler, server, learner):
            crystal = server.crystal()
            taught = await self._taught(sampler) if self.settings.method == "sft" else []
            for number in range(len(self.history), self.settings.steps + 1):
                step = await self._step(number, sampler, server, learner, crystal, taught)
                self.history.append(step)
                start = time.perf_counter()
                write_page(self.folder / "curve.html", self.example.folder.name, self.history, self.settings)
                await sampler.run(partial(self._save, learner=learner))
                step.times["save"] = time.perf_counter() - start
                progress(step)
        return self.history

    async def _step(
        self,
        number: int,
        sampler: Sampler,
        server: SamplerServer,
        learner: Learner,
        crystal: Any,
        taught: Sequence[TokenRow],
    ) -> Step:
        settings = self.settings
        times: dict[str, float] = {}
        rollout, update, tokens = None, {}, 0
        learner.begin(number, settings.steps)
        if number > 0 and settings.method == "sft":
            count = min(settings.groups * settings.samples, len(taught))
            rows = random.Random(f"{settings.seed}-{number}").sample(taught, count)
            start = time.perf_counter()
            update = asdict(await sampler.run(lambda _: learner.imitate(rows)))
            times["update"] = time.perf_counter() - start
        elif number > 0:
            await _prepare(sampler, server, settings.seed * 1_000_003 + number, f"step-{number - 1}")
            questions = self.example.draw(settings.groups, random.Random(f"{settings.seed}-{number}"))
            place = _empty(self.folder / "steps" / f"{number:04}")
            decoded, sampled, used, start = sampler.busy_s, sampler.tokens, time.thread_time(), time.perf_counter()
            with Loom.open(place / "loom.jsonl") as loom:
                rollout = await self._cast(loom, crystal, questions, settings.samples)
                times |= {"rollout": time.perf_counter() - start, "decode": sampler.busy_s - decoded}
                times["cantrip"] = time.thread_time() - used
                tokens = sampler.tokens - sampled
                start = time.perf_counter()
                export(loom, place / "tokens.jsonl")
                rows = compared(read_rows(place / "tokens.jsonl"), loom, questions)
            times["export"] = time.perf_counter() - start
            start = time.perf_counter()
            update = asdict(await sampler.run(partial(_update, learner=learner, rows=rows)))
            times["update"] = time.perf_counter() - start
        evaluation = None
        if number % settings.eval_every == 0 or number == settings.steps:
            start = time.perf_counter()
            evaluation = await self._evaluate(number, sampler, server, crystal)
            times["evaluation"] = time.perf_counter() - start
        if rollout is None:
            return Step(number, update=update, times=times, held_out=evaluation)
        return Step(
            number, rollout.reward, rollout.right, rollout.casts, rollout.failed, tokens, update, times, evaluation
        )

    async def _evaluate(self, number: int, sampler: Sampler, server: SamplerServer, crystal: Any) -> Evaluation:
        # Every evaluation has the same questions and begins with the same random numbers.
        await _prepare(sampler, server, self.settings.seed, f"step-{number}")
        questions = self.example.held_out[: self.settings.held_out]
        start = time.perf_counter()
        with Loom.open(_empty(self.folder / "evaluations" / f"{number:04}") / "loom.jsonl") as loom:
            found = await self._cast(loom, crystal, questions, 1)
        return Evaluation(found.reward, found.right, found.casts, time.perf_counter() - start)

    async def _cast(self, loom: Loom, crystal: Any, questions: Sequence[Question], samples: int) -> Rollout:
        # Demonstrations that are learned are not shown as well.
        shown = self.example.demonstrations if self.settings.method == "grpo" else []
        return await roll_out(self._cantrip, crystal, loom, questions, shown, samples=samples)

    async def _taught(self, sampler: Sampler) -> list[TokenRow]:
        """The casts from which the method ``sft`` learns. Raises `DefinitionError` if no thread has enough reward."""
        from cantrip_acp.training.trainer import supervised

        files = supervised.looms(self.example)
        if not files:
            files = [_empty(self.folder / "teacher") / "loom.jsonl"]
            with Loom.open(files[0]) as loom:
                await supervised.play(self._cantrip, loom, self.example.demonstrations)
        rows: list[TokenRow] = []
        for file in files:
            with Loom.open(file, readonly=True) as loom:
                rows += await sampler.run(
                    lambda model: list(supervised.rows_of(loom, model, least_reward=self.settings.least_reward))
                )
        if not rows:
            raise DefinitionError(
                f"no thread has a reward of at least {self.settings.least_reward:g}: {', '.join(map(str, files))}",
                where=str(self.example.folder),
            )
        return rows

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[tuple[Sampler, SamplerServer, Learner]]:
        """Serve the model with the last saved weights."""
        from cantrip_acp.training.trainer.learner import Learner
        from cantrip_acp.training.trainer.model import Model
        from cantrip_acp.training.trainer.sampler import Sampler
        from cantrip_acp.training.trainer.sampling_server import SamplerServer

        settings = self.settings

        def load() -> Model:
            return Model(
                settings.model, self.example.folder, rank=settings.rank, alpha=settings.alpha, seed=settings.seed
            )

        def prepare(model: Model) -> Learner:
            self.device = f"{model.device.type}, {str(model.dtype).removeprefix('torch.')}"
            learner = Learner(
                model,
                learning_rate=settings.learning_rate,
                clip=settings.clip,
                entropy=settings.entropy,
                scale_rewards=settings.scale_rewards,
            )
            if self._saved:
                learner.load(self._saved)
            return learner

        with closing(Sampler(load)) as sampler:
            learner = await sampler.run(prepare)
            server = SamplerServer(sampler, settings.model.rpartition(":")[2].rpartition("/")[2])
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(server.serve)
                try:
                    yield sampler, server, learner
                finally:
                    server.stop()

    def _load(self) -> tuple[list[Step], Mapping[str, Any]]:
        """The steps so far, and the tensors of the last save; none before the first."""
        file = self.folder / STATE
        if not file.exists():
            return [], {}
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(file, framework="pt") as found:
                about = json.loads(found.metadata()["run"])
                # A copy of each: the file will be replaced.
                tensors = {name: found.get_tensor(name).clone() for name in found.keys()}  # noqa: SIM118
        except (SafetensorError, KeyError, TypeError, ValueError) as error:
            raise CantripError(f"{file} is damaged: {error}; delete it to start again from the beginning") from None
        present = {**_plain(Settings()), **about["settings"], "example": about["example"]}
        wanted = {**_plain(self.settings), "example": self._identity()}
        differences = [name for name in wanted if name != "steps" and present.get(name) != wanted[name]]
        if about["format"] != _FORMAT or differences:
            raise DefinitionError(
                f"{self.folder} has a run with another {', '.join(differences) or 'format'}; choose another folder with --out"
            )
        before, now = about.get("files", self._files), self._files
        self.changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
        return convert(about["history"], list[Step]), tensors

    def _save(self, model: Model, learner: Learner) -> None:
        from safetensors.torch import save

        about = {
            "format": _FORMAT,
            "example": self._identity(),
            "files": self._files,
            "settings": _plain(self.settings),
            "history": msgspec.to_builtins(self.history),
        }
        data = save(learner.tensors(), metadata={"run": json.dumps(about)})
        new = self.folder / f"{STATE}.new"
        with Folder.top(self.folder) as folder:
            folder.replace(new.name, data)
        # Before the state: a run that has all its steps saves nothing again.
        model.save(self.folder / "adapter")
        os.replace(new, self.folder / STATE)
        _sync(self.folder)

    def _identity(self) -> str:
        return str(self.example.folder.resolve())


def _files(folder: Path) -> dict[str, str]:
    """The files of an example, with a hash of each, without weights and looms."""
    files = sorted(each for each in folder.iterdir() if each.suffix in (".yaml", ".jsonl", ".py"))
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


def _plain(settings: Settings) -> dict[str, Any]:
    """Settings as JSON data, as in the state file."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(settings))
    return found


def read_rows(file: Path) -> list[TokenRow]:
    """The token rows of a file that `cantrip loom export --format tokens` wrote."""
    from cantrip_acp.training.trainer.learner import TokenRow

    with file.open("rb") as lines:
        return [json_decoder(TokenRow).decode(line) for line in lines]


def _update(_: Model, learner: Learner, rows: list[TokenRow]) -> Update:
    return learner.update(rows)


async def _prepare(sampler: Sampler, server: SamplerServer, seed: int, weights: str) -> None:
    await sampler.run(lambda _: sampler.seed(seed))
    server.forget(weights)


def _empty(folder: Path) -> Path:
    """Make a folder empty, by deleting the files of an unfinished step."""
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    return folder


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
