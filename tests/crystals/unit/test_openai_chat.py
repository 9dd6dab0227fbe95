"""OpenAI and gateways by Chat Completions: the real SDK against a server that refuses what the API would refuse."""

from __future__ import annotations

import json

import pytest

from cantrip_acp.crystals.catalog.types import UNKNOWN, ModelInfo, Price
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.openai.chat_messages import Dialect, render
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.types.call import Call
from cantrip_acp.types.messages import Attachment, Message, ToolCall
from tests.support.openai_replies import (
    DONE,
    DONE_GATE,
    MODEL,
    READ,
    USER,
    args_delta,
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

SECRET = "sk-test-0123456789abcdefghij"


def crystal(wire: Wire, info: ModelInfo = UNKNOWN, **options: object) -> OpenAICrystal:
    return OpenAICrystal(Endpoint("openai", MODEL, f"{wire.url}/v1", Secret(SECRET), info=info, options=options))


async def test_text_streams_and_is_counted() -> None:
    usage = counts(100, 20, cached=60, reasoning=5)
    with Wire(strict(chat_stream({"content": "Hel"}, {"content": "lo."}, usage=usage))) as wire:
        made = crystal(wire, ModelInfo(price=Price(1, 2, 0.5)))
        response, shown = await asked(made, request_id="r1")
        assert wire.requests[0].headers["x-acp-model-request-id"] == "r1"
        assert wire.requests[0].headers["authorization"] == f"Bearer {SECRET}"
    assert response.content == "Hello."
    assert [d.text for d in shown] == ["Hel", "lo."]
    assert (response.usage.prompt_tokens, response.usage.cached_tokens, response.usage.completion_tokens) == (
        100,
        60,
        20,
    )
    assert response.usage.reasoning_tokens == 5
    assert response.usage.cost == pytest.approx((40 + 60 * 0.5 + 20 * 2) / 1e6)
    assert (response.stop_reason, response.model, response.id) == ("stop", MODEL, "c-1")


async def test_what_is_asked() -> None:
    with Wire(strict(said(), said())) as wire:
        params = Call(temperature=0.5, top_p=0.9, max_tokens=50, stop=("END",))
        for info in (UNKNOWN, ModelInfo(sampling=False)):
            await asked(
                crystal(wire, info, effort="low"),
                Message("system", "You are A.", kind="call"),
                Message("system", "More.", kind="capabilities"),
                USER,
                tools=(READ,),
                tool_choice="required",
                params=params,
            )
        first, second = (request.json() for request in wire.requests)
    assert first["messages"] == [
        {"role": "system", "content": "You are A."},
        {"role": "system", "content": "More."},
        {"role": "user", "content": "Hi"},
    ]
    assert first["tools"][0]["function"]["parameters"] == READ.parameters
    assert first["tool_choice"] == "required"
    assert (first["temperature"], first["top_p"], first["stop"]) == (0.5, 0.9, ["END"])
    assert first["max_completion_tokens"] == 50
    assert first["reasoning_effort"] == "low"
    assert first["stream_options"] == {"include_usage": True}
    assert not {"temperature", "top_p"} & set(second)


@pytest.mark.parametrize("choice", ["auto", "none"])
async def test_tool_choice(choice: str) -> None:
    with Wire(strict(said())) as wire:
        await asked(crystal(wire), tools=(READ,), tool_choice=choice)
        assert wire.requests[0].json().get("tool_choice", "auto") == choice


async def test_calls_one_many_empty_and_malformed() -> None:
    deltas = (
        {"content": "I look."},
        call_delta(0, "call_a", "read_file"),
        args_delta(0, '{"path"'),
        args_delta(0, ': "a"}'),
        call_delta(1, "call_b", "done"),
        call_delta(2, "call_c", "read_file", '{"path": '),
    )
    with Wire(strict(chat_stream(*deltas, finish="tool_calls"))) as wire:
        response, shown = await asked(crystal(wire), tools=(READ, DONE_GATE))
    assert [(c.id, c.gate, c.args) for c in response.tool_calls] == [
        ("call_a", "read_file", '{"path": "a"}'),
        ("call_b", "done", "{}"),
        ("call_c", "read_file", '{"path": '),
    ]
    assert (response.content, response.stop_reason) == ("I look.", "tool_calls")
    assert text(shown) == "I look."


def piece(**call: object) -> bytes:
    return chunk({"tool_calls": [call]}, check=False)


@pytest.mark.parametrize(
    ("pieces", "calls"),
    [
        # No index: servers that send each call whole.
        (
            [
                piece(id="a", function={"name": "f", "arguments": "{}"}),
                piece(id="b", function={"name": "g", "arguments": "{}"}),
            ],
            [("f", "{}"), ("g", "{}")],
        ),
        # All calls at index 0, told apart by their ids.
        (
            [
                piece(index=0, id="a", function={"name": "f", "arguments": '{"x":1}'}),
                piece(index=0, id="b", function={"name": "f", "arguments": '{"x":2}'}),
            ],
            [("f", '{"x":1}'), ("f", '{"x":2}')],
        ),
        # Neither index nor id.
        (
            [
                piece(function={"name": "f", "arguments": '{"x":1}'}),
                piece(function={"name": "f", "arguments": '{"x":2}'}),
            ],
            [("f", '{"x":1}'), ("f", '{"x":2}')],
        ),
        # Neither, and arguments in pieces.
        (
            [
                piece(function={"name": "f"}),
                piece(function={"arguments": '{"x":'}),
                piece(function={"arguments": "1}"}),
            ],
            [("f", '{"x":1}')],
        ),
        # The name with every piece.
        (
            [
                piece(index=0, id="a", function={"name": "f", "arguments": '{"x":'}),
                piece(index=0, id="a", function={"name": "f", "arguments": "1}"}),
            ],
            [("f", '{"x":1}')],
        ),
        # The id with the first piece alone, then null or empty.
        (
            [
                piece(index=0, id="a", type="function", function={"name": "f", "arguments": ""}),
                piece(index=0, id=None, type=None, function={"name": None, "arguments": "{}"}),
                piece(index=0, id="", function={"name": "", "arguments": ""}),
            ],
            [("f", "{}")],
        ),
        # Arguments that are not text.
        ([piece(index=0, id="a", function={"name": "f", "arguments": {"x": 1}})], [("f", '{"x":1}')]),
        # An id that stands for two calls.
        (
            [piece(index=0, id="a", function={"name": "f"}), piece(index=1, id="a", function={"name": "g"})],
            [("f", "{}"), ("g", "{}")],
        ),
        # Name and arguments beside the index, as some proxies flatten it.
        ([piece(index=0, id="a", name="f", arguments="{}")], [("f", "{}")]),
        # Pieces of two calls by turns.
        (
            [
                piece(index=0, id="a", function={"name": "f"}),
                piece(index=1, id="b", function={"name": "g"}),
                piece(index=0, function={"arguments": "{}"}),
                piece(index=1, function={"arguments": "[]"}),
            ],
            [("f", "{}"), ("g", "[]")],
        ),
        # Functions of before there were tools.
        (
            [
                chunk({"function_call": {"name": "f", "arguments": '{"x"'}}, check=False),
                chunk({"function_call": {"arguments": ":1}"}}, check=False),
            ],
            [("f", '{"x":1}')],
        ),
    ],
)
async def test_pieces_of_calls_as_servers_send_them(pieces: list[bytes], calls: list[tuple[str, str]]) -> None:
    with Wire(strict(sse_reply([*pieces, chunk({}, "tool_calls"), DONE]))) as wire:
        response, _ = await asked(crystal(wire), tools=(READ,))
    assert [(c.gate, c.args) for c in response.tool_calls] == calls
    assert len({c.id for c in response.tool_calls}) == len(calls)
    assert all(c.id for c in response.tool_calls)
    assert response.stop_reason == "tool_calls"


@pytest.mark.parametrize(
    ("finish", "stop"),
    [("stop", "stop"), ("length", "length"), ("eos", "stop"), ("max_tokens", "length"), ("odd_reason", "odd_reason")],
)
async def test_stop_reasons(finish: str, stop: str) -> None:
    with Wire(strict(sse_reply([chunk({"content": "x"}), chunk({}, finish, check=False), DONE]))) as wire:
        response, _ = await asked(crystal(wire))
    assert response.stop_reason == stop


async def test_refusal_and_filter() -> None:
    with Wire(strict(chat_stream({"refusal": "I cannot."}), chat_stream(finish="content_filter"))) as wire:
        made = crystal(wire)
        first, _ = await asked(made)
        second, _ = await asked(made)
    assert (first.refused, first.stop_reason, first.content) == (True, "refusal", "I cannot.")
    assert (second.refused, second.stop_reason) == (True, "content_filter")


@pytest.mark.parametrize("key", ["reasoning_content", "reasoning", "thinking"])
async def test_thinking_beside_the_text(key: str) -> None:
    deltas = [chunk({key: "Hm, "}, check=False), chunk({key: "so."}, check=False), chunk({"content": "Yes."})]
    with Wire(strict(sse_reply([*deltas, chunk({}, "stop"), DONE]))) as wire:
        response, shown = await asked(crystal(wire))
    assert (response.thinking, response.content) == ("Hm, so.", "Yes.")
    assert text(shown, "thought") == "Hm, so."


async def test_content_in_parts() -> None:
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Yes."}]
    with Wire(strict(sse_reply([chunk({"content": parts}, check=False), chunk({}, "stop"), DONE]))) as wire:
        response, _ = await asked(crystal(wire))
    assert (response.thinking, response.content) == ("Hm.", "Yes.")


async def test_a_whole_answer_in_place_of_a_stream() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "done", "arguments": "{}"}}
    message = {"role": "assistant", "content": "All at once.", "tool_calls": [call]}
    whole = {
        "id": "c",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}],
        "usage": counts(5, 3),
    }
    with Wire(strict(json_reply(whole))) as wire:
        response, _ = await asked(crystal(wire), tools=(DONE_GATE,))
    assert response.content == "All at once."
    assert response.tool_calls == (ToolCall("a", "done", "{}"),)
    assert response.usage.prompt_tokens == 5


