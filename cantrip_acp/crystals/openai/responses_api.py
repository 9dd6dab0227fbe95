"""OpenAI crystal: the Responses API at OpenAI's own address, Chat Completions elsewhere or with ``api: chat``.

Options: ``api`` (responses | chat), ``effort`` (none, minimal, low, medium, high, xhigh, max), ``summary`` (auto,
concise, detailed, none: how its reasoning is shown). The Responses API has no stop sequences, so a call with some uses
Chat Completions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from cantrip_acp.core.errors import CrystalError, DefinitionError
from cantrip_acp.crystals import provider_errors
from cantrip_acp.crystals.catalog import unsupported_params
from cantrip_acp.crystals.catalog.types import priced
from cantrip_acp.crystals.contract import UNKNOWN_USAGE, Emit, Query, RequestParameters, Response
from cantrip_acp.crystals.endpoint import Endpoint, check_window
from cantrip_acp.crystals.openai.chat_completions import ChatCrystal, cache_key, said_something
from cantrip_acp.crystals.openai.chat_stream import usage_of
from cantrip_acp.crystals.openai.client import OpenAISdk, address, is_own
from cantrip_acp.crystals.openai.responses_messages import FAMILY, keep, render_input, render_tools
from cantrip_acp.crystals.openai.responses_stream import ResponsesAnswer
from cantrip_acp.crystals.openai.tool_names import minted, names_back

PATH = "/responses"
APIS = ("responses", "chat")

_NEEDS_RESPONSES = re.compile(r"(?:^|/)(?:gpt-(?:5\.[4-9]|[6-9])|[\w.-]*codex|[\w.-]+-pro\b)", re.IGNORECASE)
"""Models that take function tools only through the Responses API. OpenAI opened Chat Completions for some of them
later (2026-11), but only in part, so only the Responses API works for all. Looked up 2026-11: openai/openai-openapi
issue 541, danny-avila/LibreChat issue 14355."""
_ONLY_RESPONSES = re.compile(r"v1/responses|responses API|responses endpoint", re.IGNORECASE)

_LOGPROBS = "message.output_text.logprobs"
_FOREIGN_REASONING = re.compile(r"encrypted[ _]content", re.IGNORECASE)
"""The error for reasoning that this key cannot decrypt: from another organization, or from a removed model."""


class OpenAICrystal:
    """An OpenAI model, through one of the two APIs.

    Without the option ``api``: the Responses API at OpenAI's own address, and elsewhere for models that take tools
    only there. Otherwise, and if calls are written as text, Chat Completions. If a server refuses a request and names
    the other API, that one is used from then on.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        api = endpoint.options.get("api")
        if api is not None and api not in APIS:
            raise DefinitionError(f"api is {api!r}; it is one of {', '.join(APIS)}", where="crystal.api")
        where = address(endpoint)
        self._chosen = api is not None
        self._needs_responses = _NEEDS_RESPONSES.search(endpoint.model) is not None
        by_text = endpoint.options.get("tools") == "text"
        self.api: str = api or ("responses" if (is_own(where) or self._needs_responses) and not by_text else "chat")
        self.endpoint = endpoint
        self.name = endpoint.provider
        self.model = endpoint.model
        self.context_window = endpoint.info.context_window
        self.max_input = endpoint.info.max_input
        self.remarks = endpoint.remarks
        self.priced = endpoint.info.price is not None
        self._chat = ChatCrystal(endpoint, where)
        self.text_calls = self.api == "chat" and self._chat.text_calls
        self._responses = ResponsesCrystal(endpoint, where)

    def __repr__(self) -> str:
        return f"OpenAICrystal({self.endpoint.provider}:{self.model}, {self.api})"

    def prepare(self) -> None:
        """Import the SDK. Blocks; may be called in any thread."""
        self._chat.prepare()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self._chat.aclose()
        await self._responses.aclose()

    async def query(self, query: Query, emit: Emit) -> Response:
        """Answer a query (CRYSTAL-1..5). Raises `CrystalError`."""
        # The Responses API has no stop sequences.
        stops = query.params.stop and not (self._needs_responses and query.tools)
        by_chat = self.api == "chat" or bool(stops)
        try:
            return await (self._chat if by_chat else self._responses).query(query, emit)
        except CrystalError as error:
            if self._chosen or not _names_the_other_api(error, by_chat=by_chat):
                raise
        self.api = "responses" if by_chat else "chat"
        return await (self._responses if by_chat else self._chat).query(query, emit)


def _names_the_other_api(error: CrystalError, *, by_chat: bool) -> bool:
    """Whether an error says that this model, or this server, needs the other API."""
    if by_chat:
        return error.status in (400, 404, 405, 422) and _ONLY_RESPONSES.search(str(error)) is not None
    # A gateway without this path, not a missing model.
    return error.status in (404, 405, 501) and "model" not in str(error).partition("): ")[2].lower()


