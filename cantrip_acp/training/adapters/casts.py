"""What the adapters share: casts of the questions of an example, each as one token sequence with its reward."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.errors import CantripError, DefinitionError
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.files.paths import private
from cantrip_acp.loom.loom import Loom
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.training.adapters.token_engine import Generate, TokenEngine
from cantrip_acp.training.export.registry import find
from cantrip_acp.training.export.selection import Source
from cantrip_acp.training.trainer.example import Example, Question
from cantrip_acp.training.trainer.rollouts import play
from cantrip_acp.training.trainer.server import SamplerServer


def not_installed(library: str, error: ImportError) -> ImportError:
    """The error of an adapter whose library cannot be imported. It says what to install."""
    return ImportError(f"{error}; install {library} with: pip install {library}")


@dataclass(frozen=True, slots=True)
class Sample:
    """A cast as a token sequence, in the words of a token row (`cantrip loom export --format tokens`).

    ``response_ids``, ``mask`` and ``logprobs`` have one length. A thread can be several sequences, such as after a fold:
    this is the last one, and ``rows`` has all. A cast of which no token is known has one padding token as its prompt and
    its response, with the mask 0, and no reward and no rows.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float | None
    turns: int = 0
    rows: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        """Whether the cast ended by itself. If not, a limit cut it off, or it failed."""
        return bool(self.rows) and self.rows[-1]["state"] == "terminated"


class Casts:
    """Casts the questions of an example with the model of a trainer.

    ``example`` is a folder, or an example of the package; named by its path, it is trusted: its scoring function runs in
    this process. ``looms`` is a folder that keeps a loom of each call of `sample`; without it, they are only in memory.
    At most ``concurrency`` casts run at once. Raises `DefinitionError` if the example is wrong.
    """

    def __init__(self, example: str | Path, *, looms: Path | None = None, concurrency: int = 64) -> None:
        self.example = Example.load(str(example))
        # The entity must not find the looms here: they contain the expected answers.
        self._workspace = tempfile.TemporaryDirectory(prefix="cantrip-casts-", ignore_cleanup_errors=True)
        place = Path(self._workspace.name)
        self.cantrip = build(load(self.example.recipe), workspace=place, crystal=ScriptedCrystal([]))
        self._looms = looms
        self._concurrency = concurrency
        self._known = {each.intent: each for each in (*self.example.held_out, *self.example.train)}

    def prompts(self, questions: Sequence[Question] | None = None) -> list[dict[str, Any]]:
        """The questions of the example (its training questions), as rows of a data set: ``prompt`` and ``reference``."""
        asked = self.example.train if questions is None else questions
        return [{"prompt": [{"role": "user", "content": q.intent}], "reference": q.reference} for q in asked]

    def question(self, prompt: str | Sequence[Mapping[str, Any]]) -> Question:
        """The question of the example in a prompt: a text, or messages, of which the user's last one counts.

        Raises `DefinitionError` if the example has no such question: its expected answer is then unknown.
        """
        said = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt if m["role"] == "user"]
        if not said or said[-1] not in self._known:
            raise DefinitionError(
                f"this prompt is no question of the example: {str(said[-1:])[1:-1][:200]}; make the data set of the "
                "questions of train.jsonl and held_out.jsonl",
                where=str(self.example.folder),
            )
        return self._known[said[-1]]

    @asynccontextmanager
    async def serving(
        self, tokenizer: Any, generate: Generate, *, window: int, max_tokens: int, weights: str
    ) -> AsyncIterator[Crystal]:
        """A crystal whose queries are answered by a trainer's function: ids in, ids and log-probabilities out.

        ``window`` is the size of the context, ``max_tokens`` the most tokens of an answer, ``weights`` the label of the
        present weights.
        """
        engine = TokenEngine(tokenizer, generate, window, max_tokens)
        server = SamplerServer(engine, str(getattr(tokenizer, "name_or_path", "") or "policy"))
        server.forget(weights)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(server.serve)
            try:
                yield server.crystal()
            finally:
                server.stop()
                engine.close()

    async def sample(
        self, questions: Sequence[Question], crystal: Crystal, *, temperature: float | None = None, padding: int = 0
    ) -> list[Sample]:
        """Cast each question once, as a fork of the demonstrations if there are some. Samples are in order.

        ``temperature`` is that with which the trainer samples, if it is not the recipe's. A cast that fails is a sample
        too; ``padding`` is the token in place of those that are not known. Raises `CantripError` if casts failed and no
        token is known at all.
        """
        model = self.cantrip.replace(crystal=crystal)
        if temperature is not None:
            model = model.replace(call=model.call.replace(temperature=temperature))
        errors: list[CantripError] = []
        entities = [uuid.uuid4().hex for _ in questions]
        limiter = anyio.CapacityLimiter(self._concurrency)
        with self._loom() as loom:
            start = await play(model, loom, self.example.demonstrations)

            async def one(question: Question, entity_id: str) -> None:
                async with limiter:
                    try:
                        await _cast(model, loom, start, question, entity_id)
                    except CantripError as error:
                        errors.append(error)

            async with anyio.create_task_group() as tasks:
                for question, entity_id in zip(questions, entities, strict=True):
                    tasks.start_soon(one, question, entity_id)
            rows = list(find("tokens").rows(Source(loom)))
        if errors and not rows:
            raise CantripError(f"no cast gave a token; the first error: {errors[0]}")
        return [_sample([row for row in rows if row["entity"] == each], padding) for each in entities]

    def _loom(self) -> Loom:
        if self._looms is None:
            return Loom.memory()
        return Loom.open(private(self._looms) / f"{uuid.uuid4().hex}.loom.jsonl")


async def _cast(model: Cantrip, loom: Loom, start: str | None, question: Question, entity_id: str) -> None:
    entity = (
        model.invoke(loom=loom, entity_id=entity_id)
        if start is None
        else await model.fork(start, loom=loom, entity_id=entity_id)
    )
    async with entity:
        await entity.cast(question.intent, reference=question.reference)


def _sample(rows: list[dict[str, Any]], padding: int) -> Sample:
    found = [row for row in rows if row["kind"] == "turns"] or [row for row in rows if row["kind"] == "rejected"]
    if not found:
        return Sample([padding], [padding], [0], [0.0], None)
    row = found[-1]
    turns = sum(len(each["turns"]) for each in found)
    return Sample(row["prompt_ids"], row["response_ids"], row["mask"], row["logprobs"], row["reward"], turns, found)
