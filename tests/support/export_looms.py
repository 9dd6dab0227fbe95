"""Looms with everything in them that an export meets: folds, cuts, forks, casts that failed, ephemeral gates, attachments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from cantrip_acp import Cantrip, Loom, ScriptedCrystal
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.core.history.replayed_context import Window
from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.gates.contract import Gate
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Attachment, Message, SampledTokens, ToolCall
from tests.support.fixtures.core import done, echo, make

PICTURE = Attachment.of("image/png", "iVBORw0KGgo=")


def note(text: str) -> str:
    """Keep a note."""
    return f"kept {text}"


def passing(text: str) -> str:
    """Tell something that need not be remembered."""
    return f"told {text} " * 30


GATES: tuple[Any, ...] = ("done", "echo", Gate.of(note), Gate.of(passing, ephemeral=True))


def gate(name: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": name, "args": args}]}


def asked(cantrip: Cantrip) -> list[list[Message]]:
    """The messages of each query that its scripted crystal was asked with."""
    crystal: Any = cantrip.crystal
    return [list(query.messages) for query in crystal.invocations]


def saw(loom: Loom, leaf: str) -> Iterator[tuple[str, list[Message], Window]]:
    """Each turn of a thread with the messages of its query, as an export tells them."""
    source = Source(loom, ThreadSelection())
    for window in source.seen.windows(leaf):
        for uttered in window.uttered:
            yield uttered.turn.id, window.messages[: uttered.at], window


async def lived(status: int = 401) -> tuple[Loom, Cantrip]:
    """An entity's long life: pinned context and a picture, two casts that end, one that fails, folds, an ephemeral gate.

    ``status`` is what the provider answers to the one that fails: after 400 its intent is taken back, after 401 it stands.
    """
    loom = Loom.memory()
    cantrip = make(
        echo("one", content="I begin.", thinking="hm"),
        gate("passing", text="x"),
        {"tool_calls": [{"gate": "note", "args": {"text": "a"}}, {"gate": "echo", "args": {"text": "b"}}]},
        done("first"),
        {"error": {"status": status, "message": "no"}},
        echo("after the failure"),
        {"content": "All is said."},
        echo("third"),
        gate("note", text="c"),
        echo("fourth"),
        done({"a": [1, None]}),
        gates=GATES,
        call={"system_prompt": "You echo."},
        loom=loom,
        folding={"trigger_after_turns": 5, "keep_turns": 2},
    )
    async with cantrip.invoke() as entity:
        blocks = [ContextBlock("the page", "Title & co", "user", "file:///a"), ContextBlock(attachment=PICTURE)]
        await entity.cast("first intent", context=blocks)
        with suppress(CrystalError):
            await entity.cast("an intent that fails")
        await entity.cast("second intent")
        await entity.cast("third intent")
    return loom, cantrip


async def forked(rewards: tuple[float | None, ...] = (1.0, 0.0, 0.5)) -> Loom:
    """One turn, and a fork from it for each reward; each with an answer of its own."""
    loom = Loom.memory()
    cantrip = make(echo("begin"), done("original"), loom=loom, gates=GATES, call={"system_prompt": "You echo."})
    await cantrip.cast("the task")
    origin = next(t.id for t in loom.turns() if t.role == "crystal")
    for number, reward in enumerate(rewards):
        again = make(echo(f"way {number}"), done(f"answer {number}"), gates=GATES, call={"system_prompt": "You echo."})
        async with await again.fork(origin, loom=loom, state="none") as entity:
            await entity.cast("go on")
            if reward is not None:
                loom.annotate_reward(entity.last_turn, reward, by="test")
    return loom


def template(messages: Sequence[Message]) -> str:
    """The chat template of `TokenCrystal`."""
    return "".join(f"<{m.role}>{spelled(m.content, m.tool_calls)}" for m in messages)


def spelled(content: str | None, calls: Sequence[ToolCall]) -> str:
    return f"{content or ''}{''.join(f'[{call.gate} {call.args}]' for call in calls)}\n"


def logprobs(ids: Sequence[int]) -> list[float]:
    """The log-probabilities that `TokenCrystal` gives: different for each token, so that a shift by one is seen."""
    return [-each / 1000 for each in ids]


class TokenCrystal(ScriptedCrystal):
    """Plays a script and reports tokens as a server does: each character is a token, its id is its code point."""

    def __init__(self, *responses: dict[str, Any], prompts: bool = True) -> None:
        super().__init__(responses, record_inputs=True, model="tokens")
        self._prompts = prompts

    async def query(self, query: Query, emit: Emit) -> Response:
        response = await super().query(query, emit)
        ids = tuple(map(ord, spelled(response.content, response.tool_calls)))
        prompt = tuple(map(ord, template(query.messages) + "<assistant>")) if self._prompts else ()
        sampled = SampledTokens(ids, tuple(map(chr, ids)), tuple(logprobs(ids)), {}, prompt)
        return msgspec.structs.replace(response, sampled=sampled)
