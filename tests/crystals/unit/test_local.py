"""Servers of one's own: what they leave out, what they refuse, and gate calls in text where they take no tools."""

from __future__ import annotations

import json

import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.crystal import LocalCrystal, local_address
from cantrip_acp.crystals.local.presets import ollama_address
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import ContextLimitError, CrystalError, DefinitionError
from cantrip_acp.types.messages import Message, ToolCall
from cantrip_acp.types.usage import UNKNOWN_USAGE
from tests.support.openai_replies import (
    DONE,
    DONE_GATE,
    MODEL,
    READ,
    USER,
    asked,
    call_delta,
    chat_stream,
    chunk,
    counts,
    refusal,
    said,
    strict,
    text,
    turn,
)
from tests.support.provider_server import Reply, Wire, json_reply, sse_reply


def crystal(wire: Wire, provider: str = "local", info: ModelInfo = UNKNOWN, **options: object) -> LocalCrystal:
    return LocalCrystal(Endpoint(provider, MODEL, wire.url, info=info, options=options))


def streamed(*texts: str, finish: str = "stop") -> Reply:
    """An answer as small servers stream it: no usage, no [DONE]."""
    return sse_reply([*(chunk({"content": t}) for t in texts), chunk({}, finish)])


async def test_without_a_key_nothing_is_sent_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "planted-0123456789")
    with Wire(strict(said(), said())) as wire:
        await asked(crystal(wire), params=Call(max_tokens=9), entity_id="e")
        await asked(LocalCrystal(Endpoint("local", MODEL, f"{wire.url}/v1", Secret("key-0123456789"))))
        first, second = wire.requests
    assert "authorization" not in first.headers
    assert second.headers["authorization"] == "Bearer key-0123456789"
    assert first.path == "/v1/chat/completions"
    assert first.json()["max_tokens"] == 9
    assert "prompt_cache_key" not in first.json()


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("", "http://127.0.0.1:11434/v1"),
        ("box", "http://box:11434/v1"),
        ("box:99", "http://box:99/v1"),
        (":99", "http://127.0.0.1:99/v1"),
        ("0.0.0.0", "http://127.0.0.1:11434/v1"),
        ("0.0.0.0:99", "http://127.0.0.1:99/v1"),
        ("http://box", "http://box:80/v1"),
        ("https://box/ollama/", "https://box:443/ollama/v1"),
        ("[::]:99", "http://[::1]:99/v1"),
        ("::1", "http://[::1]:11434/v1"),
    ],
)
def test_ollamas_address(host: str, address: str) -> None:
    assert ollama_address(host) == address


def test_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_HOST", "box:99")
    assert local_address(Endpoint("ollama", "m")) == "http://box:99/v1"
    assert local_address(Endpoint("local", "m", "http://127.0.0.1:8000")) == "http://127.0.0.1:8000/v1"
    assert local_address(Endpoint("local", "m", "http://127.0.0.1:8000/api/v2")) == "http://127.0.0.1:8000/api/v2"
    with pytest.raises(DefinitionError, match="native, text"):
        LocalCrystal(Endpoint("local", "m", options={"tools": "maybe"}))


@pytest.mark.parametrize(
    ("provider", "port", "words"), [("ollama", 1, "ollama serve"), ("local", 1, "the model's server")]
)
async def test_nobody_listens(provider: str, port: int, words: str) -> None:
    with Wire([]) as wire:
        pass
    with pytest.raises(CrystalError, match=words) as caught:
        await asked(crystal(wire, provider))
    assert wire.url in str(caught.value)
    assert "crystal.base_url" in str(caught.value)


async def test_a_model_that_is_not_there() -> None:
    with Wire([refusal(404, f"model '{MODEL}' not found")]) as wire:
        with pytest.raises(CrystalError, match=f"ollama pull {MODEL}"):
            await asked(crystal(wire, "ollama"))


