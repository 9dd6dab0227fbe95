"""Each turn records the sampling parameters that were sent, and the model that served, as the wire had them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, RetryPolicy
from cantrip_acp.core import exports
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.messages import RequestParameters
from cantrip_acp.types.records import Turn
from tests.crystals.unit.test_usage import KINDS, crystal, whole
from tests.support import openai_replies as openai
from tests.support.provider_server import Reply, Wire, json_reply

pytestmark = pytest.mark.anyio

CALL = Call(temperature=0.25, top_k=40, min_p=0.05, seed=7, max_tokens=321, stop=("END",))


async def turn_of(kind: str, *replies: Reply) -> tuple[Turn, dict[str, Any]]:
    """The turn that a query leaves, and the last request as the provider received it."""
    with Wire(list(replies)) as wire:
        circle = Circle(gates=["done"], wards=[{"max_turns": 3}])
        # The Responses API has no stop sequences; with some, the chat API is asked.
        call = CALL.replace(stop=()) if kind == "responses" else CALL
        cantrip = Cantrip(crystal(kind, wire.url), call, circle, retry=RetryPolicy(base_s=0.01))
        await cantrip.cast("Hi")
        sent = wire.requests[-1].json()
    (turn,) = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    return turn, sent.get("generationConfig", sent)


def received(sent: dict[str, Any]) -> tuple[Any, ...]:
    limits = ("max_tokens", "max_completion_tokens", "max_output_tokens", "maxOutputTokens")
    limit = next((sent[name] for name in limits if name in sent), None)
    stop = sent.get("stop", sent.get("stop_sequences", sent.get("stopSequences", [])))
    return (
        sent.get("temperature"),
        sent.get("top_p", sent.get("topP")),
        sent.get("seed"),
        limit,
        sent.get("top_k", sent.get("topK")),
        sent.get("min_p"),
        tuple(stop),
    )


def recorded(turn: Turn) -> tuple[Any, ...]:
    asked = turn.metadata.request
    assert asked
    return (
        asked.temperature,
        asked.top_p,
        asked.seed,
        asked.max_tokens,
        asked.top_k,
        asked.min_p,
        asked.stop,
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_what_was_sent_is_recorded(kind: str) -> None:
    turn, sent = await turn_of(kind, whole(kind))
    # Anthropic's Messages and OpenAI's Responses have no seed.
    seed = 7 if kind in ("chat", "google") else None
    top_k = 40 if kind in ("anthropic", "google") else None
    stop = () if kind == "responses" else ("END",)
    assert recorded(turn) == received(sent) == (0.25, None, seed, 321, top_k, None, stop)
    assert turn.metadata.request
    assert turn.metadata.request.tool_mode == "native"
    assert turn.metadata.model


@pytest.mark.parametrize("kind", KINDS)
async def test_a_parameter_that_was_refused_is_not_recorded(kind: str) -> None:
    words = "Unsupported parameter: 'temperature' is not supported with this model."
    refusal = {"error": {"message": words, "type": "invalid_request_error", "code": 400, "status": "INVALID_ARGUMENT"}}
    turn, sent = await turn_of(kind, json_reply(refusal, 400), whole(kind))
    assert recorded(turn) == received(sent)
    assert recorded(turn)[0] is None
    assert recorded(turn)[3] == 321


def local(url: str, **options: Any) -> LocalCrystal:
    return LocalCrystal(Endpoint("local", "m", url, options=options))


async def asked(made: Any, wire: Wire, **more: Any) -> tuple[RequestParameters, dict[str, Any]]:
    """What the turn of one cast records of its query, and the request as the server got it."""
    cantrip = Cantrip(made, CALL, Circle(gates=["done"], wards=[{"max_turns": 3}]), **more)
    await cantrip.cast("Hi")
    (turn,) = [t for t in cantrip.loom.turns() if t.role == "crystal"]
    assert isinstance(turn.metadata.request, RequestParameters)
    return turn.metadata.request, wire.requests[-1].json()


@pytest.mark.parametrize("tools", ["native", "text"])
async def test_a_local_server_gets_every_parameter(tools: str) -> None:
    with Wire([openai.said("Fine.")]) as wire:
        request, sent = await asked(local(wire.url, tools=tools), wire)
    # A crystal that writes its calls as text adds a stop of its own.
    stop = ("END",) if tools == "native" else ("END", "<tool_result")
    assert (request.top_k, request.min_p, request.stop) == (40, 0.05, stop)
    assert (sent["top_k"], sent["min_p"], tuple(sent["stop"])) == (40, 0.05, stop)
    assert (request.tool_mode, request.dialect) == (tools, "local")
    assert ("tools" in sent) == (tools == "native")
    assert request.weights is None


async def test_a_parameter_that_a_local_server_refuses_is_left_out() -> None:
    with Wire([openai.refusal(400, "min_p: Extra inputs are not permitted"), openai.said("Fine.")]) as wire:
        request, sent = await asked(local(wire.url), wire)
    assert (request.top_k, request.min_p) == (40, None)
    assert "min_p" not in sent


async def test_the_weights_have_the_label_of_the_recipe_or_the_server_or_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def reply(**more: Any) -> Reply:
        return json_reply({"choices": [{"message": {"content": "Fine."}, "finish_reason": "stop"}], **more})

    # SGLang reports what a trainer set with its weights.
    told = {"metadata": {"weight_version": "step-2"}}
    monkeypatch.setenv("CANTRIP_WEIGHTS", "step-3")
    with Wire([reply(**told), reply(**told), reply()]) as wire:
        labels = [(await asked(local(wire.url, weights="step-1"), wire))[0].weights]
        labels += [(await asked(local(wire.url), wire))[0].weights for _ in range(2)]

    class Sampling(ScriptedCrystal):
        """A crystal of a program, which says nothing of its query."""

        samples = True

    # A script has no weights.
    for kind in (Sampling, ScriptedCrystal):
        cantrip = Cantrip(kind([{"content": "Fine."}]), circle=Circle(gates=["done"], wards=[{"max_turns": 1}]))
        await cantrip.cast("Hi")
        request = cantrip.loom.turn(cantrip.loom.leaves()[-1]).metadata.request
        labels.append(request.weights if isinstance(request, RequestParameters) else None)
    assert labels == ["step-1", "step-2", "step-3", "step-3", None]


async def test_the_policy_of_a_trajectory_is_that_of_the_answers_that_it_trains() -> None:
    """A fork of a demonstration, and a fork of an answer that older weights sampled."""
    loom = Loom.memory()
    circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 3}])
    await Cantrip(ScriptedCrystal([{"content": "Fine."}]), circle=circle, loom=loom).cast("Hi")
    for label in ("step-1", "step-2"):
        with Wire([openai.said("Fine.")]) as wire:
            model = Cantrip(local(wire.url, weights=label), circle=circle, loom=loom)
            async with await model.fork(loom.leaves()[-1], loom=loom) as entity:
                await entity.cast("Again")
    found = [each for row in exports.find("art").rows(Source(loom)) for each in row["trajectories"]]
    versions = [(each["initial_policy_version"], each["final_policy_version"]) for each in found]
    assert versions == [(None, None), (1, 1), (2, 2)]


async def test_exports_contain_what_was_asked_and_the_version_of_the_weights() -> None:
    call = openai.call_delta(0, "call_1", "echo", '{"text": "a"}')
    loom = Loom.memory()
    with Wire([openai.chat_stream(call, finish="tool_calls"), openai.said("Fine.")]) as wire:
        endpoint = Endpoint("local", "m", wire.url, options={"weights": "step-11"})
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 3}])
        async with Cantrip(LocalCrystal(endpoint), CALL, circle, loom=loom).invoke() as entity:
            await entity.cast("Hi")
    expected = {"temperature": 0.25, "top_k": 40, "min_p": 0.05, "stop": ["END"], "weights": "step-11"}

    def rows(name: str) -> list[dict[str, Any]]:
        return [json.loads(json.dumps(row)) for row in exports.find(name).rows(Source(loom))]

    (group,) = rows("art")
    (trajectory,) = group["trajectories"]
    assert (trajectory["initial_policy_version"], trajectory["final_policy_version"]) == (11, 11)
    assert trajectory["metadata"]["final_weights"] == "step-11"
    requests = [item["request"] for item in trajectory["messages_and_choices"] if "finish_reason" in item]
    (row,) = rows("trl-sft")
    assert requests == row["cantrip"]["requests"]
    (trace,) = [row["traces"][0] for row in rows("verifiers")]
    assert list(trace["info"]["cantrip"]["requests"].values()) == requests
    (trajectory,) = rows("atif")
    steps = [step["extra"]["cantrip"]["request"] for step in trajectory["steps"] if step["source"] == "agent"]
    (sample,) = [row["data"] for row in rows("inspect") if row["sample"]]
    answers = [m["metadata"]["cantrip"]["request"] for m in sample["messages"] if m["role"] == "assistant"]
    assert steps == answers == requests
    assert all(expected.items() <= each.items() for each in requests)
    assert len(requests) == 2
