"""Tokens and their log-probabilities on the way from a provider into the loom: the real SDKs against servers at wire level."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom
from cantrip_acp.crystals.contract import Query, template_label
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local import missing_tokens
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.logprobs import UNLIKELY, TokenCollector
from cantrip_acp.crystals.openai.chat_completions import ChatCrystal
from cantrip_acp.crystals.openai.client import OWN_ADDRESS
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.text.redaction import shared
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message, SampledTokens
from cantrip_acp.types.records import CastRecord
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.openai_replies import MODEL, asked, chunk, message_item, responds, strict
from tests.support.provider_server import Reply, Request, Wire, json_reply, sse_reply


def entry(token: str, logprob: float, raw: list[int] | None = None) -> dict[str, Any]:
    return {
        "token": token,
        "logprob": logprob,
        "bytes": list(token.encode()) if raw is None else raw,
        "top_logprobs": [],
    }


def piece(content: str, *entries: dict[str, Any], ids: list[int] | None = None, **more: Any) -> bytes:
    """A chunk with the log-probabilities of its tokens, and ids as vLLM adds them."""
    choice: dict[str, Any] = {"index": 0, "delta": {"content": content}, "logprobs": {"content": list(entries)}}
    if ids is not None:
        choice["token_ids"] = ids
    return chunk(None, choices=[choice], check=False, **more)


def spoken(
    prompt: list[int], ids: list[int], words: str = "hi", finish: str = "stop", delta: dict[str, Any] | None = None
) -> Reply:
    """An answer of vLLM with ``return_token_ids``: the prompt's ids with the first chunk, the response's as they come."""
    first = chunk({"role": "assistant", "content": ""}, check=False, prompt_token_ids=prompt)
    return sse_reply(
        [
            first,
            *(piece(words if n == 0 else "", entry(f"<{i}>", -0.25 * (n + 1)), ids=[i]) for n, i in enumerate(ids)),
            *([chunk(delta)] if delta else []),
            chunk({}, finish),
        ]
    )


def local(wire: Wire, **options: object) -> LocalCrystal:
    return LocalCrystal(Endpoint("local", MODEL, wire.url, options={"logprobs": True, **options}))


async def test_chat_completions_are_asked_for_them_and_they_are_kept_whole() -> None:
    half = [entry("Hi", -0.5), entry("�", float("-1.5"), [0xF0, 0x9F]), entry(" there", -0.125)]
    reply = sse_reply([piece("Hi", half[0]), piece("� there", *half[1:]), chunk({}, "stop"), openai.DONE])
    with Wire(strict(reply, extra=("logprobs", "return_token_ids"))) as wire:
        end = Endpoint("openai", MODEL, f"{wire.url}/v1", Secret("sk-0123456789"), options={"logprobs": True})
        response, _ = await asked(OpenAICrystal(end))
        body = wire.requests[0].json()
    assert body["logprobs"] is True
    # Only OpenAI itself is known to have no ids.
    assert body["return_token_ids"] is True
    own = ChatCrystal(Endpoint("openai", MODEL, options={"logprobs": True}), OWN_ADDRESS)
    assert "return_token_ids" not in own.body(Query([Message("user", "Hi")]))
    assert response.sampled == SampledTokens(
        texts=("Hi", "�", " there"), logprobs=(-0.5, -1.5, -0.125), raw={"1": (0xF0, 0x9F)}
    )
    assert response.sampled.bytes_of(1) == [0xF0, 0x9F]
    assert response.sampled.bytes_of(2) == list(b" there")


async def test_nothing_is_asked_for_or_kept_where_nobody_wants_it() -> None:
    with Wire([spoken([1], [2])]) as wire:
        response, _ = await asked(LocalCrystal(Endpoint("local", MODEL, wire.url)))
        body = wire.requests[0].json()
    assert response.sampled is None
    assert not {"logprobs", "return_token_ids"} & set(body)


@pytest.mark.parametrize(
    "refusal",
    [
        # Cerebras, then Gemini at its address for this protocol.
        {
            "message": "body.return_token_ids: property 'body.return_token_ids' is unsupported",
            "code": "wrong_api_format",
        },
        [{"error": {"code": 400, "message": 'Unknown name "return_token_ids": Cannot find field.'}}],
    ],
)
async def test_a_server_that_refuses_the_request_for_ids_in_its_own_form_is_asked_without(refusal: Any) -> None:
    with Wire([json_reply(refusal, 400), openai.said("hi")]) as wire:
        response, _ = await asked(local(wire), Message("user", "Hi"))
    assert response.content == "hi"
    assert "return_token_ids" not in wire.requests[-1].json()


async def test_a_server_that_takes_none_is_asked_without() -> None:
    refused = openai.refusal(400, "Unsupported parameter: 'logprobs' is not supported with this model.")
    unknown = openai.refusal(400, "return_token_ids: Extra inputs are not permitted")
    with Wire([refused, unknown, openai.said("fine")]) as wire:
        response, _ = await asked(local(wire))
        last = wire.requests[-1].json()
    assert response.content == "fine"
    assert response.sampled is None
    assert not {"logprobs", "return_token_ids"} & set(last)


async def test_sglang_reports_ids_of_a_chat_with_the_whole_answer() -> None:
    """It refuses to stream them. The form is that of ``ChatCompletionResponseChoice`` in SGLang 0.5.23."""
    refused = {
        "object": "error",
        "message": "return_token_ids is not supported with streaming on /v1/chat/completions. Please set stream=false when "
        "using return_token_ids=true.",
        "type": "BadRequestError",
        "param": None,
        "code": 400,
    }
    whole = {
        "id": "c-1",
        "object": "chat.completion",
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hi", "reasoning_content": None},
                "logprobs": {"content": [entry("Hi", -0.5), entry("<|im_end|>", -0.25)]},
                "finish_reason": "stop",
                "matched_stop": 2,
                "prompt_token_ids": [1, 5, 6],
                "response_token_ids": [7, 2],
            }
        ],
        "usage": openai.counts(3, 2),
        "metadata": {"weight_version": "step-3"},
    }

    def sglang(request: Request) -> Reply:
        body = request.json()
        return json_reply(refused, 400) if body.get("stream") else json_reply(whole)

    with Wire(sglang) as wire:
        crystal = local(wire)
        first, shown = await asked(crystal)
        await asked(crystal)
        bodies = [each.json() for each in wire.requests]
    assert [each.get("stream", False) for each in bodies] == [True, False, False]
    assert all("stream_options" not in each and each["return_token_ids"] is True for each in bodies[1:])
    assert "".join(delta.text for delta in shown) == first.content == "Hi"
    assert first.sampled == SampledTokens((7, 2), ("Hi", "<|im_end|>"), (-0.5, -0.25), prompt_ids=(1, 5, 6))
    assert first.request is not None
    assert first.request.weights == "step-3"


async def test_the_responses_api() -> None:
    item = message_item("Hello")
    item["content"][0]["logprobs"] = [entry("Hel", -0.1), entry("lo", -0.2)]
    refused = openai.refusal(400, "logprobs are not supported with reasoning models.")
    with Wire(strict(responds(item), refused, responds(message_item("plain")))) as wire:
        end = Endpoint(
            "openai", MODEL, f"{wire.url}/v1", Secret("sk-0123456789"), options={"api": "responses", "logprobs": True}
        )
        crystal = OpenAICrystal(end)
        first, _ = await asked(crystal)
        second, _ = await asked(crystal)
        bodies = [r.json() for r in wire.requests]
    assert first.sampled == SampledTokens(texts=("Hel", "lo"), logprobs=(-0.1, -0.2))
    # What goes back with the next query is what was said, not how likely it was.
    assert first.provider["items"][0]["content"][0]["logprobs"] == []
    assert [("message.output_text.logprobs" in b["include"]) for b in bodies] == [True, True, False]
    assert "reasoning.encrypted_content" in bodies[2]["include"]
    assert second.sampled is None


async def test_gemini() -> None:
    told = {"chosenCandidates": [{"token": "Hel", "tokenId": 7, "logProbability": -0.5}]}
    more = {"chosenCandidates": [{"token": "lo", "tokenId": 8, "logProbability": -0.25}]}
    pieces = []
    for text, found, finish in (("Hel", told, None), ("lo", more, "STOP")):
        candidate: dict[str, Any] = {"content": {"parts": [{"text": text}], "role": "model"}, "logprobsResult": found}
        if finish:
            candidate["finishReason"] = finish
        pieces.append(google.sse({"candidates": [candidate]}))
    refused = google.refusal(400, "Logprobs is not enabled for models/gemini-3-flash", "INVALID_ARGUMENT")
    with Wire(google.checked([sse_reply(pieces), refused, google.says("plain")])) as wire:
        crystal = google.crystal(wire.url, logprobs=True)
        first, _ = await google.ask(crystal)
        second, _ = await google.ask(crystal)
        bodies = [r.json() for r in wire.requests]
    assert first.sampled == SampledTokens((7, 8), ("Hel", "lo"), (-0.5, -0.25))
    assert second.sampled is None
    assert [b.get("generationConfig", {}).get("responseLogprobs") for b in bodies] == [True, True, None]


@pytest.mark.parametrize("told", [3, 4])
async def test_llama_cpp_says_the_prompt_as_text_and_makes_the_ids_of_it(
    told: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It is asked for them after the answer. If their number is not that of the tokens that it read, they are not recorded."""
    verbose = {"prompt": "<s>Hi", "tokens_evaluated": told}
    answer = sse_reply(
        [piece("a", {**entry("a", -1.0), "id": 7}), chunk({}, "stop", check=False, __verbose=verbose), openai.DONE]
    )
    replies = [answer, json_reply({"chat_template": "{{ x }}"}), json_reply({"tokens": [1, 2, 3]})]
    replies.append(json_reply({"content": "a"}))
    with Wire(replies) as wire:
        crystal = LocalCrystal(Endpoint("llamacpp", MODEL, f"{wire.url}/v1", options={"logprobs": True}))
        response, _ = await asked(crystal)
        first, second, third, fourth = wire.requests
    assert (first.json()["verbose"], first.json()["top_logprobs"]) == (True, 1)
    assert [each.path for each in (second, third, fourth)] == ["/props", "/tokenize", "/detokenize"]
    assert third.json() == {"content": "<s>Hi", "add_special": False, "parse_special": True}
    assert response.sampled is not None
    assert response.sampled.prompt_ids == ((1, 2, 3) if told == 3 else ())
    assert ("the server read a prompt of 4 tokens, but its text has 3" in caplog.text) == (told == 4)
    assert response.request is not None
    assert response.request.template == template_label("{{ x }}") == "sha256:e52c737297f7dad6"