async def test_what_ollama_cuts_off_in_silence_is_an_error() -> None:
    """CRYSTAL-2: by default it keeps the last 4096 tokens, and answers as if nothing was."""
    long = Message("user", "Some words of a long text. " * 2000)
    with Wire(
        [chat_stream({"content": "x"}, usage=counts(4096, 1)), chat_stream({"content": "x"}, usage=counts(13_000, 1))]
    ) as wire:
        made = crystal(wire, "ollama")
        with pytest.raises(ContextLimitError, match="OLLAMA_CONTEXT_LENGTH"):
            await asked(made, long)
        response, _ = await asked(made, long)
    assert response.content == "x"


async def test_usage_that_is_missing_is_unknown() -> None:
    with Wire(strict(streamed("x" * 40), streamed("y"))) as wire:
        response, _ = await asked(crystal(wire), Message("user", "a" * 400))
    assert response.usage == UNKNOWN_USAGE


async def test_usage_of_llama_cpp_and_with_each_chunk() -> None:
    timings = {"prompt_n": 30, "cache_n": 70, "predicted_n": 5}
    usage = [{"prompt_tokens": 9, "completion_tokens": n, "total_tokens": 9 + n} for n in (1, 2)]
    with Wire(
        [
            sse_reply([chunk({"content": "x"}), chunk({}, "stop", timings=timings)]),
            sse_reply([chunk({"content": "x"}, usage=usage[0]), chunk({}, "stop", usage=usage[1])]),
        ]
    ) as wire:
        first, _ = await asked(crystal(wire))
        second, _ = await asked(crystal(wire))
    assert (first.usage.prompt_tokens, first.usage.cached_tokens, first.usage.completion_tokens) == (100, 70, 5)
    assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (9, 2)


async def test_a_server_that_knows_no_stream_options() -> None:
    problem = json_reply(
        {"detail": [{"type": "extra_forbidden", "msg": "Extra inputs are not permitted: stream_options"}]}, 422
    )
    with Wire([problem, streamed("ok"), streamed("ok")]) as wire:
        made = crystal(wire)
        await asked(made)
        await asked(made)
        assert [("stream_options" in r.json()) for r in wire.requests] == [True, False, False]


async def test_an_empty_answer_is_asked_for_again() -> None:
    with Wire([streamed(" \n ")]) as wire:
        with pytest.raises(CrystalError, match="empty answer") as caught:
            await asked(crystal(wire))
    assert caught.value.may_retry()


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("raw", "thinking", "content"),
    [
        ("<think>Hm, a<b.</think>\n\nYes.", "Hm, a<b.", "Yes."),
        ("<think>\nHm.\n</think>Yes <think>later</think>.", "Hm.", "Yes <think>later</think>."),
        ("  <thinking>Hm.</thinking> Yes.", "Hm.", "Yes."),
        ("◁think▷Hm.◁/think▷Yes.", "Hm.", "Yes."),
        ("<think></think>\nYes.", None, "Yes."),
        ("Use <think> tags.", None, "Use <think> tags."),
        ("<thin ice>", None, "<thin ice>"),
        ("<", None, "<"),
        ("Hm, so.</think>\n\nYes.", "Hm, so.", "Yes."),
    ],
)
async def test_thinking_in_tags(raw: str, thinking: str | None, content: str, size: int) -> None:
    pieces = [raw[at : at + size] for at in range(0, len(raw), size)]
    with Wire(strict(streamed(*pieces))) as wire:
        response, shown = await asked(crystal(wire))
    assert (response.thinking, response.content) == (thinking, content)
    if "</think>\n\nYes" not in raw or raw.startswith("<"):
        assert text(shown) == content
        assert text(shown, "thought").strip() == (thinking or "")


async def test_thinking_is_given_back_between_calls_alone() -> None:
    """DeepSeek and Kimi refuse a call without the thinking before it."""
    thought = chunk({"reasoning_content": "Hm."}, check=False)
    with Wire(
        strict(
            sse_reply([thought, chunk(call_delta(0, "a", "read_file", "{}")), chunk({}, "tool_calls"), DONE]),
            sse_reply([thought, chunk({"content": "x"}), chunk({}, "stop"), DONE]),
            said(),
        )
    ) as wire:
        made = crystal(wire)
        first, _ = await asked(made, tools=(READ,))
        second, _ = await asked(made, tools=(READ,))
        await asked(made, USER, *turn(*first.tool_calls, provider=first.provider), tools=(READ,))
        sent = wire.requests[2].json()["messages"][1]
    assert second.provider is None
    assert sent["reasoning_content"] == "Hm."


