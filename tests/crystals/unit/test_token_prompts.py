"""`crystal.token_prompts`: the crystal sends token ids. The real SDK against a server that tokenizes as vLLM does,
and one that differs from it as SGLang 0.5.23 does (``entrypoints/openai/serving_tokenize.py`` and ``serving_chat.py``).

Its tokenizer joins "ab" to one token. The model samples "a" and "b", so a prompt of messages would have other tokens.
"""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Call
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.types.errors import CrystalError, DefinitionError
from cantrip_acp.types.messages import Message
from tests.support import openai_replies as openai
from tests.support.openai_replies import MODEL, asked, chunk
from tests.support.provider_server import Raw, Reply, Request, Wire, json_reply, sse_reply

START, END, PAIR = 1, 2, 3
TRAINED = {"tools": "text", "logprobs": True, "token_prompts": True}


def tokens(text: str) -> list[int]:
    return [PAIR if each == "\0" else ord(each) for each in text.replace("ab", "\0")]


def templated(messages: list[dict[str, Any]], *, asks: bool, goes_on: bool) -> list[int]:
    ids: list[int] = []
    for each in messages:
        ids += [START, *tokens(each["role"] + ":"), *tokens(each["content"]), END]
    return ids[:-1] if goes_on else [*ids, START, *tokens("assistant:")] if asks else ids


class Vllm:
    """Answers each query with the tokens of ``answers``, in order."""

    def __init__(self, *answers: list[int]) -> None:
        self.answers = list(answers)
        self.prompts: list[list[int]] = []
        self.limits: list[int] = []

    def refusal(self, body: dict[str, Any]) -> str | None:
        if body["add_generation_prompt"]:
            return "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
        return None

    def __call__(self, request: Request) -> Reply:
        body = request.json()
        if request.path == "/tokenize":
            assert body["model"] == MODEL
            goes_on = bool(body.get("continue_final_message"))
            if goes_on and (refusal := self.refusal(body)) is not None:
                return json_reply({"object": "error", "message": refusal, "type": "BadRequestError", "code": 400}, 400)
            ids = templated(body["messages"], asks=body["add_generation_prompt"], goes_on=goes_on)
            return json_reply({"count": len(ids), "max_model_len": 1000, "tokens": ids})
        assert request.path == "/v1/completions"
        assert body["return_token_ids"] is True
        assert "messages" not in body
        self.prompts.append(body["prompt"])
        self.limits.append(body.get("max_tokens", 16))
        said = self.answers.pop(0)
        pieces = []
        for place, token in enumerate(said):
            text = "" if token == END else chr(token)
            logprobs = {
                "tokens": [text or "<|end|>"],
                "token_logprobs": [-0.5],
                "top_logprobs": [{}],
                "text_offset": [0],
            }
            choice = {"index": 0, "text": text, "logprobs": logprobs, "token_ids": [token]}
            choice["finish_reason"] = "stop" if place == len(said) - 1 else None
            pieces.append(chunk(None, choices=[choice], check=False, object="text_completion"))
        return sse_reply([*pieces, openai.DONE])


class Sglang(Vllm):
    def refusal(self, body: dict[str, Any]) -> str | None:
        if not body["add_generation_prompt"]:
            return "continue_final_message needs add_generation_prompt to open the assistant turn."
        return None


def crystal(wire: Wire, **options: object) -> LocalCrystal:
    return LocalCrystal(Endpoint("vllm", MODEL, f"{wire.url}/v1", options={**TRAINED, **options}))


