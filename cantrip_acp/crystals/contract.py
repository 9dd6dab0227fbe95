"""The crystal contract: messages in, response out (§2.1, CRYSTAL-1..5).

A crystal is anything with a ``name``, a ``model``, a ``context_window`` and one method, ``query``. It keeps
nothing between queries. It may hand out pieces of its response as they come through ``emit``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from cantrip_acp.call import Call, ToolChoice
from cantrip_acp.crystals.sampled import Sampled
from cantrip_acp.errors import MalformedResponse

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True):
    """One call that the crystal asks for. ``args`` is JSON text exactly as the crystal gave it (CRYSTAL-4)."""

    id: str
    gate: str
    args: str = "{}"


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something in a prompt that is not text. ``data`` is base64; ``uri`` and ``title`` say where it came from.

    A model that does not take its ``kind`` sees a note in its place (`crystals.attachments`).
    """

    kind: Literal["image", "audio", "document"]
    mime: str
    data: str
    uri: str | None = None
    title: str = ""

    @classmethod
    def of(cls, mime: str, data: str, uri: str | None = None, title: str = "") -> Attachment:
        """An attachment whose kind follows from its media type."""
        match mime.partition("/")[0]:
            case "image":
                return cls("image", mime, data, uri, title)
            case "audio":
                return cls("audio", mime, data, uri, title)
            case _:
                return cls("document", mime, data, uri, title)


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message of a query.

    ``tool_calls`` and ``thinking`` belong to the assistant; ``tool_call_id``, ``name`` and ``is_error`` to a tool's answer.
    ``kind`` says where it comes from: call, capabilities, context, intent, turn, partial (an answer that was
    interrupted), nudge or fold.
    ``provider`` is what a provider needs back verbatim (signatures of thinking, reasoning items): a mapping whose
    ``family`` names who said it, so that any other provider passes it over (CRYSTAL-6, the swap).
    ``attachments`` belong to a user's message and stand before its text.
    ``text_calls``: the calls of an assistant's message stand in its content, as it wrote them.
    """

    role: Role
    content: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    thinking: str | None = None
    kind: str = "turn"
    provider: Any = None
    attachments: tuple[Attachment, ...] = ()
    text_calls: bool = False


class ToolDefinition(msgspec.Struct, frozen=True):
    """A gate, or a medium's own tool, as the crystal sees it; ``parameters`` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one query, or of many added up. ``cost`` is in US dollars, None where no price is known.

    ``prompt_tokens`` is all that the model read: ``cached_tokens`` (read from a cache) and ``cache_write_tokens`` are
    parts of it. ``reasoning_tokens`` are a part of ``completion_tokens``.
    """

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0
    cost: float | None = None

    @property
    def total_tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: Usage) -> Usage:
        if self.cost is None and other.cost is None:
            cost = None
        else:
            cost = (self.cost or 0.0) + (other.cost or 0.0)
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            cost,
        )

    def __sub__(self, other: Usage) -> Usage:
        """What is left of a count without a part of it."""
        cost = None if self.cost is None else max(self.cost - (other.cost or 0.0), 0.0)
        return Usage(
            self.prompt_tokens - other.prompt_tokens,
            self.completion_tokens - other.completion_tokens,
            self.cached_tokens - other.cached_tokens,
            self.cache_write_tokens - other.cache_write_tokens,
            self.reasoning_tokens - other.reasoning_tokens,
            cost,
        )

    def record(self) -> dict[str, Any]:
        """As it stands in results and events: the counts, their total, and the cost."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "total_tokens": self.total_tokens,
            "cost": self.cost,
        }


STOPS = ("stop", "length", "tool_calls", "refusal", "content_filter")
"""The reasons for which a response ends, by one set of words for all providers."""


