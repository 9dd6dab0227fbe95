"""What a crystal was sent is recorded as a digest, and readers rebuild exactly that: random lives of entities."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Cantrip, Circle, Entity, Gate, Loom, ScriptedCrystal
from cantrip_acp.core.casting import query_digest
from cantrip_acp.core.casting.query_digest import QueryDigest
from cantrip_acp.core.folding.apply import fold_now
from cantrip_acp.core.forking.resume import resume_entity
from cantrip_acp.core.history.replayed_context import ReplayedContext, Window, differing_turns
from cantrip_acp.crystals.contract import Delta, Query, Response
from cantrip_acp.gates.contract import GateContext, GateReply
from cantrip_acp.loom.query.copied_path import records_on_path
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.call import Call
from cantrip_acp.types.context_block import KNOWLEDGE, WARDS, ContextBlock
from cantrip_acp.types.errors import CantripError, CrystalError
from cantrip_acp.types.messages import Attachment, Message, ToolCall
from cantrip_acp.types.records import CastRecord, SentQuery
from cantrip_acp.types.usage import Usage
from tests.support import processes

pytestmark = pytest.mark.anyio

CANTRIP = str(Path(sys.executable).parent / "cantrip")
FOUND = (67, 78, 180, 232, 241, 243, 250, 278, 295, 382, 486, 699)
"""Lives in which readers once told something else: withdrawn casts, and casts that were resumed several times."""
LIVES = sorted({*range(24 * int(os.environ.get("FUZZ", "1"))), *FOUND})
MODULE = "def twice(text: str) -> str:\n    'Say it twice.'\n    return text * 2\n"
PICTURES, REFUSED = ("AAAA", "BBBB", "CCCC", "DDDD"), ("BBBB", "DDDD")
"""Pictures, and those that the crystal refuses."""
TOOLS = {"echo", "passing", "steer", "call_agent", "twice"}


class Random:
    """A crystal that does anything. ``sent`` are its queries; each answer begins with the number of its query."""

    name, model = "random", "random"

    def __init__(self, rng: random.Random, window: int | None) -> None:
        self.rng = rng
        self.context_window = window
        self.sent: list[tuple[list[Message], list[Any]]] = []

    async def query(self, query: Query, emit: Any) -> Response:
        if any(each.data in REFUSED for message in query.messages for each in message.attachments):
            raise CrystalError("an image cannot be read", status=400)
        self.sent.append((list(query.messages), msgspec.to_builtins(query.tools)))
        rng, said, usage = self.rng, f"{len(self.sent) - 1} ", Usage(100, 10)
        if rng.random() < 0.06:
            await emit(Delta("text", "half an answer"))
            raise CrystalError("it broke", retryable=False, status=rng.choice([400, 401]))
        offered = [tool.name for tool in query.tools]
        if rng.random() < 0.15:
            return Response(said + "prose " * rng.choice([1, 400]), usage=usage)
        calls = []
        for number in range(rng.choice([1, 1, 2])):
            gate = rng.choice([*offered, "done", "nothing"])
            args: dict[str, Any] = {"text": rng.choice(["a", "long " * 900])} if gate in TOOLS else {}
            if gate == "call_agent":
                args = {"intent": "be brief"}
            if gate == "compile_and_load":
                args = {"module": "twice", "source": MODULE}
            if gate == "done":
                args = {"answer": "x"}
            calls.append(ToolCall(f"c{len(self.sent)}_{number}", gate, msgspec.json.encode(args).decode()))
        return Response(said, tool_calls=tuple(calls), usage=usage)


class Knows:
    """A contributor whose text changes."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    async def __call__(self, cast: Any) -> list[ContextBlock]:
        return [ContextBlock("a page", "Page", "user", "file:///p")] if self.rng.random() < 0.3 else []

    async def refresh(self, cast: Any) -> ContextBlock | None:
        return ContextBlock(self.rng.choice(["one", "one", "two"]), "Knows", KNOWLEDGE)


