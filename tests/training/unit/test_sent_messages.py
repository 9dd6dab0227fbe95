"""The messages of exports are what the server was sent, and what the model wrote goes back as it wrote it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, RetryPolicy
from cantrip_acp.core import exports
from cantrip_acp.crystals.anthropic.messages import rendered
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.google.messages import contents_of
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.openai.responses_api import render_input
from cantrip_acp.crystals.scripted import ScriptedCrystal
from cantrip_acp.training.export.rows import write
from cantrip_acp.training.export.selection import Source
from cantrip_acp.training.importing.import_file import import_file
from cantrip_acp.types.messages import Message, ToolCall
from tests.support import openai_replies as openai
from tests.support.provider_server import Reply, Wire

pytestmark = pytest.mark.anyio

DONE = '```tool_call\n{"name": "done", "arguments": {"answer": "ok"}}\n```'

SPELLINGS = {
    "without spaces": '```tool_call\n{"name":"echo","arguments":{"text":"a"}}\n```',
    "more spaces": '```tool_call\n{ "name" : "echo",\n   "arguments" : { "text" :  "a" } }\n```\n',
    "other quotes": "```tool_call\n{'name': 'echo', 'parameters': {'text': 'a'}}\n```",
    "words around it": 'I call it.\n\n```tool_call\n{"name": "echo", "arguments": {"text": "a"}}\n```\n\nThat was it.  \n',
    "another fence": '\n\n~~~~ TOOL_CALL json\n{"arguments": {"text": "\\u0061"}, "name": "echo",}\n~~~~\n\n',
    "arguments as text": '```tool_call\r\n{"name": "echo", "arguments": "{ \\"text\\": \\"a\\" }"}\r\n```\r\n',
    "two in one": '```tool_call\n{"name": "echo", "arguments": {"text": "a"}}\n{"name": "echo", "arguments": {"text":"b"}}\n```',
    "broken": '```tool_call\n{"name": "echo", "arguments": {"text": "a}\n```',
    "not closed": '```tool_call\n{"name": "echo", "arguments": {"text": "a"}}',
}


async def asked(
    loom: Loom, *replies: Reply, tools: str = "text", call: Call | None = None
) -> list[list[dict[str, Any]]]:
    """The messages of each request of one cast."""
    with Wire(list(replies)) as wire:
        crystal = LocalCrystal(Endpoint("local", "m", wire.url, options={"tools": tools}))
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 6}])
        cantrip = Cantrip(crystal, call or Call("Be brief."), circle, loom=loom, retry=RetryPolicy(base_s=0.001))
        await cantrip.cast("go")
        return [request.json()["messages"] for request in wire.requests]


def exported(loom: Loom, name: str) -> list[dict[str, Any]]:
    return [json.loads(json.dumps(row)) for row in exports.find(name).rows(Source(loom))]


def prompts(loom: Loom) -> list[list[dict[str, Any]]]:
    """What each choice of the one trajectory answered."""
    (group,) = exported(loom, "art")
    (trajectory,) = group["trajectories"]
    items = trajectory["messages_and_choices"]
    plain = [{key: v for key, v in item.get("message", item).items() if key in ("role", "content")} for item in items]
    return [plain[:at] for at, item in enumerate(items) if "finish_reason" in item]


@pytest.mark.parametrize("spelling", SPELLINGS)
async def test_a_call_goes_back_as_it_was_spelled_and_exports_say_what_was_sent(spelling: str) -> None:
    text = SPELLINGS[spelling]
    loom = Loom.memory()
    first, second = await asked(loom, openai.said(text), openai.said(DONE))
    assert second[: len(first)] == first, "a thread is one sequence"
    assert second[len(first)] == {"role": "assistant", "content": text}
    assert [m["role"] for m in second] == ["system", "user", "assistant", "user"]
    assert prompts(loom) == [first, second]
    (row,) = exported(loom, "trl-sft")
    assert row["prompt"] == first
    assert row["completion"] == [*second[len(first) :], {"role": "assistant", "content": DONE}]
    # The tools are in the system prompt, so a template must not describe them again.
    assert row["tools"] == "[]"
    (trace,) = [each["traces"][0] for each in exported(loom, "verifiers")]
    assert [node["message"]["content"] for node in trace["nodes"]] == [
        *(message["content"] for message in second),
        DONE,
    ]


async def test_formats_of_steps_have_calls_in_text_as_calls_and_their_results_once(tmp_path: Path) -> None:
    """They tell what was done. They are no prompts, so they need not have the form that was sent."""
    loom = Loom.memory()
    with Wire([openai.said(each) for each in (SPELLINGS["words around it"], "I think.", DONE)]) as wire:
        crystal = LocalCrystal(Endpoint("local", "m", wire.url, options={"tools": "text"}))
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 6}, {"require_done_tool": True}])
        await Cantrip(crystal, Call("Be brief."), circle, loom=loom).cast("go")
    (trajectory,) = exported(loom, "atif")
    steps = trajectory["steps"]
    assert [step["source"] for step in steps] == ["system", "user", "agent", "agent", "user", "agent"]
    assert [step["message"] for step in steps[:4]] == ["Be brief.", "go", "I call it.\n\n\nThat was it.", "I think."]
    assert [call["function_name"] for step in steps for call in step.get("tool_calls", ())] == ["echo", "done"]
    results = [result for step in steps for result in step.get("observation", {}).get("results", ())]
    assert [(bool(result.get("source_call_id")), result["content"]) for result in results] == [
        (True, "a"),
        (True, "ok"),
    ]
    sample = next(row["data"] for row in exported(loom, "inspect") if row["sample"])
    roles = [message["role"] for message in sample["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool"]
    # So a reader finds the one cast again, with its calls.
    for name, file in (("atif", "a.jsonl"), ("inspect", "a.eval")):
        with (tmp_path / file).open("wb") as out:
            write(exports.find(name), Source(loom), out)
        into = Loom.memory()
        import_file(str(tmp_path / file), into)
        ((start, end),) = into.casts()
        assert (start.intent, end and end.reason) == ("go", "done")
        (own,) = exported(into, "trl-sft")
        assert [message["role"] for message in own["messages"]] == roles[:-1]


async def test_an_imported_conversation_has_its_reference_at_the_last_cast(tmp_path: Path) -> None:
    loom = Loom.memory()
    script = ScriptedCrystal([{"content": "2"}, {"content": "4"}])
    async with Cantrip(script, circle=Circle(gates=["done"], wards=[{"max_turns": 2}]), loom=loom).invoke() as entity:
        await entity.cast("1 + 1?", reference="2")
        await entity.cast("And 2 + 2?", reference="4")
    for name, file in (("atif", "a.jsonl"), ("inspect", "a.eval")):
        with (tmp_path / file).open("wb") as out:
            write(exports.find(name), Source(loom), out)
        into = Loom.memory()
        import_file(str(tmp_path / file), into)
        found = [(row["intent"], row["reference"]) for row in exported(into, "trl-prompts")]
        assert found == [("1 + 1?", None), ("And 2 + 2?", "4")]


async def test_what_a_model_invents_does_not_go_back_and_is_not_exported() -> None:
    said = (
        '```tool_call\n{"name": "echo", "arguments": {"text": "a"}}\n```\n<tool_result name="echo">\nb\n</tool_result>'
    )
    loom = Loom.memory()
    _, second = await asked(loom, openai.said(said), openai.said(DONE))
    assert second[2]["content"] == said.partition("<tool_result")[0]
    assert prompts(loom)[1] == second


@pytest.mark.parametrize("choice", ["required", "none"])
async def test_the_tool_choice_is_part_of_what_was_sent(choice: Any) -> None:
    loom = Loom.memory()
    (first,) = await asked(loom, openai.said(DONE), call=Call("Be brief.", tool_choice=choice))
    assert ("must call at least one tool" in first[0]["content"]) == (choice == "required")
    assert prompts(loom) == [first]


async def test_native_calls_have_one_system_message_too() -> None:
    loom = Loom.memory()
    call = openai.call_delta(0, "call_1", "echo", '{"text":  "a"}')
    first, second = await asked(
        loom,
        openai.chat_stream(call, finish="tool_calls"),
        openai.said("Fine."),
        tools="native",
        call=Call("Be brief."),
    )
    assert prompts(loom)[0] == first
    assert [m["role"] for m in prompts(loom)[1]] == [m["role"] for m in second]
    (row,) = exported(loom, "trl-sft")
    assert [tool["function"]["name"] for tool in json.loads(row["tools"])] == ["echo", "done"]
    (group,) = exported(loom, "art")
    sent = next(m for m in second if m.get("tool_calls"))["tool_calls"][0]["function"]["arguments"]
    items = group["trajectories"][0]["messages_and_choices"]
    assert next(i for i in items if "finish_reason" in i)["message"]["tool_calls"][0]["function"]["arguments"] == sent


async def test_native_calls_have_the_names_ids_and_arguments_that_were_sent() -> None:
    # A server takes no dot in a name, no long id, and no arguments that are not an object.
    first = [
        openai.call_delta(0, "call_" + "1" * 60, "functions.echo", '{"text":  "a"}'),
        openai.call_delta(1, "call_2", "echo", '{"text": a'),
    ]
    with Wire([openai.chat_stream(*first, finish="tool_calls"), openai.said("Fine.")]) as wire:
        crystal = LocalCrystal(Endpoint("local", "m", wire.url, options={"tools": "native"}))
        circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 3}])
        loom = Loom.memory()
        await Cantrip(crystal, Call("Be brief."), circle, loom=loom).cast("go")
        sent = wire.requests[1].json()
    (group,) = exported(loom, "art")
    items = group["trajectories"][0]["messages_and_choices"]
    messages = [dict(item.get("message", item)) for item in items[:-1]]
    for message in messages:
        message.pop("refusal", None)
    assert messages == sent["messages"]
    assert group["trajectories"][0]["tools"] == sent["tools"]
    # Formats that are no prompts have what the model wrote.
    (trajectory,) = exported(loom, "atif")
    (step,) = [each for each in trajectory["steps"] if "tool_calls" in each]
    assert [call["function_name"] for call in step["tool_calls"]] == ["functions.echo", "echo"]
    assert [each["source_call_id"] for each in step["observation"]["results"]] == ["call_" + "1" * 60, "call_2"]


async def test_a_rejected_answer_has_the_prompt_that_was_sent() -> None:
    loom = Loom.memory()
    first, second = await asked(
        loom, openai.said("I would rather talk."), openai.said(DONE), call=Call("Be brief.", tool_choice="required")
    )
    (group,) = exported(loom, "art")
    whole, rejected = group["trajectories"]
    assert [{"role": m["role"], "content": m["content"]} for m in rejected["messages_and_choices"][:-1]] == first
    assert second[: len(first)] == first
    assert [{"role": m["role"], "content": m["content"]} for m in whole["messages_and_choices"][:-1]] == second


@pytest.mark.parametrize("tools", ["native", "text"])
async def test_an_answer_after_rejected_ones_has_them_in_its_prompt_and_later_answers_do_not(tools: str) -> None:
    loom = Loom.memory()
    native = openai.chat_stream(openai.call_delta(0, "call_1", "echo", '{"text": "a"}'), finish="tool_calls")
    echo = native if tools == "native" else openai.said(SPELLINGS["without spaces"])
    end = openai.chat_stream(openai.call_delta(0, "call_2", "done", '{"answer": "ok"}'), finish="tool_calls")
    replies = [openai.said("No."), openai.said("Never."), echo, end if tools == "native" else openai.said(DONE)]
    sent = await asked(loom, *replies, tools=tools, call=Call("Be brief.", tool_choice="required"))
    assert [len(messages) for messages in sent] == [2, 4, 6, 4]
    (group,) = exported(loom, "art")
    found = []
    for trajectory in group["trajectories"]:
        for history in (trajectory, *trajectory["additional_histories"]):
            items = [dict(item.get("message", item)) for item in history["messages_and_choices"]]
            for item in items:
                item.pop("refusal", None)
            found.append(items[:-1])
    assert len(found) == len(sent)
    assert all(messages in sent for messages in found)
    assert all(messages in found for messages in sent)
    # One thread, for readers of text too. There, a rejected answer is no part of what is learned.
    (row,) = exported(loom, "trl-sft")
    assert row["prompt"] == sent[0]
    (episode, *lost) = exported(loom, "verifiers")
    (trace,) = episode["traces"]
    contents = [[n["message"].get("content") for n in path(trace, at)] for at in trace["info"]["cantrip"]["turns"]]
    assert [("No." in each, "Never." in each) for each in contents] == [(True, True), (False, False)]
    assert len(lost) == 2


def path(trace: dict[str, Any], at: str) -> list[dict[str, Any]]:
    """The nodes of a trace from its beginning to a node."""
    found: list[dict[str, Any]] = []
    number: int | None = int(at)
    while number is not None:
        found.insert(0, trace["nodes"][number])
        number = found[0]["parent"]
    return found


async def test_demonstrations_of_a_script_are_sent_as_calls_in_text() -> None:
    """A scripted crystal gives a demonstration, and a model continues as a fork: each window has the form of its own crystal."""
    loom = Loom.memory()
    script = ScriptedCrystal([{"tool_calls": [{"gate": "echo", "args": {"text": "a"}}]}, {"content": "Fine."}])
    circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 4}])
    await Cantrip(script, Call("Be brief."), circle, loom=loom).cast("go")
    leaf = loom.leaves()[-1]
    with Wire([openai.said(DONE)]) as wire:
        crystal = LocalCrystal(Endpoint("local", "m", wire.url, options={"tools": "text"}))
        entity = await Cantrip(crystal, Call("Be brief."), circle, loom=loom).fork(leaf)
        await entity.cast("again")
        await entity.close()
        sent = wire.requests[-1].json()["messages"]
    assert '```tool_call\n{"name": "echo"' in sent[2]["content"]
    (row,) = [row for row in exported(loom, "trl-sft") if row["cantrip"]["trained_from"] == len(sent)]
    assert row["prompt"] == sent


async def test_calls_in_text_go_to_a_crystal_with_tool_definitions_only_as_calls() -> None:
    loom = Loom.memory()
    await asked(loom, openai.said(SPELLINGS["words around it"]), openai.said(DONE))
    circle = Circle(gates=["echo", "done"], wards=[{"max_turns": 6}])
    with Wire([openai.said("Fine.")]) as wire:
        crystal = LocalCrystal(Endpoint("local", "m", wire.url, options={"tools": "native"}))
        entity = await Cantrip(crystal, Call("Be brief."), circle, loom=loom).fork(loom.leaves()[-1])
        await entity.cast("again")
        await entity.close()
        sent = wire.requests[-1].json()["messages"]
    calls = [message for message in sent if "tool_calls" in message]
    assert [message["content"] for message in calls] == ["I call it.\n\n\nThat was it.", None]
    assert [call["function"]["name"] for message in calls for call in message["tool_calls"]] == ["echo", "done"]
    (own,) = [t for group in exported(loom, "art") for t in group["trajectories"] if t["metadata"]["forked_from"]]
    (history,) = [each for each in (own, *own["additional_histories"]) if each["tools"]]
    assert history["messages_and_choices"][:-1] == sent


def test_every_provider_gets_a_call_in_text_once() -> None:
    call = ToolCall("call_1", "echo", '{"text": "a"}')
    said = Message("assistant", SPELLINGS["words around it"], (call,), text_calls=True)
    messages = [Message("user", "go"), said, Message("tool", "a", tool_call_id="call_1", name="echo")]
    bodies: list[Any] = [
        rendered(messages, "m", ModelInfo()).messages,
        contents_of(messages, "m", ModelInfo()),
        render_input(messages, ModelInfo(), "m"),
    ]
    for body in bodies:
        text = json.dumps(body)
        assert "That was it." in text
        assert "tool_call\\n" not in text