async def test_llama_cpp_under_another_provider_is_known_by_its_answers(caplog: pytest.LogCaptureFixture) -> None:
    """It reported one token for a character, and the crystal did not ask for the prompt, so the tokens cannot be found."""
    template, tokenized = json_reply({"chat_template": "{{ x }}"}), json_reply({"tokens": [1, 2]})
    lost = sse_reply([piece("é", {**entry("é", -1.0), "id": 7}), chunk({}, "stop"), openai.DONE])
    verbose = {"prompt": "<s>Hi", "tokens_evaluated": 2}
    whole = [piece("a", {**entry("a", -1.0), "id": 8}), chunk({}, "stop", check=False, __verbose=verbose), openai.DONE]
    replies = [lost, template, json_reply({"tokens": []}), json_reply({"content": "\ufffd"})]
    replies += [sse_reply(whole), tokenized, json_reply({"content": "a"})]
    with Wire(replies) as wire:
        crystal = LocalCrystal(Endpoint("local", MODEL, f"{wire.url}/v1", options={"logprobs": True}))
        first, _ = await asked(crystal)
        second, _ = await asked(crystal)
    assert (first.content, first.sampled) == ("é", None)
    assert "the tokens of an answer are not recorded: the tokens of the prompt are not known" in caplog.text
    assert second.sampled is not None
    assert (second.sampled.prompt_ids, second.sampled.ids) == ((1, 2), (8,))


