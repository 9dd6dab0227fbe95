"""OpenAI by the Responses API: the real SDK against a server that speaks its wire format and refuses what it would refuse."""

from __future__ import annotations

import json

import pytest

from cantrip_acp.crystals.catalog.types import ModelInfo, Price
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import ContextLimitError, CrystalError, DefinitionError
from cantrip_acp.types.messages import Attachment, Message, ToolCall, ToolDefinition
from tests.support.openai_replies import (
    DONE_GATE,
    MODEL,
    READ,
    USER,
    asked,
    call_item,
    event,
    events,
    message_item,
    reasoning_item,
    refusal,
    responds,
    response,
    strict,
    text,
    turn,
)
from tests.support.provider_server import Reply, Request, Wire, json_reply, sse_reply

SECRET = "sk-test-0123456789abcdefghij"
THINKS = ModelInfo(reasoning=True, sampling=False, images=True, documents=True, known=True)


def crystal(wire: Wire, info: ModelInfo = THINKS, **options: object) -> OpenAICrystal:
    options = {"api": "responses", **options}
    return OpenAICrystal(Endpoint("openai", MODEL, f"{wire.url}/v1", Secret(SECRET), info=info, options=options))


async def test_text_streams_and_is_counted() -> None:
    with Wire(strict(responds(reasoning_item(), message_item("Hello there.")))) as wire:
        made = crystal(wire, ModelInfo(price=Price(1, 2, 0.5, 3), known=True))
        said, shown = await asked(made)
        await made.aclose()
    assert said.content == "Hello there."
    assert [d.text for d in shown] == ["Hello ", "there."]
    assert said.stop_reason == "stop"
    assert not said.refused
    assert said.id == "resp_1"
    assert said.model == f"{MODEL}-2026"
    usage = said.usage
    assert (usage.prompt_tokens, usage.cached_tokens, usage.cache_write_tokens) == (20, 8, 4)
    assert (usage.completion_tokens, usage.reasoning_tokens) == (6, 3)
    assert usage.cost == pytest.approx((8 * 1 + 8 * 0.5 + 4 * 3 + 6 * 2) / 1e6)


async def test_what_is_asked() -> None:
    with Wire(strict(responds(message_item("x")))) as wire:
        await asked(
            crystal(wire, effort="high"),
            Message("system", "You are A.", kind="call"),
            Message("system", "Tools: none.", kind="capabilities"),
            USER,
            tools=(READ,),
            tool_choice="required",
            params=Call(max_tokens=500, temperature=0.5, top_p=0.9),
            entity_id="e1",
            request_id="req-7",
        )
        request = wire.requests[0]
    body = request.json()
    assert request.path == "/v1/responses"
    assert request.headers["authorization"] == f"Bearer {SECRET}"
    assert request.headers["x-acp-model-request-id"] == "req-7"
    assert body["store"] is False
    assert body["stream"] is True
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["reasoning"] == {"effort": "high", "summary": "auto"}
    assert body["input"][:2] == [
        {"type": "message", "role": "developer", "content": "You are A."},
        {"type": "message", "role": "developer", "content": "Tools: none."},
    ]
    assert body["tools"][0]["name"] == "read_file"
    assert body["tool_choice"] == "required"
    assert body["max_output_tokens"] == 500
    assert not {"temperature", "top_p"} & set(body), "this model takes no sampling"
    assert body["prompt_cache_key"].startswith("cantrip-")
    assert "e1" not in body["prompt_cache_key"]


async def test_thinking_is_shown_and_kept_apart() -> None:
    with Wire(strict(responds(reasoning_item("First.", "Second."), message_item("Done.")))) as wire:
        said, shown = await asked(crystal(wire))
    assert said.thinking == "First.\n\nSecond."
    assert text(shown, "thought") == "First.\n\nSecond."
    assert said.content == "Done."


async def test_calls_one_many_empty_and_malformed() -> None:
    items = [
        reasoning_item("Look."),
        call_item("call_a", "read_file", '{"path": "a"}', "fc_a"),
        call_item("call_b", "done", "", "fc_b"),
        call_item("call_c", "read_file", '{"path": ', "fc_c"),
    ]
    with Wire(strict(responds(*items))) as wire:
        said, shown = await asked(crystal(wire), tools=(READ, DONE_GATE))
    assert [(c.id, c.gate, c.args) for c in said.tool_calls] == [
        ("call_a", "read_file", '{"path": "a"}'),
        ("call_b", "done", "{}"),
        ("call_c", "read_file", '{"path": '),
    ]
    assert said.stop_reason == "tool_calls"
    assert said.content is None
    assert text(shown) == ""