class ResponsesCrystal:
    """A model behind the Responses API, without state on the server (CRYSTAL-1): ``store`` is off."""

    def __init__(self, endpoint: Endpoint, base_url: str) -> None:
        self.endpoint = endpoint
        self.sdk = OpenAISdk(endpoint, base_url)
        self._dropped: set[str] = set()
        self._effort = unsupported_params.Effort(self.sdk.who)
        self._refused_reasoning = unsupported_params.RefusedReplay(FAMILY)
        self._no_logprobs = False

    async def aclose(self) -> None:
        await self.sdk.aclose()

    async def query(self, query: Query, emit: Emit) -> Response:
        """Answer a query (CRYSTAL-1..5). Raises `CrystalError`."""
        check_window(self.endpoint, query)
        while True:
            messages = self._refused_reasoning.without(query.messages)
            body = unsupported_params.without(
                self.body(msgspec.structs.replace(query, messages=messages)), self._dropped
            )
            body = self._effort.applied(body)
            try:
                answer = await self._answer(body, query, emit)
            except CrystalError as error:
                name = unsupported_params.not_taken(error, body)
                if _LOGPROBS in body.get("include", ()) and error.status == 400 and "logprob" in str(error):
                    # Reasoning models report no log-probabilities. The other included fields stay.
                    self._no_logprobs = True
                elif name is not None and name not in self._dropped:
                    self._dropped.add(name)
                elif self._effort.learn(error, body):
                    pass
                elif (
                    error.status != 400
                    or not _FOREIGN_REASONING.search(str(error))
                    or not self._refused_reasoning.refuse(messages)
                ):
                    raise
            else:
                asked = RequestParameters(
                    body.get("temperature"), body.get("top_p"), None, body.get("max_output_tokens")
                )
                return self._response(answer, query, asked)

    def body(self, query: Query) -> dict[str, Any]:
        """The request's JSON."""
        endpoint, params = self.endpoint, query.params
        body: dict[str, Any] = {
            "model": endpoint.model,
            "input": render_input(query.messages, endpoint.info, endpoint.model),
            "stream": True,
            "store": False,
        }
        reasoning = self._reasoning()
        if reasoning:
            body["reasoning"] = reasoning
        if endpoint.info.reasoning or reasoning or not endpoint.info.known:
            body["include"] = ["reasoning.encrypted_content"]
        if endpoint.options.get("verbosity"):
            body["text"] = {"verbosity": endpoint.options["verbosity"]}
        if endpoint.options.get("logprobs") and not self._no_logprobs:
            body["include"] = [*body.get("include", ()), _LOGPROBS]
        if query.tools:
            body["tools"] = render_tools(query.tools)
            if query.tool_choice != "auto":
                body["tool_choice"] = query.tool_choice
        if endpoint.info.sampling:
            if params.temperature is not None:
                body["temperature"] = params.temperature
            if params.top_p is not None:
                body["top_p"] = params.top_p
        if params.max_tokens is not None:
            body["max_output_tokens"] = params.max_tokens
        if query.entity_id:
            body["prompt_cache_key"] = cache_key(query)
        return body

    def _reasoning(self) -> dict[str, Any]:
        options = self.endpoint.options
        reasoning: dict[str, Any] = {}
        if options.get("effort"):
            reasoning["effort"] = options["effort"]
        summary = options.get("summary", "auto" if self.endpoint.info.reasoning else None)
        if summary and summary != "none":
            reasoning["summary"] = summary
        return reasoning

    async def _answer(self, body: Mapping[str, Any], query: Query, emit: Emit) -> ResponsesAnswer:
        answer = ResponsesAnswer()
        async with self.sdk.events(PATH, body, query) as events:
            whole = await events.whole()
            if whole is None:
                async for event in events:
                    for delta in answer.feed(event):
                        await emit(delta)
                    if answer.error is not None or answer.final is not None:
                        break
                while answer.final is not None and await events.afterwards() is not None:
                    pass
            elif isinstance(whole, dict):
                answer.take(whole)
        if answer.usage is not None:
            query.meter.report(priced(usage_of(answer.usage), self.endpoint.info.price), complete=True)
        if answer.error is not None:
            raise self.sdk.refused_midway(answer.error)
        if answer.final is None:
            if whole is not None:
                raise provider_errors.unreadable(self.sdk.who, f"JSON that is no response: {whole!r}"[:200])
            raise provider_errors.broken(self.sdk.who, EOFError("it ended without response.completed"), sent=True)
        return answer

    def _response(self, answer: ResponsesAnswer, query: Query, asked: RequestParameters) -> Response:
        content = answer.content()
        given = answer.calls()
        calls = minted(given, names_back(query.tools))
        raw = answer.usage
        usage = UNKNOWN_USAGE if raw is None else priced(usage_of(raw), self.endpoint.info.price)
        stop = answer.stop_reason()
        as_given = [call_id for call_id, _, _ in given] == [call.id for call in calls]
        model, own_id = (answer.final or {}).get("model"), (answer.final or {}).get("id")
        response = Response(
            content=content,
            thinking=answer.thinking(),
            tool_calls=calls,
            usage=usage,
            stop_reason=stop,
            model=model if isinstance(model, str) and model else self.endpoint.model,
            refused=answer.refused or (stop == "content_filter" and not content and not calls),
            provider=keep(answer.items()) if answer.complete and as_given else None,
            id=own_id if isinstance(own_id, str) and own_id else None,
            sampled=answer.tokens() if self.endpoint.options.get("logprobs") else None,
            notices=self._effort.notices(),
            request=asked,
        )
        return said_something(self.sdk.who, response)