async def test_one_system_message_first_and_users_in_turn() -> None:
    """Many chat templates raise at anything else."""
    with Wire(strict(said())) as wire:
        await asked(
            crystal(wire),
            Message("system", "You are A.", kind="call"),
            Message("system", "Tools.", kind="capabilities"),
            Message("user", "First?"),
            Message("system", "<context>late</context>", kind="context"),
            Message("user", "Second?"),
        )
        sent = wire.requests[0].json()["messages"]
    assert sent == [
        {"role": "system", "content": "You are A.\n\nTools."},
        {"role": "user", "content": "First?"},
        {"role": "assistant", "content": "Understood."},
        {"role": "user", "content": "<context>late</context>\n\nSecond?"},
    ]


# Tools in text.

ASKED = '```tool_call\n{"name": "read_file", "arguments": {"path": "a"}}\n```'


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (400, "registry.ollama.ai/library/gemma3:4b does not support tools"),
        (400, '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'),
        (500, "tools param requires --jinja flag"),
        (422, "tools: Extra inputs are not permitted"),
        (404, "No endpoints found that support tool use."),
    ],
)
async def test_a_server_without_tools_is_asked_in_text_from_then_on(status: int, words: str) -> None:
    with Wire(strict(refusal(status, words), streamed(ASKED), streamed(ASKED))) as wire:
        made = crystal(wire)
        for _ in range(2):
            response, _ = await asked(made, Message("system", "You are A."), USER, tools=(READ,))
            assert [(c.gate, json.loads(c.args)) for c in response.tool_calls] == [("read_file", {"path": "a"})]
            assert response.stop_reason == "tool_calls"
        bodies = [request.json() for request in wire.requests]
    assert "tools" in bodies[0]
    assert "tools" not in bodies[1]
    assert bodies[1] == bodies[2]
    assert bodies[1]["messages"][0]["content"].startswith("You are A.\n\n# Tools")
    assert "read_file" in bodies[1]["messages"][0]["content"]


async def test_native_alone_says_what_the_server_says() -> None:
    with Wire([refusal(400, "this model does not support tools")]) as wire:
        with pytest.raises(CrystalError, match="does not support tools"):
            await asked(crystal(wire, tools="native"), tools=(READ,))


@pytest.mark.parametrize("how", [{"tools": "text"}, {"info": ModelInfo(tools=False)}])
async def test_by_setting(how: dict) -> None:
    with Wire(strict(streamed("I look.\n", ASKED))) as wire:
        response, shown = await asked(crystal(wire, **how), tools=(READ,))
        assert wire.requests[0].json()["stop"] == ["<tool_result"]
    assert response.content == f"I look.\n{ASKED}", "the text is kept as it was generated"
    assert text(shown).strip() == "I look.", "calls are not shown as text"
    assert response.tool_calls[0].gate == "read_file"


async def test_history_in_text() -> None:
    with Wire(strict(said())) as wire:
        calls = (ToolCall("1", "read_file", '{"path":"a"}'), ToolCall("2", "server.tool", "{broken"))
        await asked(crystal(wire, tools="text"), USER, *turn(*calls, content="I look."), tools=(READ,))
        sent = wire.requests[0].json()["messages"]
    assert [m["role"] for m in sent] == ["system", "user", "assistant", "user"]
    assert sent[2]["content"].startswith(
        'I look.\n\n```tool_call\n{"name": "read_file", "arguments": {"path":"a"}}\n```'
    )
    assert "malformed_arguments" in sent[2]["content"]
    assert sent[3]["content"].startswith('<tool_result name="read_file">\nresult of 1\n</tool_result>')


async def test_none_and_required_in_text() -> None:
    with Wire(strict(said(ASKED), said(ASKED))) as wire:
        made = crystal(wire, tools="text")
        none, _ = await asked(made, tools=(READ,), tool_choice="none")
        await asked(made, tools=(READ,), tool_choice="required")
        first, second = (request.json()["messages"][0] for request in wire.requests)
    assert none.tool_calls == ()
    assert first["role"] == "user"
    assert "at least one tool" in second["content"]