class Life:
    """Casts, and changes between them, on one loom."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.loom = Loom.memory()
        self.crystal = Random(self.rng, self.rng.choice([None, None, 9_000]))
        self.knows = [Knows(self.rng)] if self.rng.random() < 0.5 else []
        self.loads = seed % 3 == 0
        self.modes = random.Random(seed) if seed not in FOUND else None
        """Changes modes in the middle of casts. The lives that were found go on as they were."""
        self.entity: Entity

    def look(self, args: Any, context: GateContext) -> GateReply:
        return GateReply("seen", attachments=(self.picture(),))

    def picture(self) -> Attachment:
        return Attachment.of("image/png", self.rng.choice(PICTURES), title="p")

    def cantrip(self) -> Cantrip:
        async def steer(args: Any, context: GateContext) -> str:
            shown = [ContextBlock(title="p", attachment=self.picture())] if self.rng.random() < 0.4 else []
            self.entity.steer(f"please {self.rng.random()}", context=shown)
            self.switch()
            return "ok"

        text = {"type": "object", "properties": {"text": {"type": "string"}}}
        gates: list[Any] = [
            "done", "echo", "call_agent", Gate("steer", "Steer.", text, steer),
            Gate("look", "Look.", {"type": "object"}, self.look, ephemeral=self.ephemeral and self.folds),
            Gate("passing", "Tell.", text, lambda args, context: "told " * 50, ephemeral=self.ephemeral),
        ]  # fmt: skip
        wards: dict[str, Any] = {"max_turns": 6, "max_depth": 1}
        if self.loads:
            gates.append("compile_and_load")
            wards |= {"allow_compile_modules": ["twice"]}
        prompt = self.rng.choice(["French.", "German."])
        folding = {"trigger_after_turns": 4, "keep_turns": 1} if self.folds else {}
        circle = Circle("conversation", gates, [wards])
        return Cantrip(
            self.crystal,
            Call(prompt, temperature=0.5),
            circle,
            loom=self.loom,
            contributors=self.knows,
            folding=folding,
        )

    def switch(self) -> None:
        """Change the mode, perhaps twice."""
        rng = self.modes
        while rng is not None and rng.random() < 0.6:
            name = rng.choice(["free", "quiet", "bare"])
            gone = {"free": (), "quiet": ("echo",), "bare": ("echo", "passing")}[name]
            own = self.entity.cantrip.circle.wards
            note = ContextBlock(f"Now {name}.", "Mode", "session", f"{WARDS}{name}")
            self.entity.set_wards(replace(own, remove_gate=gone) if gone else None, note)

    async def live(self) -> None:
        rng = self.rng
        self.folds, self.ephemeral = rng.random() < 0.5, rng.choice([False, True, "after_use"])
        made = self.cantrip()
        self.entity = made.invoke()
        for _ in range(7):
            shown = [ContextBlock(title="p", attachment=self.picture())] if rng.random() < 0.2 else []
            with suppress(CantripError):
                await self.entity.cast(f"intent {rng.random()}", context=shown)
            if rng.random() < 0.2:
                with suppress(CantripError):
                    await self.entity.resume()
            change = rng.choice(["mode", "fork", "other fork", "reopen", "edit", "fold", "nothing"])
            self.switch()
            if change == "mode":
                own = self.entity.cantrip.circle.wards
                self.entity.set_wards(rng.choice([None, replace(own, remove_gate=("echo",))]))
            elif change == "fold":
                await fold_now(self.entity)
            elif self.entity.sequence and change != "nothing":
                made = made if change in ("fork", "reopen") else self.cantrip()
                turns = [
                    i for i, p in self.loom.places.items() if p.role == "crystal" and p.entity_id == self.entity.id
                ]
                await self.entity.close()
                if change in ("reopen", "edit"):
                    self.entity = resume_entity(made, self.loom, self.entity.id).entity
                else:
                    self.entity = await made.fork(rng.choice(turns), loom=self.loom, state="none")
        await self.entity.close()


@pytest.mark.parametrize("seed", range(40))
async def test_a_thread_in_a_file_of_its_own_reads_the_same(seed: int) -> None:
    life = Life(seed)
    await life.live()
    for leaf in Outline(life.loom).ends:
        copy = Loom.memory()
        for record in records_on_path(life.loom, leaf):
            copy.append(record)
        assert differing_turns(copy) == [], leaf


def windows(view: ReplayedContext) -> Iterator[Window]:
    for leaf in view.outline.ends:
        yield from view.windows(leaf)


@pytest.mark.parametrize("seed", LIVES)
async def test_readers_rebuild_what_was_sent(seed: int) -> None:
    life = Life(seed)
    await life.live()
    view, compared = ReplayedContext(life.loom, Outline(life.loom)), 0
    for window in windows(view):
        for said in window.uttered:
            messages, tools = life.crystal.sent[int((said.turn.utterance.content or "").split(" ")[0])]
            assert list(map(plain, window.messages[: said.at])) == list(map(plain, messages)), (seed, said.turn.id)
            assert msgspec.to_builtins(window.tools) == tools
            assert isinstance(said.turn.metadata.query, SentQuery)
            compared += 1
    assert compared
    assert list(view.differing) == []


def plain(message: Message) -> Any:
    return msgspec.to_builtins(message)


async def test_a_turn_that_differs_is_named(tmp_path: Path) -> None:
    life = Life(1)
    await life.live()
    path = tmp_path / "other.loom.jsonl"
    other = Loom.open(path)
    for record in life.loom.records():
        if isinstance(record, CastRecord) and record.intent is not None:
            record = msgspec.structs.replace(record, intent="another intent")
        other.append(record)
    view = ReplayedContext(other, Outline(other))
    turns = {said.first for window in windows(view) for said in window.uttered}
    assert set(view.differing) == turns
    other.close()
    checked = processes.run(
        [CANTRIP, "loom", "check", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0
    assert all(f"before the turn {turn} is not what this version rebuilds" in checked.stdout for turn in turns)
    shown = processes.run(
        [CANTRIP, "loom", "context", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "the recorded digest differs" in shown.stderr
    for name in ("trl-sft", "openai", "verifiers", "atif", "art", "otlp"):
        out = ["--format", name, "--output", str(tmp_path / "rows.jsonl"), "--include-truncated", "--json"]
        command = [CANTRIP, "loom", "export", str(path), *out]
        refused = processes.run(command, capture_output=True, text=True, timeout=60, check=False)
        told = json.loads(refused.stderr)
        assert (refused.returncode, told["rows"], told["threads"]) == (1, 0, 0), name
        assert told["left_out"]["what the model was sent is recorded otherwise than it is rebuilt"]
        taken = processes.run(
            [*command, "--include-differing"], capture_output=True, text=True, timeout=60, check=False
        )
        told = json.loads(taken.stderr)
        assert told["rows"], name
        assert told["notes"]["what the model read before a turn is not exactly as it was sent"]
        rows = (tmp_path / "rows.jsonl").read_text()
        marks = {"openai": None, "otlp": '"cantrip.as_sent","value":{"boolValue":false}'}
        mark = marks.get(name, '"as_sent":false')
        assert mark is None or mark in rows, name
        assert mark is None or mark.replace("false", "true") not in rows, name


async def test_turns_of_a_mode_have_the_tools_that_were_sent(tmp_path: Path) -> None:
    path = tmp_path / "l.loom.jsonl"
    calls = [{"tool_calls": [{"gate": "echo", "args": {"text": "a"}}]}] * 3
    circle = Circle("conversation", ["done", "echo", "plan"], [{"max_turns": 1}])
    loom = Loom.open(path)
    async with Cantrip(ScriptedCrystal(calls), circle=circle, loom=loom).invoke() as entity:
        await entity.cast("one")
        entity.set_wards(replace(entity.circle.wards, remove_gate=("plan",)))
        await entity.cast("two")
        await entity.cast("three")
    view = ReplayedContext(loom, Outline(loom))
    told = [(window.begun, [tool.name for tool in window.tools], len(window.uttered)) for window in windows(view)]
    assert told == [("start", ["done", "echo", "plan"], 1), ("tools", ["done", "echo"], 2)]
    kept = [turn.metadata.query for turn in loom.turns() if turn.role == "crystal"]
    assert [type(each.tools) for each in kept if isinstance(each, SentQuery)] == [type(None), tuple, str]
    loom.close()
    shown = processes.run(
        [CANTRIP, "loom", "context", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert shown.stdout.endswith("tools: done, echo\n")
    assert not shown.stderr
    checked = processes.run(
        [CANTRIP, "loom", "check", str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert "before the turn" not in checked.stdout
    assert checked.stdout.endswith("everything can be read\n")


def test_a_long_session_hashes_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    digest, call = QueryDigest(), Call("Help.")
    hashed: list[str] = []
    whole = query_digest._hash
    monkeypatch.setattr(query_digest, "_hash", lambda data: hashed.append(getattr(data, "content", "")) or whole(data))
    messages = [Message("user", f"text {n}", kind="intent") for n in range(200)]
    for end in range(1, 201):
        digest.digest(messages[:end], (), call)
    # New knowledge stands before all others, which keep their hash.
    digest.digest([Message("system", "new", kind="knowledge"), *messages], (), call)
    assert [each for each in hashed if each] == [*(f"text {n}" for n in range(200)), "new"]
