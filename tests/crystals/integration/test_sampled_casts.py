"""Casts of a real model with sampled answers: nothing crashes, and everything that is promised of a loom holds.

A number (its seed) decides everything about a cast: the medium, the way calls are written, what happens to it (a fold, a
child, a cancel, a fork), the intent and the sampling. `make soak` makes 500 casts, `make test` a few. The name of a failed test
has its seed in brackets, and with `--seed 17 --casts 1` pytest makes the cast with the seed 17 again.
"""

from __future__ import annotations

import http.client
import json
import random
import re
import socket
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, CrystalError, Entity, Loom, ScriptedCrystal
from cantrip_acp.core import exports
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.core.forking.replay import replay
from cantrip_acp.core.history.replayed_context import ReplayedContext
from cantrip_acp.crystals.contract import Crystal, Emit, Query, Response
from cantrip_acp.crystals.embedded.shared_model import ModelServer
from cantrip_acp.crystals.text_tools import RESULT
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.records import TERMINATIONS, CastRecord, Turn
from cantrip_acp.types.usage import Usage
from tests.support.fixtures.embedded import crystal, ended

pytestmark = [pytest.mark.sandbox, pytest.mark.model, pytest.mark.timeout(600)]

MEDIUMS = ("conversation", "bash", "code", "monty")
STYLES = ("text", "native", "constrained")
"""Calls as text; tool definitions; and calls as text with a grammar, which allows nothing but a call."""
EVENTS = ("plain", "fold", "child", "cancel", "fork")

EXAMPLES = {
    "conversation": '```tool_call\n{"name": "done", "arguments": {"answer": "4"}}\n```',
    "bash": "```bash\necho 4\n```",
    "code": "```python\nprint(2 + 2)\n```",
    "monty": "```python\nprint(2 + 2)\n```",
}
"""What the model is told to write in text-call mode. Without an example so small a model writes no call at all."""
INTENTS = (
    "What is 17 times 23?",
    "Say hello.",
    "Print the numbers from 1 to 5.",
    "Write hello to the file a.txt.",
    "Call done with the answer 7.",
    "Repeat the word yes for ever.",
    "Show how to call a tool.",
    "List three colours as JSON.",
    "Run two programs.",
    "Call the tool fly_to_the_moon.",
)
CHANCE = re.compile(r"random|time|date|uuid|getpid|\bid\(|\bhash\(|\$\$|\bps\b|ls -l", re.IGNORECASE)
"""What gives a program another output each time."""
TOKENS = 40
REASONS = {*TERMINATIONS, "max_turns", "max_tokens", "output_limit", "cancelled", "parent_terminated", "error"}


@dataclass(frozen=True)
class Plan:
    """What happens in the cast with this seed."""

    seed: int

    @property
    def medium(self) -> str:
        return MEDIUMS[self.seed % len(MEDIUMS)]

    @property
    def style(self) -> str:
        return STYLES[self.seed % len(STYLES)]

    @property
    def event(self) -> str:
        # Five has no factor in common with the numbers of mediums and styles: 60 casts have all combinations.
        return EVENTS[self.seed % len(EVENTS)]


@dataclass
class Listened:
    """A query, as the crystal got it, and its answer."""

    query: Query
    response: Response


class Model:
    """The real model, which all casts share, and what it was asked in this one."""

    def __init__(self, folder: Path) -> None:
        options = "provider: embedded, model: smollm2, logprobs: true, context_window: 4096"
        self.crystals: dict[str, Any] = {
            tools: crystal(folder, f"{{{options}, tools: {tools}}}") for tools in ("text", "native")
        }
        self.listened: list[Listened] = []
        self.outcomes: Counter[str] = Counter()
        for made in self.crystals.values():
            # The process is that of a state folder, and each test has another.
            self.server: ModelServer = made._ready()
            made.query = self._listening(made.query)

    def _listening(self, query: Any) -> Any:
        async def listen(asked: Query, emit: Emit) -> Response:
            messages = list(asked.messages)
            response: Response = await query(asked, emit)
            self.listened.append(Listened(msgspec.structs.replace(asked, messages=messages), response))
            return response

        return listen

    def text_of(self, ids: Sequence[int]) -> str:
        """The text of tokens, by the model's own tokenizer."""
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.connect(self.server.socket)
        with closing(connection):
            connection.request("POST", "/detokenize", json.dumps({"tokens": ids}), {"Content-Type": "application/json"})
            text: str = json.load(connection.getresponse())["content"]
        return text


