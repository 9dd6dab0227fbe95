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
from cantrip_acp.core.exports import find
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.files.paths import private
from cantrip_acp.loom.loom import Loom
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.training.adapters.token_engine import Generate, TokenEngine
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.training.trainer.example import Example, Question
from cantrip_acp.training.trainer.rollouts import play
from cantrip_acp.training.trainer.sampling_server import SamplerServer
from cantrip_acp.types.errors import CantripError, DefinitionError

__all__ = ["Casts", "Sample"]


def not_installed(library: str, error: ImportError) -> ImportError:
    """Make the error for an adapter whose library cannot be imported, with what to install."""
    return ImportError(f"{error}; install {library} with: pip install {library}")


@dataclass(frozen=True, slots=True)
class Sample:
    """A cast as a token sequence, in the words of a token row (`cantrip loom export --format tokens`).

    ``response_ids``, ``mask`` and ``logprobs`` have one length. A thread can be several sequences, such as after a fold:
    this is the last one, and ``rows`` has all. A cast of which no token is known has one padding token as its prompt and
    its response, with the mask 0, and no rows. ``ended``: it ended by itself; else a limit cut it off, or it failed.
    """

    prompt_ids: list[int]
    response_ids: list[int]
    mask: list[int]
    logprobs: list[float]
    reward: float | None
    ended: bool
    turns: int
    rows: list[dict[str, Any]] = field(default_factory=list)


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
        recipe = load(self.example.recipe)
        self.cantrip = build(recipe, workspace=place, crystal=ScriptedCrystal([]))
        own = recipe.data.get("crystal")
        self._tools = own.get("tools", "auto") if isinstance(own, Mapping) else "auto"
        self._looms = looms
        self._concurrency = concurrency
        self._known = {each.intent: each for each in (*self.example.held_out, *self.example.train)}

    def prompts(self, questions: Sequence[Question] | None = None) -> list[dict[str, Any]]:
        """The questions of the example (its training questions), as rows of a data set: ``prompt`` and ``reference``.

        Raises `DefinitionError` if there are none.
        """
        asked = self.example.train if questions is None else questions
        if not asked:
            raise DefinitionError("has no questions to train: it needs a train.jsonl", where=str(self.example.folder))
        return [{"prompt": [{"role": "user", "content": q.intent}], "reference": q.reference} for q in asked]

    def question(self, prompt: str | Sequence[Mapping[str, Any]]) -> Question:
        """Find the question of the example in a prompt: a text, or messages, whose last one of the user counts.

        Raises `DefinitionError` if the example has no such question, because its expected answer is then unknown.
        """
        said = [prompt] if isinstance(prompt, str) else [m["content"] for m in prompt if m["role"] == "user"]
        if not said or said[-1] not in self._known:
            raise DefinitionError(
                f"this prompt is not a question of the example: {str(said[-1:])[1:-1][:200]}; make the data set of the "
                "questions of train.jsonl and held_out.jsonl",
                where=str(self.example.folder),
            )
        return self._known[said[-1]]

    def crystal_at(self, base_url: str, model: str, key: str, *, logprobs: bool = True) -> Crystal:
        """A crystal of a server of Chat Completions. It calls gates as the recipe says (``tools`` of its crystal)."""
        options = {"tools": self._tools, "logprobs": logprobs}
        return LocalCrystal(Endpoint("local", model, base_url, Secret(key), options=options))

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
        self, questions: Sequence[Question], crystal: Crystal, *, padding: int = 0, **call: Any
    ) -> list[Sample]:
        """Cast each question once, as a fork of the demonstrations if there are some. Samples are in order.

        ``call`` are fields of the recipe's call that the trainer decides, such as the temperature; None leaves the
        recipe's. A cast that fails is a sample too; ``padding`` is the token in place of those that are not known. Raises
        `CantripError` if every cast failed without a token.
        """
        model = self.cantrip.replace(crystal=crystal)
        changes = {name: value for name, value in call.items() if value is not None}
        model = model.replace(call=model.call.replace(**changes)) if changes else model
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
            source = Source(loom)
            episodes = {each.entity_id: each for each in source.episodes(marked=True)}
            rows = list(find("tokens").rows(source))
        if len(errors) == len(questions) and not rows:
            raise CantripError(f"every cast failed; the first error: {errors[0]}")
        return [_sample(each, rows, episodes.get(each), padding) for each in entities]

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


def _sample(entity_id: str, rows: Sequence[dict[str, Any]], episode: Episode | None, padding: int) -> Sample:
    own = [row for row in rows if row["entity"] == entity_id]
    found = [row for row in own if row["kind"] == "turns"] or [row for row in own if row["kind"] == "rejected"]
    nothing = {"prompt_ids": [padding], "response_ids": [padding], "mask": [0], "logprobs": [0.0], "reward": None}
    last: dict[str, Any] = found[-1] if found else nothing
    return Sample(
        last["prompt_ids"],
        last["response_ids"],
        last["mask"],
        last["logprobs"],
        reward=episode.reward if episode is not None else last["reward"],
        ended=episode is not None and episode.complete,
        turns=sum(len(row["turns"]) for row in found),
        rows=found,
    )