async def test_reasoning_goes_back_as_it_came() -> None:
    items = [reasoning_item("Look."), message_item("I look."), call_item("call_a", "read_file", '{"path":"a"}')]
    with Wire(strict(responds(*items), responds(message_item("It says x.")))) as wire:
        made = crystal(wire)
        first, _ = await asked(made, tools=(READ,))
        assert json.loads(json.dumps(first.provider)) == first.provider
        said = Message("assistant", first.content, first.tool_calls, thinking=first.thinking, provider=first.provider)
        answer = Message("tool", "x", tool_call_id="call_a", name="read_file")
        await asked(made, USER, said, answer, tools=(READ,))
        sent = wire.requests[1].json()["input"]
    assert sent[1:4] == items
    assert sent[4] == {"type": "function_call_output", "call_id": "call_a", "output": "x"}


async def test_reasoning_that_cannot_go_back_is_left_out() -> None:
    """A gateway without encrypted content: the item would only point at what the server was told not to keep."""
    items = [reasoning_item("Look.", sealed=None), call_item("call_a", "read_file", "{}")]
    with Wire(strict(responds(*items), responds(message_item("ok")))) as wire:
        made = crystal(wire)
        first, _ = await asked(made, tools=(READ,))
        assert first.provider is None
        await asked(made, USER, *turn(*first.tool_calls), tools=(READ,))
        sent = wire.requests[1].json()["input"]
    assert [item["type"] for item in sent] == ["message", "function_call", "function_call_output"]


async def test_sealed_reasoning_of_another_key_is_sent_without() -> None:
    kept = {"family": "openai-responses", "items": [reasoning_item("a"), call_item("c1", "read_file", "{}")]}
    refused = refusal(400, "The encrypted content for item rs_1 could not be verified.", "invalid_encrypted_content")
    later = {"family": "openai-responses", "items": [reasoning_item("b"), call_item("c2", "read_file", "{}")]}
    with Wire(strict(refused, responds(message_item("ok")), responds(message_item("ok")))) as wire:
        made = crystal(wire)
        history = [USER, *turn(ToolCall("c1", "read_file"), provider=kept)]
        said, _ = await asked(made, *history, tools=(READ,))
        await asked(made, *history, *turn(ToolCall("c2", "read_file"), provider=later), tools=(READ,))
        second, third = (request.json()["input"] for request in wire.requests[1:])
    assert said.content == "ok"
    plain = ["message", "function_call", "function_call_output"]
    assert [item["type"] for item in second] == plain
    # What was reasoned after the rejection goes back, and the rejection is not asked for again.
    assert [item["type"] for item in third] == [*plain, "reasoning", "function_call", "function_call_output"]


@pytest.mark.parametrize(
    "provider",
    [
        {"family": "anthropic", "blocks": [{"type": "thinking"}]},
        {"family": "openai-responses", "items": "no list"},
        {"family": "openai-responses", "items": [call_item("other", "read_file", "{}")]},
        "text",
        [1],
    ],
)
async def test_foreign_and_broken_provider_data_is_passed_over(provider: object) -> None:
    with Wire(strict(responds(message_item("ok")))) as wire:
        history = turn(ToolCall("toolu_1", "read_file", '{"path":"a"}'), content="I look.", provider=provider)
        await asked(crystal(wire), USER, *history, tools=(READ,))
        sent = wire.requests[0].json()["input"]
    assert sent[1] == {"type": "message", "role": "assistant", "content": "I look."}
    assert sent[2]["type"] == "function_call"
    assert sent[2]["call_id"] == "toolu_1"


async def test_history_that_no_api_would_take_is_made_valid() -> None:
    """Malformed arguments, a name with dots, an id that is too long, an answer to nothing."""
    calls = (ToolCall("x" * 90, "server.tool!", "{broken"), ToolCall("b", "read_file", "[1]"))
    kept = {"family": "openai-responses", "items": [call_item("z", "read_file", "{broken")]}
    with Wire(strict(responds(message_item("ok")))) as wire:
        await asked(
            crystal(wire),
            USER,
            *turn(*calls),
            Message("tool", "lost", tool_call_id="nobody", name="read_file"),
            *turn(ToolCall("z", "read_file", "{broken"), provider=kept),
            tools=(READ,),
        )
        sent = wire.requests[0].json()["input"]
    assert json.loads(sent[1]["arguments"]) == {"malformed_arguments": "{broken"}
    assert "lost" in sent[5]["content"]
    assert json.loads(sent[6]["arguments"]) == {"malformed_arguments": "{broken"}