@pytest.fixture(scope="module")
def model(file: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    folder = tmp_path_factory.mktemp("m")
    with pytest.MonkeyPatch.context() as patch, ended(folder):
        patch.setenv("XDG_RUNTIME_DIR", str(folder))
        made = Model(folder)
        yield made
        print("\n" + "\n".join(f"{count:>4} x {what}" for what, count in made.outcomes.most_common()))


async def test_a_cast_with_sampled_answers_keeps_every_promise(seed: int, model: Model, tmp_path: Path) -> None:
    plan = Plan(seed)
    model.listened.clear()
    (tmp_path / "work").mkdir()
    with Loom.open(tmp_path / "one.loom.jsonl") as loom:
        cantrip = made(plan, model, loom, tmp_path / "work")
        outcome = await happen(plan, cantrip, random.Random(seed))
        written = [msgspec.to_builtins(turn) for turn in loom.turns()]
    with Loom.open(tmp_path / "one.loom.jsonl", readonly=True) as loom:
        assert [msgspec.to_builtins(turn) for turn in loom.turns()] == written
        assert loom.check() == []
        check_turns(loom)
        check_usage(loom)
        check_tokens(loom, model)
        check_view(loom, model, plan)
        check_exports(loom)
        await check_replay(loom, cantrip, plan)
    model.outcomes[f"{plan.style} in {plan.medium}: {outcome}"] += 1


def made(plan: Plan, model: Model, loom: Loom, workspace: Path) -> Cantrip:
    chance = random.Random(plan.seed)
    small: Crystal = model.crystals["native" if plan.style == "native" else "text"]
    call = Call(
        system_prompt=f"Answer with one block like this:\n{EXAMPLES[plan.medium]}"
        if plan.style == "text"
        else "Be brief.",
        temperature=chance.choice((0.2, 0.7, 1.0, 1.4)),
        max_tokens=TOKENS,
        seed=plan.seed,
        tool_choice="required" if plan.style == "constrained" else None,
        require_done_tool=plan.event == "fold",
    )
    wards = {"max_turns": 3 if plan.event == "fold" else 2, "max_depth": 1, "bash_writable_paths": ["."]}
    more: dict[str, Any] = {"retry": {"max_retries": 1, "base_s": 0}, "loom": loom}
    if plan.event == "child":
        asked = {"intent": intent(plan), "crystal": "small", "medium": plan.medium, "gates": ["done"]}
        calls = [
            {"gate": "call_agent", "args": {**asked, "system_prompt": call.system_prompt, "wards": {"max_turns": 2}}}
        ]
        parent = ScriptedCrystal([{"tool_calls": calls}, {"content": "The end."}])
        circle = Circle("conversation", ["done", "call_agent"], wards, workspace=workspace)
        return Cantrip(parent, call.replace(tool_choice=None), circle, crystals={"small": small}, **more)
    if plan.event == "fold":
        more["folding"] = {"trigger_after_turns": 1, "keep_turns": 0}
    return Cantrip(small, call, Circle(plan.medium, ["done"], wards, workspace=workspace), **more)


def intent(plan: Plan) -> str:
    return random.Random(-plan.seed).choice(INTENTS)


async def happen(plan: Plan, cantrip: Cantrip, chance: random.Random) -> str:
    """Cast, with what the plan has. Returns why it ended. Errors of the crystal are ends too; others are not caught."""
    async with cantrip.invoke() as entity:
        try:
            if plan.event == "cancel":
                return await cancelled(entity, intent(plan), chance.randrange(1, 30))
            reason = (await entity.cast(intent(plan))).reason
        except CrystalError as error:
            reason = f"error: {error}"
        turns = [turn for turn in entity.loom.turns() if turn.role == "crystal"]
        if plan.event == "fork" and turns:
            at = chance.choice(turns).parent_id
            assert at is not None
            group = await entity.resample(at, 2, state="auto", concurrency=1)
            async with await entity.fork(at, state="auto") as other:
                try:
                    await other.cast("Say it again.")
                except CrystalError as error:
                    reason += f", and after a fork: {error}"
            failed = [each.error for each in group.samples if each.error is not None]
            assert all(isinstance(each, CrystalError) for each in failed), failed
            reason += ", and forks"
        return reason


async def cancelled(entity: Entity, intent: str, after: int) -> str:
    async with entity.stream(intent) as stream:
        async for _ in stream:
            after -= 1
            if after == 0:
                entity.cancel()
    assert stream.result is not None, "it ended with an error, and did not raise it"
    return stream.result.reason


def spoken(loom: Loom) -> list[Turn]:
    return [turn for turn in loom.turns() if turn.role == "crystal"]


def check_turns(loom: Loom) -> None:
    """Each call has its result, in order, and each cast its end with a known reason."""
    for turn in spoken(loom):
        assert turn.utterance.content or turn.utterance.tool_calls or turn.continues
        programs = {"bash", "python"}
        gates = [call for call in turn.utterance.tool_calls if call.gate not in programs]
        if turn.reason is None:
            answered = [result.call_id for result in turn.observation.results if result.parent_call_id is None]
            missing = [call.id for call in gates if call.id not in answered]
            assert not missing or not turn.terminated, missing
    casts: dict[str, list[str]] = {}
    for record in loom.records():
        if isinstance(record, CastRecord):
            casts.setdefault(record.id, []).append(record.event)
            if record.event == "end":
                assert record.reason in REASONS, record.reason
                assert record.terminated == (record.reason in TERMINATIONS)
    assert all(events == ["start", "end"] for events in casts.values()), casts


def check_usage(loom: Loom) -> None:
    """What a cast used is what its turns used."""
    for record in loom.records():
        if isinstance(record, CastRecord) and record.event == "end":
            turns = [turn.metadata.usage for turn in spoken(loom) if turn.cast_id == record.id]
            cut = [each.usage for each in loom.partials() if each.cast_id == record.id]
            assert record.usage is not None
            total = sum([*turns, *cut, Usage.of_record(record.usage.get("children", {}))], start=Usage())
            for name in ("prompt_tokens", "completion_tokens"):
                assert record.usage[name] == getattr(total, name), (name, record.usage, total)


def check_tokens(loom: Loom, model: Model) -> None:
    """The ids of the tokens are those of the text, and there are as many as the server counted."""
    for each in model.listened:
        sampled, usage = each.response.sampled, each.response.usage
        assert sampled is not None, each.response
        assert usage.completion_tokens is not None
        assert len(sampled.ids) == len(sampled.logprobs) == len(sampled.texts)
        # llama.cpp counts the end of the answer too, and does not report it.
        assert usage.completion_tokens - len(sampled.ids) in (0, 1), (usage, sampled)
        raw = b"".join(bytes(sampled.bytes_of(place)) for place in range(len(sampled.ids))).decode("utf-8", "replace")
        decoded = model.text_of(sampled.ids)
        assert decoded.startswith(raw), (decoded, raw)
        assert decoded[len(raw) :] in ("", "<|im_end|>") or RESULT.startswith(decoded[len(raw) :].strip()), (
            decoded,
            raw,
        )
    for turn in spoken(loom):
        kept = turn.metadata.sampled
        if kept is not msgspec.UNSET and kept is not None and kept.ids:
            assert kept.ids in {each.response.sampled.ids for each in model.listened if each.response.sampled}


def check_view(loom: Loom, model: Model, plan: Plan) -> None:
    """The loom gives back what the model was asked."""
    asked = [[(m.role, m.content) for m in each.query.messages] for each in model.listened]
    for leaf in Outline(loom).leaves:
        for window in ReplayedContext(loom, Outline(loom)).windows(leaf):
            for uttered in window.uttered:
                if uttered.turn.metadata.model == "smollm2":
                    seen = [(m.role, m.content) for m in window.messages[: uttered.at]]
                    assert seen in asked, (seen, asked)


def check_exports(loom: Loom) -> None:
    for name in exports.names():
        rows = list(exports.find(name).rows(Source(loom, ThreadSelection(truncated=True))))
        json.dumps(rows)


async def check_replay(loom: Loom, cantrip: Cantrip, plan: Plan) -> None:
    for leaf in Outline(loom).leaves:
        turn = loom.turn(leaf)
        if turn.role == "crystal":
            child = plan.event == "child" and turn.metadata.model == "smollm2"
            wards = {"max_turns": 2, "bash_writable_paths": ["."]}
            its = Circle(plan.medium, ["done"], wards, workspace=cantrip.circle.workspace)
            own = cantrip.replace(circle=its) if child else cantrip
            again = await replay(own, loom, leaf)
            found = again.divergence
            assert found is None or (found.how.startswith("it") and uses_chance(loom, found.turn_id)), str(found)


def uses_chance(loom: Loom, turn: str) -> bool:
    """Whether a program up to a turn uses chance or the time. Its output is another each time, and a replay has to find that."""
    said = [each.utterance for each in loom.thread(turn).turns if each.role == "crystal"]
    return CHANCE.search(" ".join(f"{each.content} {each.tool_calls}" for each in said)) is not None
