"""Chat Completions crystal: queries models through OpenAI's Chat Completions API, which most other servers support too."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from cantrip_acp.crystals import provider_errors
from cantrip_acp.crystals.catalog import unsupported_params
from cantrip_acp.crystals.catalog.types import priced
from cantrip_acp.crystals.contract import CUTS, Emit, Query, Response
from cantrip_acp.crystals.endpoint import Endpoint, EndpointCrystal, check_window
from cantrip_acp.crystals.openai.chat_messages import OPENAI, render, render_tools
from cantrip_acp.crystals.openai.chat_stream import ChatAnswer
from cantrip_acp.crystals.openai.client import OpenAISdk, is_own
from cantrip_acp.crystals.openai.tool_names import make_tool_calls, original_names, wire_name
from cantrip_acp.crystals.refused_media import named_part
from cantrip_acp.crystals.text_tools import RESULT, StreamedTextFilter, render_as_text, think_tags
from cantrip_acp.crystals.tool_schemas import ToolSchemas
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import CrystalError, DefinitionError
from cantrip_acp.types.messages import Message, RequestParameters
from cantrip_acp.types.usage import UNKNOWN_USAGE, Usage

PATH = "/chat/completions"
TOOLS = ("auto", "native", "text")

_MOST_STOPS = 4
"""The largest number of stop sequences that servers take."""
_NO_TOOLS = re.compile(
    r"does not support (?:tools|tool|function)|tools? (?:is|are) not supported|support tool use|enable-auto-tool-choice"
    r"|tool-call-parser|requires --jinja|no tool support|tools param|function calling is not (?:supported|enabled)"
    r"|(?:unrecognized|unknown|unexpected|extra)[^.]{0,60}\btools\b|\btools\b[^.]{0,40}(?:not permitted|extra inputs|not allowed)",
    re.IGNORECASE,
)
"""Matches the error texts of a model or server that accepts no tool definitions."""

_LEFT_OVER = re.compile(
    r"^[ \t]*(?:<tool_calls?>|\[TOOL_CALLS\]|<\|tool_calls?\|>|<\|python_tag\|>|<function=)", re.MULTILINE
)
_KIMI = re.compile(r"kimi", re.IGNORECASE)
"""Matches the names of models that accept the ids of calls only in their own form."""
_log = logger(__name__)


@dataclass(slots=True)
class _Answer:
    """One answer while it is streamed: the parser of the protocol, and the filter for its text."""

    chat: ChatAnswer
    spoken: StreamedTextFilter
    emit: Emit

    async def feed(self, chunk: Mapping[str, Any]) -> None:
        for delta in self.chat.feed(chunk):
            if delta.kind == "thought":
                self.spoken.thought_apart()
                await self.emit(delta)
                continue
            for shown in self.spoken.feed(delta.text):
                await self.emit(shown)


class ChatCrystal(EndpointCrystal):
    """A model that is served through Chat Completions. Subclasses override the methods for their servers.

    If the model accepts no tool definitions, it writes tool calls as text. The option ``tools`` decides this: ``native``,
    ``text``, or ``auto``, which uses the model table and the server's errors. ``text_calls`` is true only if this is known
    before the first query. If tool definitions are sent, no calls are searched in the model's text.
    """

    dialect = OPENAI
    limit_key = "max_completion_tokens"
    more_sampling = False
    """Whether the server takes ``top_k`` and ``min_p``, which OpenAI's own API does not have."""
    think_tags = False
    """Whether the text may contain thinking in tags."""

    def __init__(self, endpoint: Endpoint, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(endpoint)
        self.name = endpoint.provider
        self.sdk = OpenAISdk(endpoint, base_url, headers)
        self._dropped: set[str] = set()
        self._effort = unsupported_params.EffortFallback(self.sdk.who)
        self._choice = unsupported_params.ForcedCalls(self.sdk.who, endpoint, self.sdk.base_url)
        self._schemas = ToolSchemas(self.sdk.who)
        tools = endpoint.options.get("tools", "auto")
        if tools not in TOOLS:
            raise DefinitionError(f"tools is {tools!r}; it is one of {', '.join(TOOLS)}", where="crystal.tools")
        self.text_calls = tools == "text" or (tools == "auto" and not endpoint.info.tools)
        self._by_text = self.text_calls
        if _KIMI.search(endpoint.model):
            self.dialect = replace(self.dialect, ids="kimi")
        self._finds_out = tools == "auto"
        self._remarked = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.endpoint.provider}:{self.model})"

    def prepare(self) -> None:
        """Import the SDK. Blocks. May be called in any thread."""
        self.sdk.prepare()

    async def aclose(self) -> None:
        """Close the connections of the running event loop."""
        await self.sdk.aclose()

    async def query(self, query: Query, emit: Emit) -> Response:
        """Answer a query (CRYSTAL-1..5). Raises `CrystalError`."""
        check_window(self.endpoint, query)
        while True:
            by_text = self._by_text
            body = self._effort.applied(
                unsupported_params.drop_parameters(self.body(query, by_text=by_text), self._dropped)
            )
            try:
                return await self._answer(body, query, emit, by_text=by_text)
            except CrystalError as error:
                error.part = named_part(body, error)
                name = unsupported_params.unsupported_parameter(error, body)
                if self._finds_out and not by_text and query.tools and _NO_TOOLS.search(str(error)):
                    self._by_text = True
                elif name is not None and name not in self._dropped:
                    self._dropped.add(name)
                elif self._choice.learn(error, sent=body.get("tool_choice") == "required") or (
                    "tools" in body and self._schemas.learn(error, query.tools)
                ):
                    pass
                elif not self._effort.learn(error, body):
                    raise self.explained(error) from None

    def explained(self, error: CrystalError) -> CrystalError:
        """Add this provider's explanation of the cause to an error."""
        return error

    def body(self, query: Query, *, by_text: bool = False) -> dict[str, Any]:
        """Build the JSON body of the request."""
        endpoint, params = self.endpoint, query.params
        messages: Sequence[Message] = query.messages
        stop = list(params.stop)
        if by_text:
            offered = query.tools if query.tool_choice != "none" else ()
            messages = render_as_text(messages, offered, required=query.tool_choice == "required")
            if offered and len(stop) < _MOST_STOPS:
                # Stop a model that starts to invent the results of its calls.
                stop.append(RESULT)
        body: dict[str, Any] = {
            "model": self.model,
            "messages": render(messages, endpoint.info, self.model, self.dialect),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if query.tools and not by_text:
            body["tools"] = render_tools(query.tools, self._schemas)
            if query.tool_choice == "none" or (query.tool_choice == "required" and self._choice.taken):
                body["tool_choice"] = query.tool_choice
        given: dict[str, Any] = {}
        if endpoint.info.sampling:
            given |= {"temperature": params.temperature, "top_p": params.top_p}
            if self.more_sampling:
                given |= {"top_k": params.top_k, "min_p": params.min_p}
        given |= {"verbosity": endpoint.options.get("verbosity") or None}
        given |= {"seed": params.seed, self.limit_key: params.max_tokens}
        body |= {name: value for name, value in given.items() if value is not None}
        if stop:
            body["stop"] = stop
        if endpoint.options.get("logprobs"):
            body["logprobs"] = True
        self.extend(body, query)
        return body

    def extend(self, body: dict[str, Any], query: Query) -> None:
        """Add the provider's own fields to a request."""
        effort = self.endpoint.options.get("effort")
        if effort:
            body["reasoning_effort"] = effort
        if query.entity_id:
            body["prompt_cache_key"] = cache_key(query)
        if self.endpoint.options.get("logprobs") and not is_own(self.sdk.base_url):
            # Another server at this provider's protocol, often vLLM behind a trainer, which then reports token ids.
            body["return_token_ids"] = True

    async def _answer(self, body: dict[str, Any], query: Query, emit: Emit, *, by_text: bool) -> Response:
        offered = query.tools if query.tool_choice != "none" and by_text else ()
        names = {wire_name(tool.name) for tool in offered}
        tags = think_tags(query.messages) if self.think_tags else {}
        answer = _Answer(ChatAnswer(), StreamedTextFilter(names, tags=tags), emit)
        stopped: str | None = None
        path, sent = await self.request(body)
        async with self.sdk.events(path, sent, query) as events:
            whole = await events.whole()
            if whole is None:
                async for chunk in events:
                    await self._feed(answer, chunk, query)
                    if answer.chat.error is not None:
                        raise self.sdk.refused_midway(answer.chat.error)
                    if answer.chat.ended:
                        break
                    if (stopped := self.endless(answer.chat)) is not None:
                        answer.chat.finish = "repetition"
                        break
                while answer.chat.ended and stopped is None and (more := await events.afterwards()) is not None:
                    await self._feed(answer, more, query)
            elif isinstance(whole, dict):
                await self._feed(answer, whole, query)
        finish = answer.chat.finish
        if finish in ("error", "abort"):
            raise provider_errors.connection_error(
                self.sdk.who, EOFError(f"the finish_reason is {finish!r}"), sent=True
            )
        if not answer.chat.ended:
            if whole is not None:
                raise provider_errors.invalid_response(self.sdk.who, f"JSON that is not an answer: {whole!r}"[:200])
            raise provider_errors.connection_error(
                self.sdk.who, EOFError("it ended without a finish_reason"), sent=True
            )
        await self.ended(answer.chat, body, sent)
        response = await self._response(answer, query)
        if stopped is not None:
            response = msgspec.structs.replace(response, notices=(*response.notices, stopped))
        asked = RequestParameters(
            body.get("temperature"),
            body.get("top_p"),
            body.get("seed"),
            body.get("max_completion_tokens", body.get("max_tokens")),
            body.get("top_k"),
            body.get("min_p"),
            tuple(body.get("stop", ())),
            "text" if by_text else "native" if "tools" in body and query.tool_choice != "none" else "none",
            self.dialect.family,
            answer.chat.server.template,
            weights=self.endpoint.weights or answer.chat.server.weights,
            call_ids=self.dialect.ids,
        )
        query.meter.report(response.usage, complete=True)
        self.check_usage(response.usage, query)
        return require_content(self.sdk.who, msgspec.structs.replace(response, request=asked))

    async def _feed(self, answer: _Answer, chunk: Mapping[str, Any], query: Query) -> None:
        if isinstance(chunk.get("usage"), Mapping) or isinstance(chunk.get("x_groq"), Mapping):
            # Some servers report counts with each chunk. Report them now, because a query that is cancelled is billed for them.
            ended = answer.chat.ended or not chunk.get("choices")
            counted = ChatAnswer()
            counted.feed({key: chunk[key] for key in ("usage", "x_groq") if key in chunk})
            query.meter.report(self.usage(counted), complete=ended)
        await answer.feed(chunk)

    async def _response(self, answer: _Answer, query: Query) -> Response:
        """Convert the answer to a `Response`."""
        chat = answer.chat
        rest, thinking, content, found = answer.spoken.finish()
        for delta in rest:
            await answer.emit(delta)
        if content and not chat.calls and not found:
            self._remark(content)
        given = [(c.id, c.name, c.text or "{}") for c in chat.calls if c.id or c.name or c.text] or [
            ("", name, args) for name, args in found
        ]
        calls = make_tool_calls(given, original_names(query.tools))
        stop = chat.stop_reason()
        filtered = stop == "content_filter" and not content and not calls
        return Response(
            content=content,
            thinking="".join(chat.thoughts) or thinking,
            tool_calls=calls,
            usage=self.usage(chat),
            stop_reason="tool_calls" if calls and stop == "stop" else stop,
            model=chat.server.model or self.model,
            refused=chat.refused or filtered,
            provider=self.kept(chat),
            id=chat.server.id,
            sampled=chat.tokens.whole() if self.endpoint.options.get("logprobs") else None,
            text_calls=bool(found and not chat.calls),
            notices=(*self._effort.notices(), *self._choice.notices(), *self._schemas.notices()),
            fingerprint=chat.server.fingerprint,
        )

    def _remark(self, content: str) -> None:
        """Log once that the text contains something like a tool call, which the server did not parse and nobody runs."""
        if not self._remarked and not self._by_text and _LEFT_OVER.search(content):
            self._remarked = True
            _log.warning(
                "%s wrote something like a tool call into its text. It is not run. If the server does not support tool "
                "calls of this model, set crystal.tools: text",
                self.sdk.who,
            )

    def endless(self, chat: ChatAnswer) -> str | None:
        """Why the rest of an answer is not read, for the user; None to read on. Such an answer counts as cut off."""
        return None

    async def request(self, body: dict[str, Any]) -> tuple[str, dict[str, Any]]:
        """The path to send a request to, and the request in the form that is sent."""
        return PATH, body

    async def ended(self, chat: ChatAnswer, body: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
        """Ask the server for data that was missing in its answer. ``sent`` is the result of `request` for ``body``."""

    def kept(self, chat: ChatAnswer) -> Any:
        """The data that must be sent back to the server with this answer in later queries."""
        return None

    def check_usage(self, usage: Usage, query: Query) -> None:
        """Raise `CrystalError` if the token count shows that the server did not read all messages."""

    def usage(self, chat: ChatAnswer) -> Usage:
        """The usage of the answer, with its cost if that is known."""
        usage = chat.server.counted()
        return UNKNOWN_USAGE if usage is None else priced(usage, self.endpoint.info.price)


def require_content(who: str, response: Response) -> Response:
    """Return the response if it has text, calls or a refusal. Otherwise raise `CrystalError` with the reason."""
    if response.tool_calls or response.refused or (response.content and response.content.strip()):
        return response
    if response.stop_reason in CUTS:
        raise CrystalError(
            f"{who}: the token limit was reached before the answer began, "
            f"{'all of it was used for thinking' if response.thinking else 'nothing was said'}; raise call.max_tokens",
            retryable=False,
        ).with_answer(response)
    # Some models do this sometimes, often small ones. A retry usually helps.
    raise provider_errors.invalid_response(who, "an empty answer: no text and no tool call").with_answer(response)


def cache_key(query: Query) -> str:
    """A cache key that is the same for all queries of one entity. It is a hash, so it does not reveal the entity's id."""
    return "cantrip-" + hashlib.sha256(query.entity_id.encode()).hexdigest()[:32]