async def test_attachments() -> None:
    files = (
        Attachment("image", "image/png", "iVBORw0KGgo="),
        Attachment("audio", "audio/wav", "UklGRg=="),
        Attachment("audio", "audio/ogg", "T2dnUw=="),
        Attachment("document", "application/pdf", "JVBERi0=", title="a.pdf"),
    )
    asks = Message("user", "What is it?", attachments=files)
    with Wire(strict(said(), said())) as wire:
        await asked(crystal(wire, ModelInfo(images=True, audio=True, documents=True)), asks)
        await asked(crystal(wire), asks)
        first, second = (request.json()["messages"][0]["content"] for request in wire.requests)
    assert [part["type"] for part in first] == ["image_url", "input_audio", "text", "file", "text"]
    assert first[0]["image_url"]["url"] == "data:image/png;base64,iVBORw0KGgo="
    assert "only WAV and MP3" in first[2]["text"]
    assert second.count("[Left out:") == 4
    assert second.endswith("What is it?")


async def test_documents_that_are_text_and_what_cannot_be_sent() -> None:
    files = (
        Attachment("document", "text/csv", "YSxiCg==", title="t.csv"),
        Attachment("document", "text/plain", "//79", title="bad.txt"),
        Attachment("document", "application/zip", "UEs=", title="a.zip"),
        Attachment("image", "image/svg+xml", "PHN2Zy8+"),
        Attachment("document", "application/pdf", "JVBERi0=", uri="file:///tmp/report"),
    )
    with Wire(strict(said())) as wire:
        await asked(crystal(wire, ModelInfo(images=True, documents=True)), Message("user", "?", attachments=files))
        parts = wire.requests[0].json()["messages"][0]["content"]
    assert parts[0]["text"] == "[Document t.csv]\na,b\n"
    assert "cannot be decoded" in parts[1]["text"]
    assert "application/zip cannot be sent" in parts[2]["text"]
    assert "image/svg+xml cannot be sent" in parts[3]["text"]
    assert parts[4]["file"]["filename"] == "report.pdf"