@pytest.mark.parametrize("kind", [Vllm, Sglang])
async def test_a_prompt_continues_the_tokens_of_the_answer_before(kind: type[Vllm]) -> None:
    server = kind([*map(ord, "cab"), END], [ord("d"), END])
    with Wire(server) as wire:
        made = crystal(wire)
        first, shown = await asked(made, Message("user", "Hi"))
        second, _ = await asked(
            made, Message("user", "Hi"), Message("assistant", first.content), Message("user", "ab?")
        )
    assert first.content == "cab"
    assert "".join(delta.text for delta in shown) == "cab"
    assert first.sampled is not None
    assert first.sampled.ids == (*map(ord, "cab"), END)
    assert first.sampled.logprobs == (-0.5,) * 4
    assert (
        list(first.sampled.prompt_ids)
        == server.prompts[0]
        == [START, *tokens("user:Hi"), END, START, *tokens("assistant:")]
    )
    # "ab" stays two tokens where it was sampled, and is one where the user wrote it.
    asks = [START, *tokens("user:ab?"), END, START, *tokens("assistant:")]
    assert PAIR in asks
    assert server.prompts[1] == [*server.prompts[0], *first.sampled.ids, *asks]
    assert second.sampled is not None
    assert list(second.sampled.prompt_ids) == server.prompts[1]


@pytest.mark.parametrize(("window", "limit"), [(None, 1000), (100, 100), (5000, 1000)])
async def test_an_answer_without_a_limit_may_fill_the_window(window: int | None, limit: int) -> None:
    """These servers end an answer to a prompt of tokens after 16 tokens, if the request has no limit."""
    server = Vllm([ord("d"), END], [ord("e"), END])
    with Wire(server) as wire:
        info = ModelInfo(context_window=window)
        made = LocalCrystal(Endpoint("vllm", MODEL, f"{wire.url}/v1", info=info, options=TRAINED))
        await asked(made, Message("user", "Hi"))
        await asked(made, Message("user", "Hi"), params=Call(max_tokens=7))
    assert server.limits == [limit - len(server.prompts[0]), 7]


async def test_an_answer_of_others_is_tokenized_by_the_server() -> None:
    server = Vllm([ord("d"), END])
    with Wire(server) as wire:
        await asked(crystal(wire), Message("user", "Hi"), Message("assistant", "cab"), Message("user", "Go on"))
    messages = [("user", "Hi"), ("assistant", "cab"), ("user", "Go on")]
    whole = [{"role": role, "content": content} for role, content in messages]
    assert server.prompts == [templated(whole, asks=True, goes_on=False)]


async def test_half_a_surrogate_pair_in_a_message_is_sent_as_a_question_mark() -> None:
    server = Vllm([ord("d"), END], [ord("e"), END])
    with Wire(server) as wire:
        made = crystal(wire)
        asks = Message("user", "x\ud800")
        await asked(made, asks)
        await asked(made, asks, Message("assistant", "d"), Message("user", "Go on"))
    first, second = server.prompts
    assert first == templated([{"role": "user", "content": "x?"}], asks=True, goes_on=False)
    assert second[: len(first) + 2] == [*first, ord("d"), END]


async def test_a_server_without_tokenize_is_named() -> None:
    with Wire([json_reply({"error": {"message": "Not Found"}}, 404)]) as wire:
        with pytest.raises(CrystalError, match=r"/tokenize gave no token ids.* such as vLLM, SGLang or llama\.cpp"):
            await asked(crystal(wire))


async def test_a_lost_connection_of_a_question_about_tokens_is_used_again() -> None:
    """The server closes an idle connection at the moment in which the client sends something on it."""
    server = Vllm([ord("d"), END])
    lost: list[Request] = []

    def closing(request: Request) -> Reply:
        if not lost:
            lost.append(request)
            return Reply(raw=[Raw(b"")])
        return server(request)

    with Wire(closing) as wire:
        response, _ = await asked(crystal(wire), Message("user", "Hi"))
    assert response.content == "d"
    assert lost[0].path == "/tokenize"


@pytest.mark.parametrize("wrong", [{"tools": "native"}, {"logprobs": False}])
def test_token_prompts_need_text_calls_and_logprobs(wrong: dict[str, object]) -> None:
    with pytest.raises(DefinitionError, match=r"crystal\.token_prompts: needs tools: text and logprobs: true"):
        LocalCrystal(Endpoint("vllm", MODEL, "http://127.0.0.1:9/v1", options={**TRAINED, **wrong}))