class Response(msgspec.Struct, frozen=True):
    """What a crystal answers: at least one of ``content`` and ``tool_calls`` (CRYSTAL-3).

    ``tool_results`` are ids of tool results that a provider claims to carry; each must answer a known call.
    ``refused`` is true where the provider declined to answer. ``stop_reason`` is one of `STOPS`, or the provider's own
    word where none of them fits; ``length`` says that the response was cut at its limit of tokens.
    ``provider`` comes back with the assistant's message of every later query; see `Message`. JSON data only.
    ``id`` is the provider's own for the response, for those who ask it about one. ``sampled`` are its tokens, where they
    were asked for and the provider tells them. ``text_calls``: the crystal wrote its calls into ``content``, which keeps them.
    ``problem`` says why a program in the text is not run (`mediums.text_program`); the loop sets it.
    ``notices`` are for the user: what was done otherwise than asked.
    """

    content: str | None = None
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    stop_reason: str | None = None
    model: str | None = None
    refused: bool = False
    tool_results: tuple[str, ...] = ()
    provider: Any = None
    id: str | None = None
    sampled: Sampled | None = None
    text_calls: bool = False
    problem: str | None = None
    notices: tuple[str, ...] = ()


class Query(msgspec.Struct, frozen=True):
    """One question to a crystal.

    ``messages`` is the whole context, first to last; it belongs to the caller, who appends to it after the query:
    a crystal neither changes nor keeps it. ``intent`` is the text of the current cast. Where ``request_id`` is given, the
    request carries it as the header ``X-ACP-Model-Request-ID``.
    """

    messages: Sequence[Message]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    params: Call = Call()
    intent: str = ""
    entity_id: str = ""
    trace_id: str = ""
    request_id: str = ""


class Delta(msgspec.Struct, frozen=True):
    """A piece of a response as it streams; ``kind`` is text or thought."""

    kind: Literal["text", "thought"]
    text: str


Emit = Callable[[Delta], Awaitable[None]]
"""Where a crystal sends pieces as they come. It waits while the reader is slow, and raises where a response is endless."""


@runtime_checkable
class Crystal(Protocol):
    """The model. ``context_window`` is in tokens, None where it is not known.

    A crystal may have two methods more: ``prepare()`` does what the first query would wait for (importing an SDK); it may
    block, is called in a thread, and more than once. ``async aclose()`` ends its connections; it can be asked again after.

    A crystal with ``text_calls`` true writes its calls as text, because its model takes no tool definitions. Only such a
    crystal may also give a program as a code block (`mediums.text_program`).
    """

    @property
    def name(self) -> str: ...

    @property
    def model(self) -> str: ...

    @property
    def context_window(self) -> int | None: ...

    async def query(self, query: Query, emit: Emit) -> Response:
        """Answer. Raises `CrystalError`; a response is never cut off in silence (CRYSTAL-2)."""
        ...


def check_response(response: Response, messages: Sequence[Message]) -> None:
    """Refuse a response that breaks the contract (CRYSTAL-3, CRYSTAL-4): raises `MalformedResponse`."""
    calls = response.tool_calls
    if response.tool_results:
        _check_results(response, messages)
    if not calls and not response.content and not response.refused:
        raise MalformedResponse("crystal returned neither content nor tool_calls (CRYSTAL-3)")
    if len(calls) == 1:
        _check_call(calls[0], 0)
    elif calls:
        seen: set[str] = set()
        for index, call in enumerate(calls):
            _check_call(call, index)
            if call.id in seen:
                raise MalformedResponse(f"duplicate tool call ID {call.id!r} in one response (CRYSTAL-4)")
            seen.add(call.id)


def _check_results(response: Response, messages: Sequence[Message]) -> None:
    known = {call.id for call in response.tool_calls}
    for message in messages:
        known.update(call.id for call in message.tool_calls)
    for result_id in response.tool_results:
        if result_id not in known:
            raise MalformedResponse(f"tool result without matching tool call: {result_id!r} was never asked for")


def _check_call(call: ToolCall, index: int) -> None:
    if not call.id or not isinstance(call.id, str):
        raise MalformedResponse(f"tool call {index} has no id (CRYSTAL-4)")
    if not call.gate or not isinstance(call.gate, str):
        raise MalformedResponse(f"tool call {call.id!r} names no gate (CRYSTAL-4)")