@pytest.mark.parametrize(
    ("replies", "why"),
    [
        (
            [{"content": "\ufffd"}, {"content": "\ufffd"}, {"tokens": [{"id": 5, "piece": "é"}]}],
            "wrote 'é' with other tokens",
        ),
        (
            [{"content": "\ufffd"}, {"content": "\ufffd"}, {"tokens": [{"id": 5, "piece": " é"}]}],
            "adds something to 'é'",
        ),
        ([{"content": "\ufffd"}, {"content": "\ufffd"}, {"tokens": 3}], "gave no tokens with their pieces"),
        ([{"oops": 1}], "/detokenize gave no text"),
        (
            [
                {"content": "\ufffd"},
                {"content": "\ufffd"},
                {"tokens": [{"id": 5, "piece": [195]}, {"id": 7, "piece": [169]}]},
                {"completion_probabilities": []},
            ],
            "/completion gave no log-probability",
        ),
        (
            [
                {"content": "\ufffd"},
                {"content": "\ufffd"},
                {"tokens": [{"id": 5, "piece": [195]}, {"id": 7, "piece": [169]}]},
                *2 * [{"completion_probabilities": [{"top_logprobs": [{"id": n, "logprob": -1.2} for n in (5, 7)]}]}],
            ],
            "wrote 'é' with other tokens",
        ),
    ],
)
async def test_tokens_of_llama_cpp_that_cannot_be_completed_are_not_recorded(
    replies: list[Any], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It reported one token for a character. Training on half of an answer would be worse than none."""
    verbose = {"prompt": "<s>Hi", "tokens_evaluated": 3}
    answer = sse_reply(
        [
            piece("é", {**entry("é", -1.0), "id": 7}),
            piece("a", {**entry("a", -1.0), "id": 8}),
            chunk({}, "stop", check=False, __verbose=verbose),
            openai.DONE,
        ]
    )
    before = [answer, json_reply({"chat_template": "{{ x }}"}), json_reply({"tokens": [1, 2, 3]})]
    with Wire([*before, *map(json_reply, replies)]) as wire:
        crystal = LocalCrystal(Endpoint("llamacpp", MODEL, f"{wire.url}/v1", options={"logprobs": True}))
        response, _ = await asked(crystal)
    assert response.content == "éa"
    assert response.sampled is None
    assert why in caplog.text


async def test_an_answer_that_lacks_too_many_tokens_is_not_completed() -> None:
    """Each of them takes a request, and an answer in another script can lack thousands."""
    asked: list[str] = []

    async def ask(path: str, body: Any) -> Any:
        asked.append(path)
        return {"content": "\ufffd"} if path == "/detokenize" else {"tokens": tokens} if path == "/tokenize" else likely

    tokens = [{"id": 5, "piece": [195]}, {"id": 7, "piece": [169]}]
    likely = {"completion_probabilities": [{"top_logprobs": [{"id": n, "logprob": -1.0} for n in (5, 7)]}]}
    sampled = SampledTokens((7,) * 500, ("é",) * 500, (-1.0,) * 500, {}, (1,))
    with pytest.raises(CrystalError, match="left out more than 64 of them"):
        await missing_tokens.complete(ask, sampled, None)
    assert asked.count("/completion") == 128


def done_call() -> dict[str, Any]:
    return openai.call_delta(0, "call_1", "done", '{"answer": "ok"}')


async def test_a_turn_keeps_what_it_adds_to_the_tokens_before() -> None:
    echo = openai.call_delta(0, "call_0", "echo", '{"text": "a"}')
    replies = [
        spoken([1, 2, 3], [4, 5], finish="tool_calls", delta=echo),
        # The template keeps all that was, and the second turn's prompt goes on from there.
        spoken([1, 2, 3, 4, 5, 6, 7], [8], finish="tool_calls", delta=done_call()),
    ]
    with Wire(replies) as wire:
        loom = Loom.memory()
        cantrip = Cantrip(local(wire), circle=Circle(gates=["echo", "done"], wards=[{"max_turns": 4}]), loom=loom)
        result = await cantrip.cast("go")
    assert result.result == "ok"
    first, second = (t.metadata.sampled for t in loom.turns() if t.role == "crystal")
    assert isinstance(first, SampledTokens)
    assert isinstance(second, SampledTokens)
    assert (first.prompt_from, first.prompt_ids, first.ids) == (0, (1, 2, 3), (4, 5))
    assert (second.prompt_from, second.prompt_ids, second.ids) == (5, (6, 7), (8,))
    assert first.logprobs == (-0.25, -0.5)


@pytest.mark.parametrize("where", ["said", "asked"])
async def test_no_secret_stands_in_the_loom_as_tokens(where: str) -> None:
    secret = "tokens-of-a-secret-0123456789"
    shared().add(secret)
    words = f"it is {secret}" if where == "said" else "nothing to tell"
    intent = f"use {secret}" if where == "asked" else "go"
    with Wire([spoken([1, 2], [3], words)]) as wire:
        loom = Loom.memory()
        await Cantrip(local(wire), circle=Circle(gates=["done"], wards=[{"max_turns": 2}]), loom=loom).cast(intent)
    turn = next(t for t in loom.turns() if t.role == "crystal")
    if where == "said":
        assert not turn.metadata.sampled
    else:
        # What was sent is what the loom has: a prompt without the secret, whose tokens tell nothing.
        assert secret not in str(wire.requests[0].json())
        assert isinstance(turn.metadata.sampled, SampledTokens)
        assert turn.metadata.sampled.prompt_ids == (1, 2)
        assert turn.metadata.sampled.ids == (3,)
    assert secret not in repr(list(loom.records()))


def test_a_token_that_cannot_be_has_the_least_log_probability() -> None:
    tokens = TokenCollector()
    tokens.chat({}, {"logprobs": {"content": [entry("a", float("-inf"))]}, "token_ids": [1]})
    assert tokens.whole() == SampledTokens((1,), ("a",), (UNLIKELY,))
    nothing = TokenCollector()
    for bad in ({"logprobs": 7}, {"token_ids": ["x", -1]}, {"token_ids": "12"}):
        nothing.chat({"prompt_token_ids": {}}, bad)
    assert nothing.whole() is None


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ([piece("a", entry("a", -1.0), ids=[1, 2])], "2 ids and 1 log-probabilities"),
        ([piece("ab", entry("a", -1.0), entry("b", -1.0), ids=[1])], "1 ids and 2 log-probabilities"),
        ([piece("a", entry("a", float("nan")), ids=[1])], "1 ids and 0 log-probabilities"),
        ([piece("ab", entry("a", -1.0), {"token": "b", "logprob": None})], "2 texts and 1 log-probabilities"),
        ([piece("ab", entry("a", -1.0), {"id": 7})], "2 texts and 1 log-probabilities"),
        ([piece("ab", {**entry("a", -1.0), "id": 7}, entry("b", -1.0))], "1 ids and 2 log-probabilities"),
    ],
)
async def test_ids_and_log_probabilities_of_different_length_are_an_error(choices: list[bytes], told: str) -> None:
    usage = chunk(None, choices=[], usage=openai.counts(30, 2), check=False)
    with Wire([sse_reply([*choices, chunk({}, "stop"), usage])]) as wire:
        loom = Loom.memory()
        cantrip = Cantrip(local(wire), circle=Circle(gates=["done"], wards=[{"max_turns": 2}]), loom=loom)
        with pytest.raises(CrystalError, match=rf"^local:{MODEL} reported {told} for one answer\. .*logprobs: false"):
            await cantrip.cast("go")
        # It was asked once: another answer would have the same fault.
        assert len(wire.requests) == 1
    (end,) = [each for each in loom.records() if isinstance(each, CastRecord) and each.event == "end"]
    assert (end.reason, end.usage["prompt_tokens"], end.usage["completion_tokens"]) == ("error", 30, 2)
    (partial,) = loom.partials()
    assert partial.utterance.content in ("a", "ab")
