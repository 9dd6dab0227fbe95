"""A thread begun by a model of any family continues with a model of any other, and then with the first one again.

Each server refuses what its API refuses. Mistral's wants ids of calls of nine letters and digits, and a Kimi model ids of its own
form, counted over the conversation.
"""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.crystals.openai.tool_names import CallIds
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.messages import Message, ToolCall
from tests.support.families import FAMILIES, Family
from tests.support.provider_server import Reply, Request, Wire

ECHO = Gate(
    "web.echo", "Says it.", {"type": "object", "properties": {"text": {"type": "string"}}}, lambda a, c: a["text"]
)

GIVEN = {
    "local": "chatcmpl-tool-0123456789abcdef0123456789abcdef",
    "mistral": "a1B2c3D4{n}",
    "moonshot": "functions.web_echo:{n}",
    "openai-chat": "call_0123456789abcdef0123456{n}",
    "openrouter": "toolu_vrtx_01AbCdEfGhIjKlMnOpQrSt{n}",
    "openai-responses": "call_ABCDEFGHIJKLMNOPQRSTUVW{n}",
    "anthropic": "toolu_01AbCdEfGhIjKlMnOpQrSt{n}",
    "google": "",
}
"""The ids as each family makes them."""


def ids_in(body: dict[str, Any]) -> list[str]:
    return [call["id"] for message in body.get("messages", ()) for call in message.get("tool_calls", ())]


def problem(family: Family, request: Request) -> str | None:
    wrong = family.problem(request)
    if wrong is not None:
        return wrong
    ids = ids_in(request.json())
    if family.name == "moonshot":
        # Each id is the next number, with the name of its tool.
        wanted = re.compile(r"functions\.[A-Za-z0-9_-]+:\d+")
        odd = next((each for each in ids if not wanted.fullmatch(each)), None)
        numbers = [int(each.rpartition(":")[2]) for each in ids if wanted.fullmatch(each)]
        return f"ids {ids}" if odd or len(set(numbers)) != len(numbers) else None
    if family.name not in ("mistral", "local", "openai-chat", "openrouter"):
        return None
    # A gateway or a local server may have a model of Mistral behind it.
    odd = next((each for each in ids if not re.fullmatch(r"[A-Za-z0-9]{9}", each)), None)
    return None if odd is None else f"Tool call id was {odd} but must be a-z, A-Z, 0-9, with a length of 9."


class Server:
    """It calls ``web.echo`` in each cast, and then answers; what the API would refuse fails the test."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.wrong: list[str] = []
        self.calls = 0
        self.wire = Wire(self._answer)

    def _answer(self, request: Request) -> Reply:
        wrong = problem(self.family, request)
        if wrong is not None:
            self.wrong.append(wrong)
            return self.family.refuse(400, wrong)
        if len(self.wire.requests) % 2 == 0:
            return self.family.say("Said.")
        body = json.dumps(request.json())
        name = next(each for each in re.findall(r'"name": "([^"]+)"', body) if each.startswith("web"))
        self.calls += 1
        call_id = GIVEN[self.family.name].replace("{n}", str(len(ids_in(request.json())) + self.calls - 1))
        return self.family.call(name, {"text": f"{self.family.name} {self.calls}"}, call_id)


def spell(crystal: Any, loom: Loom) -> Cantrip:
    return Cantrip(
        crystal, {"system_prompt": "Say it."}, Circle(gates=["done", ECHO], wards=[{"max_turns": 5}]), loom=loom
    )


@pytest.mark.parametrize("begins", FAMILIES)
@pytest.mark.parametrize("goes_on", FAMILIES)
async def test_a_thread_of_one_family_goes_on_with_another_and_back(begins: str, goes_on: str) -> None:
    loom = Loom.memory()
    first, second = Server(FAMILIES[begins]), Server(FAMILIES[goes_on])
    with first.wire as wire, second.wire as other:
        async with spell(FAMILIES[begins].crystal(wire.url), loom).invoke() as entity:
            await entity.cast("one")
            turn = entity.last_turn
        async with await spell(FAMILIES[goes_on].crystal(other.url), loom).fork(turn) as entity:
            await entity.cast("two")
            turn = entity.last_turn
        async with await spell(FAMILIES[begins].crystal(wire.url), loom).fork(turn) as entity:
            result = await entity.cast("three")
    assert first.wrong == second.wrong == []
    assert result.result == "Said."
    told = wire.requests[-1].body.decode()
    assert all(text in told for text in (f"{begins} 1", f"{goes_on} 1", f"{begins} 2"))
    # The loom has the ids as the models gave them.
    calls = [call.id for turn in loom.turns() for call in turn.utterance.tool_calls]
    assert calls[0] == GIVEN[begins].replace("{n}", "0") or not GIVEN[begins]


@pytest.mark.parametrize("family", FAMILIES)
async def test_a_thread_of_the_product_itself_goes_on_with_any_model(family: str) -> None:
    loom = Loom.memory()
    script = [{"tool_calls": [{"gate": "web.echo", "args": {"text": "scripted 1"}}]}, {"content": "Said."}]
    server = Server(FAMILIES[family])
    with server.wire as wire:
        async with spell(ScriptedCrystal(script), loom).invoke() as entity:
            await entity.cast("one")
            turn = entity.last_turn
        async with await spell(FAMILIES[family].crystal(wire.url), loom).fork(turn) as entity:
            await entity.cast("two")
    assert server.wrong == []
    assert "scripted 1" in wire.requests[-1].body.decode()


async def test_the_ids_of_earlier_calls_never_change() -> None:
    """A prompt cache holds as long as the beginning of a request is the same."""
    for name in FAMILIES:
        server = Server(FAMILIES[name])
        loom = Loom.memory()
        with server.wire as wire:
            async with spell(FAMILIES[name].crystal(wire.url), loom).invoke() as entity:
                for intent in ("one", "two", "three"):
                    await entity.cast(intent)
            seen = [ids_in(request.json()) for request in wire.requests]
        assert all(later[: len(earlier)] == earlier for earlier, later in itertools.pairwise(seen))
        assert server.wrong == []


def test_ids_of_both_styles() -> None:
    calls = [ToolCall("toolu_1", "look"), ToolCall("functions.look:7", "look"), ToolCall("abcDEF123", "a.b")]
    nine = CallIds("nine")
    made = nine.of_calls(calls)
    assert [len(each) for each in made] == [9, 9, 9]
    assert made[2] == "abcDEF123"
    assert [nine.of_answer(call.id) for call in calls] == made
    assert CallIds("nine").of_calls(calls) == made
    kimi = CallIds("kimi")
    first, own, last = kimi.of_calls(calls)
    assert (first, own) == ("functions.look:0", "functions.look:7")
    assert re.fullmatch(r"functions\.a_b_[0-9a-f]{8}:8", last)
    assert kimi.of_calls([ToolCall("x", "look")]) == ["functions.look:9"]
    assert CallIds("").of_calls(calls) == [call.id for call in calls]


def test_two_calls_with_one_id_in_a_message_of_another_program() -> None:
    calls = [ToolCall("1", "look"), ToolCall("1", "look")]
    assert len(CallIds("nine").of_calls(calls)) == 2
    assert Message("assistant", tool_calls=tuple(calls)).tool_calls[0].id == "1"