async def test_history_that_no_api_would_take_is_made_valid() -> None:
    calls = (ToolCall("x" * 90, "server.tool!", "{broken"), ToolCall("b", "n" * 70, ""))
    with Wire(strict(said())) as wire:
        await asked(
            crystal(wire),
            USER,
            *turn(*calls, provider={"family": "anthropic", "blocks": []}),
            Message("tool", "lost", tool_call_id="nobody", name="read_file"),
            *turn(content="Words alone."),
            Message("user", "Go on.", kind="nudge"),
            tools=(READ,),
        )
        sent = wire.requests[0].json()["messages"]
    assert json.loads(sent[1]["tool_calls"][0]["function"]["arguments"]) == {"malformed_arguments": "{broken"}
    assert sent[4] == {"role": "user", "content": "[result of read_file]\nlost"}


@pytest.mark.parametrize(
    ("words", "before", "after"),
    [
        ("Unsupported parameter: 'max_tokens' is not supported with this model.", None, None),
        ("Unsupported parameter: 'max_completion_tokens'", "max_completion_tokens", "max_tokens"),
        ("Extra inputs are not permitted: prompt_cache_key", "prompt_cache_key", None),
        ("Unrecognized request argument supplied: stream_options", "stream_options", None),
        ("temperature does not support 0.2 with this model", "temperature", None),
    ],
)
async def test_a_parameter_that_is_not_taken(words: str, before: str | None, after: str | None) -> None:
    with Wire(strict(refusal(400, words), said(), said())) as wire:
        made = crystal(wire)
        query = {"params": Call(max_tokens=9, temperature=0.2), "entity_id": "e"}
        if before is None:
            from cantrip_acp.types.errors import CrystalError

            with pytest.raises(CrystalError, match="max_tokens"):
                await asked(made, **query)
            return
        await asked(made, **query)
        await asked(made, **query)
        bodies = [request.json() for request in wire.requests]
    assert before in bodies[0]
    assert before not in bodies[1]
    assert bodies[1] == bodies[2]
    assert after is None or after in bodies[1]