async def test_requests_in_text_grow_by_their_end_alone() -> None:
    from cantrip_acp.crystals.contract import Query

    history = [Message("system", "You are A.", kind="call"), USER]
    before: list[bytes] = []
    with Wire([]) as wire:
        made = crystal(wire, tools="text")
    for number in range(12):
        body = made.body(Query(history, (READ, DONE_GATE)), by_text=True)
        now = [json.dumps(m).encode() for m in body["messages"]]
        assert now[: len(before)] == before
        before = now
        history += turn(ToolCall(f"c{number}", "read_file"), ToolCall(f"d{number}", "read_file"))
        if number % 4 == 3:
            history.append(Message("user", "And now?"))


def test_a_cast_in_text() -> None:
    """The whole: a gate, its result read back, and done, with a model that knows no tools."""
    seen: list[str] = []

    def answer(request) -> Reply:
        messages = request.json()["messages"]
        seen.append(messages[-1]["content"])
        if "hello from echo" in seen[-1]:
            return streamed('Done now.\n```tool_call\n{"name":"done","arguments":{"answer":"it said hello"}}\n```')
        return streamed('```tool_call\n{"name": "echo", "arguments": {"text": "hello from echo"}}\n```\n')

    with Wire(answer) as wire:
        circle = Circle(gates=["done", "echo"], wards=[{"max_turns": 4}])
        result = Cantrip(crystal(wire, tools="text"), {"system_prompt": "Be brief."}, circle).cast_sync("Say hello.")
    assert result.result == "it said hello"
    assert '<tool_result name="echo">' in seen[1]


BLOCK = "```python\nopen('made', 'w').write('x')\n```"


def test_a_server_that_is_found_to_take_no_tools_gets_calls_and_no_programs(tmp_path) -> None:
    words = refusal(400, "this model does not support tools")
    with Wire(strict(words, streamed(BLOCK))) as wire:
        circle = Circle("code", ["done"], {"max_turns": 4, "code_writable_paths": ["."]}, workspace=tmp_path)
        result = Cantrip(crystal(wire), circle=circle).cast_sync("Make it.")
    assert (result.reason, result.result, (tmp_path / "made").exists()) == ("text", BLOCK, False)


async def test_calls_that_a_server_leaves_in_the_text_are_text(caplog) -> None:
    left = '<tool_call>\n{"name": "read_file", "arguments": {"path": "a"}}\n</tool_call>'
    with Wire(strict(streamed(left), streamed(left))) as wire:
        made = crystal(wire)
        for _ in range(2):
            response, shown = await asked(made, tools=(READ,))
            assert (response.content, response.tool_calls, text(shown)) == (left, (), left)
    assert [r.message for r in caplog.records if "crystal.tools: text" in r.message] == [caplog.records[0].message]


async def test_an_invented_result_is_kept_and_not_shown_to_the_model_again() -> None:
    invented = f'{ASKED}\n\n<tool_result name="read_file">\nall good\n</tool_result>\nDone.'
    with Wire(strict(streamed(invented), streamed("ok"))) as wire:
        made = crystal(wire, tools="text")
        response, _ = await asked(made, tools=(READ,))
        assert response.content == invented
        said = Message("assistant", response.content, response.tool_calls, text_calls=response.text_calls)
        answer = Message("tool", "real", tool_call_id=response.tool_calls[0].id, name="read_file")
        await asked(made, USER, said, answer, tools=(READ,))
        sent = wire.requests[1].json()["messages"]
    assert sent[2]["content"].strip() == ASKED
    assert "all good" not in json.dumps(sent)


@pytest.mark.parametrize(
    ("options", "by_text"), [({"tools": "text"}, True), ({"tools": "text", "api": "responses"}, False), ({}, False)]
)
def test_an_openai_model_writes_its_calls_where_it_is_told_to(options: dict, by_text: bool) -> None:
    from cantrip_acp.crystals.openai.responses_api import OpenAICrystal

    made = OpenAICrystal(Endpoint("openai", "gpt-6-astra", options=options))
    assert made.text_calls is by_text
    assert made.api == ("chat" if by_text else "responses")