async def test_names_are_mapped_there_and_back() -> None:
    odd = ToolDefinition("server.tool", "Odd.", {"type": "object"})
    with Wire([responds(message_item("x"))]) as wire:
        await asked(crystal(wire), tools=(odd,))
        sent = wire.requests[0].json()["tools"][0]["name"]
    with Wire(strict(responds(call_item("c", sent, "{}")))) as wire:
        said, _ = await asked(crystal(wire), tools=(odd,))
    assert said.tool_calls[0].gate == "server.tool"


async def test_repeated_and_missing_ids_are_replaced() -> None:
    items = [
        call_item("same", "done", "{}", "a"),
        call_item("same", "done", "{}", "b"),
        call_item("", "done", "{}", "c"),
    ]
    with Wire(strict(responds(*items))) as wire:
        said, _ = await asked(crystal(wire), tools=(DONE_GATE,))
    assert said.tool_calls[0].id == "same"
    assert len({c.id for c in said.tool_calls}) == 3
    assert all(c.id for c in said.tool_calls)
    assert said.provider is None, "items whose ids we changed cannot go back"


async def test_refusal() -> None:
    item = message_item("")
    item["content"] = [{"type": "refusal", "refusal": "I cannot help with that."}]
    with Wire(strict(responds(item))) as wire:
        said, shown = await asked(crystal(wire))
    assert said.refused
    assert said.stop_reason == "refusal"
    assert said.content == "I cannot help with that." == text(shown)


@pytest.mark.parametrize(("reason", "stop"), [("max_output_tokens", "length"), ("content_filter", "content_filter")])
async def test_cut_short(reason: str, stop: str) -> None:
    more = {"incomplete_details": {"reason": reason}}
    with Wire(strict(responds(message_item("Half"), final="response.incomplete", **more))) as wire:
        said, _ = await asked(crystal(wire))
    assert (said.content, said.stop_reason, said.provider) == ("Half", stop, None)


async def test_nothing_but_thinking_says_what_to_do() -> None:
    more = {"incomplete_details": {"reason": "max_output_tokens"}}
    with Wire(strict(responds(reasoning_item("hm"), final="response.incomplete", **more))) as wire:
        with pytest.raises(CrystalError, match=r"raise call\.max_tokens") as caught:
            await asked(crystal(wire))
    assert not caught.value.may_retry()


async def test_images_and_documents() -> None:
    files = (
        Attachment("image", "image/png", "iVBORw0KGgo="),
        Attachment("document", "application/pdf", "JVBERi0=", title="a.pdf"),
        Attachment("audio", "audio/wav", "UklGRg=="),
    )
    with Wire(strict(responds(message_item("a cat")), responds(message_item("?")))) as wire:
        await asked(crystal(wire), Message("user", "What is it?", attachments=files))
        await asked(crystal(wire, ModelInfo(known=True)), Message("user", "What is it?", attachments=files))
        first, second = (request.json()["input"][0]["content"] for request in wire.requests)
    assert [part["type"] for part in first] == ["input_image", "input_file", "input_text", "input_text"]
    assert first[0]["image_url"] == "data:image/png;base64,iVBORw0KGgo="
    assert first[3] == {"type": "input_text", "text": "What is it?"}
    assert [part["type"] for part in second] == ["input_text"] * 4
    assert "takes no images" in second[0]["text"]


@pytest.mark.parametrize(
    ("message", "gone"),
    [
        ("Unsupported parameter: 'temperature' is not supported with this model.", "temperature"),
        ("Your organization must be verified to generate reasoning summaries.", "reasoning"),
        ("Encrypted content is not supported with this model.", "include"),
        ("Unrecognized request argument supplied: prompt_cache_key", "prompt_cache_key"),
    ],
)
async def test_a_parameter_that_is_not_taken_is_left_out_from_then_on(message: str, gone: str) -> None:
    answers = strict(refusal(400, message), responds(message_item("ok")), responds(message_item("ok")))
    with Wire(answers) as wire:
        made = crystal(wire, ModelInfo(reasoning=True, known=True))
        for _ in range(2):
            await asked(made, params=Call(temperature=0.1), entity_id="e")
        bodies = [request.json() for request in wire.requests]
    assert gone in bodies[0]
    assert gone not in bodies[1]
    assert gone not in bodies[2]