@pytest.mark.parametrize("one_system", [False, True])
def test_requests_grow_by_their_end_alone(one_system: bool) -> None:
    dialect = Dialect("t", one_system=one_system)
    history = [Message("system", "You are A.", kind="call"), Message("system", "Tools.", kind="capabilities"), USER]
    before: list[bytes] = []
    for number in range(30):
        now = [json.dumps(m).encode() for m in render(history, UNKNOWN, MODEL, dialect)]
        assert now[: len(before)] == before
        before = now
        history += turn(ToolCall(f"c{number}", "read_file", "{broken" if number == 3 else "{}"))
        if number % 7 == 5:
            history += [Message("system", "<context>late</context>", kind="context"), Message("user", "And now?")]
        if number % 7 == 6:
            history += [*turn(content="Words."), Message("user", "Go on.", kind="nudge")]


async def test_the_environment_of_openai_stays_at_openai(monkeypatch: pytest.MonkeyPatch) -> None:
    """The SDK reads keys and headers from the environment; they are no other server's."""
    for name in ("OPENAI_API_KEY", "OPENAI_ADMIN_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID"):
        monkeypatch.setenv(name, f"planted-{name}-0123456789")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Planted: planted-header\nAuthorization: Bearer planted-bearer")
    with Wire([said()]) as wire:
        await asked(OpenAICrystal(Endpoint("openai", MODEL, f"{wire.url}/v1")))
        request = wire.requests[0]
    assert "planted" not in json.dumps(dict(request.headers)) + request.body.decode()
    assert "authorization" not in request.headers


async def test_headers_of_the_recipe() -> None:
    with Wire([said(), said()]) as wire:
        headers = {"X-Team": Secret("blue-team-secret"), "authorization": Secret("Basic dXNlcjpwdw==")}
        await asked(OpenAICrystal(Endpoint("openai", MODEL, f"{wire.url}/v1", headers=headers)))
        request = wire.requests[0]
    assert request.headers["x-team"] == "blue-team-secret"
    assert request.headers["authorization"] == "Basic dXNlcjpwdw=="


async def test_a_proxy_of_the_environment_does_not_see_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with Wire([Reply(502)]) as proxy, Wire([said()]) as wire:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        monkeypatch.setenv("http_proxy", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        response, _ = await asked(crystal(wire))
        assert not proxy.requests
    assert response.content == "Hello."