async def test_stop_sequences_go_by_chat() -> None:
    from tests.support.openai_replies import said

    with Wire(strict(said("ok"))) as wire:
        await asked(crystal(wire), params=Call(stop=("END",)))
        assert wire.requests[0].path == "/v1/chat/completions"
        assert wire.requests[0].json()["stop"] == ["END"]


def test_which_api(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    assert OpenAICrystal(Endpoint("openai", "m")).api == "responses"
    assert OpenAICrystal(Endpoint("openai", "m", "https://eu.api.openai.com/v1")).api == "responses"
    assert OpenAICrystal(Endpoint("openai", "m", "https://gateway.example/v1")).api == "chat"
    assert OpenAICrystal(Endpoint("openai", "m", options={"api": "chat"})).api == "chat"
    monkeypatch.setenv("OPENAI_BASE_URL", "https://gateway.example/v1")
    assert OpenAICrystal(Endpoint("openai", "m")).api == "chat"
    with pytest.raises(DefinitionError, match="responses, chat"):
        OpenAICrystal(Endpoint("openai", "m", options={"api": "completions"}))


@pytest.mark.parametrize(
    ("code", "status", "retryable"),
    [("server_error", 500, True), ("rate_limit_exceeded", 429, True), ("invalid_prompt", 400, False)],
)
async def test_a_response_that_fails_in_the_stream(code: str, status: int, retryable: bool) -> None:
    error = {"code": code, "message": "It broke."}
    made = [
        *events([message_item("Half an answer")])[:5],
        event({"type": "response.failed", "response": response([], "failed", error=error)}),
    ]
    with Wire(strict(sse_reply(made))) as wire:
        with pytest.raises(CrystalError, match="It broke") as caught:
            await asked(crystal(wire))
    assert (caught.value.status, caught.value.may_retry()) == (status, retryable)


# --- which of the two APIs ------------------------------------------------------------------------------------------------

NEEDS_TOOLS = (
    "Function tools with reasoning_effort are not supported for {} in /v1/chat/completions. To use function tools, use "
    "/v1/responses or set reasoning_effort to 'none'."
)


def at_gateway(wire: Wire, model: str, **options: object) -> OpenAICrystal:
    return OpenAICrystal(Endpoint("openai", model, f"{wire.url}/v1", Secret(SECRET), options=options))


@pytest.mark.parametrize(
    ("model", "path"),
    [
        ("gpt-6.1-sol", "/v1/responses"),
        ("gpt-5.6-terra-2026-06-01", "/v1/responses"),
        ("gpt-5.4-mini", "/v1/responses"),
        ("openai/gpt-6-astra", "/v1/responses"),
        ("gpt-5.3-codex", "/v1/responses"),
        ("o3-pro", "/v1/responses"),
        ("gpt-5.2-pro", "/v1/responses"),
        ("gpt-5.1", "/v1/chat/completions"),
        ("gpt-4.1", "/v1/chat/completions"),
        ("qwen3", "/v1/chat/completions"),
    ],
)
@pytest.mark.parametrize("way", ["base_url", "variable"])
async def test_the_api_of_a_model_behind_a_gateway(
    model: str, path: str, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.support.openai_replies import said

    def answer(request: Request) -> Reply:
        return responds(message_item("ok")) if request.path == "/v1/responses" else said("ok")

    with Wire(answer) as wire:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{wire.url}/v1")
        made = at_gateway(wire, model) if way == "base_url" else OpenAICrystal(Endpoint("openai", model))
        assert (await asked(made, tools=(READ,)))[0].content == "ok"
        assert [request.path for request in wire.requests] == [path]


async def test_a_rejection_that_names_the_other_api_switches_to_it() -> None:
    replies = (
        refusal(400, NEEDS_TOOLS.format("corp-model")),
        responds(message_item("one")),
        responds(message_item("two")),
    )
    with Wire(strict(*replies)) as wire:
        made = at_gateway(wire, "corp-model")
        assert [(await asked(made, tools=(READ,)))[0].content for _ in range(2)] == ["one", "two"]
        assert [r.path for r in wire.requests] == ["/v1/chat/completions", "/v1/responses", "/v1/responses"]


async def test_a_gateway_without_the_responses_api() -> None:
    from tests.support.openai_replies import said

    missing = json_reply({"detail": "Not Found"}, 404)
    with Wire(strict(missing, said("one"), said("two"))) as wire:
        made = at_gateway(wire, "gpt-6.1-sol")
        assert [(await asked(made, tools=(READ,)))[0].content for _ in range(2)] == ["one", "two"]
        assert [r.path for r in wire.requests] == ["/v1/responses", "/v1/chat/completions", "/v1/chat/completions"]


async def test_a_model_that_is_not_there_is_no_reason_to_switch() -> None:
    missing = refusal(404, "The model 'gpt-6.1-sol' does not exist or you do not have access to it.", "model_not_found")
    with Wire(strict(missing)) as wire:
        with pytest.raises(CrystalError, match="does not exist"):
            await asked(at_gateway(wire, "gpt-6.1-sol"), tools=(READ,))
        assert len(wire.requests) == 1


async def test_an_api_that_was_chosen_is_kept() -> None:
    with Wire(strict(refusal(400, NEEDS_TOOLS.format("gpt-6.1-sol")))) as wire:
        with pytest.raises(CrystalError, match="use /v1/responses"):
            await asked(at_gateway(wire, "gpt-6.1-sol", api="chat"), tools=(READ,))
        assert len(wire.requests) == 1


async def test_messages_of_different_phases_have_a_break_between_them() -> None:
    items = [
        message_item("I look at the files.") | {"phase": "commentary"},
        message_item("It is 42.") | {"phase": "final_answer", "id": "msg_2"},
    ]
    with Wire(strict(responds(*items))) as wire:
        answer, shown = await asked(crystal(wire))
    assert answer.content == text(shown) == "I look at the files.\n\nIt is 42."


async def test_an_answer_that_is_incomplete_though_the_event_says_completed() -> None:
    cut = event({"type": "response.completed", "response": response([message_item("Half an")], "incomplete")})
    with Wire(strict(sse_reply([*events([message_item("Half an")])[:-1], cut]))) as wire:
        answer, _ = await asked(crystal(wire))
    assert (answer.content, answer.stop_reason, answer.provider) == ("Half an", "length", None)


async def test_an_error_event() -> None:
    made = [event({"type": "error", "code": "rate_limit_exceeded", "message": "Slow down.", "param": None})]
    with Wire(strict(sse_reply(made))) as wire:
        with pytest.raises(CrystalError, match="Slow down") as caught:
            await asked(crystal(wire))
    assert caught.value.status == 429


async def test_the_window_by_the_api_and_before_it() -> None:
    words = "Your input exceeds the context window of this model. Please adjust your input and try again."
    with Wire(strict(refusal(400, words, "context_length_exceeded"))) as wire:
        with pytest.raises(ContextLimitError):
            await asked(crystal(wire))
    with Wire([]) as wire:
        with pytest.raises(ContextLimitError, match="nothing was sent") as caught:
            await asked(crystal(wire, ModelInfo(context_window=100)), Message("user", "word " * 1000))
        assert not wire.requests
    assert caught.value.limit == 100


async def test_a_whole_response_in_place_of_a_stream() -> None:
    whole = response([reasoning_item("Hm."), message_item("All at once.")])
    with Wire(strict(json_reply(whole))) as wire:
        said, _ = await asked(crystal(wire))
    assert said.content == "All at once."
    assert said.thinking == "Hm."


async def test_items_are_taken_from_the_stream_where_the_end_has_none() -> None:
    """Gateways leave the output out of response.completed."""
    made = events([message_item("Here.")])
    made[-1] = event({"type": "response.completed", "response": response([])})
    with Wire(strict(sse_reply(made))) as wire:
        said, _ = await asked(crystal(wire))
    assert said.content == "Here."


async def test_requests_grow_by_their_end_alone() -> None:
    """The bytes of one query's messages begin the next one's: what prompt caches live on."""
    history: list[Message] = [Message("system", "You are A.", kind="call"), USER]
    made = crystal(Wire([]))
    sizes = []
    before = ""
    for number in range(12):
        body = json.dumps(made._responses.body(_query(history)), ensure_ascii=False)  # type: ignore[union-attr]
        start = body.index('"input"')
        items = body[start : body.index('], "stream"')]
        assert items.startswith(before)
        before = items
        sizes.append(len(items))
        kept = {
            "family": "openai-responses",
            "items": [reasoning_item("a"), call_item(f"c{number}", "read_file", "{}")],
        }
        history += turn(ToolCall(f"c{number}", "read_file"), provider=kept if number % 2 else None)
        if number == 5:
            history += [Message("system", "<context>late</context>", kind="context"), Message("user", "And now?")]
    assert sizes == sorted(sizes)


def _query(messages: list[Message]):
    from cantrip_acp.crystals.contract import Query

    return Query(list(messages), (READ,))
