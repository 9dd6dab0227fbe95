"""The crystal contract: the types of queries, messages, responses and usage (§2.1, CRYSTAL-1..5).

A crystal is an object with a ``name``, a ``model``, a ``context_window`` and the method ``query``. It keeps no state
between queries. It may send pieces of its response through ``emit`` as they arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import msgspec

from cantrip_acp.core.definition.call import Call, ToolChoice
from cantrip_acp.core.errors import MalformedResponse
from cantrip_acp.crystals.logprobs import SampledTokens

Role = Literal["system", "user", "assistant", "tool"]


class ToolCall(msgspec.Struct, frozen=True):
    """One call in a response. ``args`` is the JSON text exactly as the crystal gave it (CRYSTAL-4), unless it could not be read
    and only one meaning was possible (`mended_answers`)."""

    id: str
    gate: str
    args: str = "{}"


class Attachment(msgspec.Struct, frozen=True, omit_defaults=True):
    """Content of a prompt that is not text. ``data`` is base64; ``uri`` and ``title`` say where it came from.

    If the model does not accept this ``kind``, it gets a text note instead (`catalog.types.attachment_note`).
    """

    kind: Literal["image", "audio", "document"]
    mime: str
    data: str
    uri: str | None = None
    title: str = ""

    @classmethod
    def of(cls, mime: str, data: str, uri: str | None = None, title: str = "") -> Attachment:
        """Make an attachment. Its kind follows from the media type."""
        match mime.partition("/")[0]:
            case "image":
                return cls("image", mime, data, uri, title)
            case "audio":
                return cls("audio", mime, data, uri, title)
            case _:
                return cls("document", mime, data, uri, title)


class Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One message of a query.

    - Only an assistant's message has ``tool_calls`` and ``thinking``.
    - Only a tool's answer has ``tool_call_id``, ``name`` and ``is_error``.
    - ``kind`` is the origin: call, capabilities, context, knowledge, intent, turn, partial (an interrupted answer), nudge or
      fold.
    - ``provider`` is data that must go back to the provider unchanged (signatures of thinking, reasoning items). It is a
      mapping. Its ``family`` names the provider, so that other providers ignore it (CRYSTAL-6).
    - ``attachments`` come before the text of a user's message, and after the text of a tool's answer.
    - ``text_calls`` is true if the content of an assistant's message contains its tool calls as text.
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


KIND_NAMES = {
    "call": "system prompt",
    "capabilities": "capabilities",
    "knowledge": "what the session knew",
    "context": "context given with prompts",
    "intent": "prompts",
    "steering": "messages that came while a prompt ran",
    "turn": "turns: answers, calls and results",
    "partial": "answers that were not finished",
    "nudge": "hints of cantrip",
    "fold": "summary of folded turns",
}
"""What a message is, in words for people, by its ``kind``."""


class ToolDefinition(msgspec.Struct, frozen=True):
    """A tool that the crystal may call: a gate, or a medium's own tool. ``parameters`` is a JSON Schema of type object."""

    name: str
    description: str
    parameters: Mapping[str, Any]


class Usage(msgspec.Struct, frozen=True):
    """Tokens and cost (US dollars) of one query, or the sum over several queries.

    None means unknown, which is not the same as 0. A sum contains only the known values. ``queries_without_usage``
    counts the queries whose tokens were not fully reported, and ``queries_without_cost`` those with an unknown cost. If
    both are 0, the sum is complete. A value of a sum is None if it is unknown for every query. ``Usage()`` is the usage
    of zero queries.

    ``prompt_tokens`` are all tokens that the model read. They include ``cached_tokens`` (read from a cache) and
    ``cache_write_tokens``. ``completion_tokens`` include ``reasoning_tokens``.
    """

    prompt_tokens: int | None = 0
    completion_tokens: int | None = 0
    cached_tokens: int | None = 0
    cache_write_tokens: int | None = 0
    reasoning_tokens: int | None = 0
    cost: float | None = None
    queries_without_usage: int = 0
    queries_without_cost: int = 0

    @property
    def total_tokens(self) -> int | None:
        """The known prompt and completion tokens together; None if neither is known."""
        read, said = self.prompt_tokens, self.completion_tokens
        known = (read or 0) + (said or 0)
        return known if known or (read is not None and said is not None) else None

    def counted(self) -> Usage:
        """Return the usage of one query with ``queries_without_*`` set. A sum is returned unchanged."""
        if self.queries_without_usage or self.queries_without_cost:
            return self
        unknown = self.prompt_tokens is None or self.completion_tokens is None
        unpriced = self.cost is None and (unknown or bool(self.prompt_tokens or self.completion_tokens))
        if not unknown and not unpriced:
            return self
        return msgspec.structs.replace(self, queries_without_usage=int(unknown), queries_without_cost=int(unpriced))

    def partial(self) -> Usage:
        """Return the usage of a query that was cut off. The query may have used more than was reported."""
        return msgspec.structs.replace(self, queries_without_usage=1, queries_without_cost=1)

    def __add__(self, other: Usage) -> Usage:
        # Compare identity first, for speed: it is nearly always the constant, and every turn adds usage.
        if self is NO_USAGE or self == NO_USAGE:
            return other
        if other is NO_USAGE or other == NO_USAGE:
            return self
        pairs = zip(msgspec.structs.astuple(self), msgspec.structs.astuple(other), strict=True)
        return Usage(*[one if more is None else more if one is None else one + more for one, more in pairs])

    def __sub__(self, other: Usage) -> Usage:
        """Subtract one part from a sum."""
        without_usage = max(0, self.queries_without_usage - other.queries_without_usage)
        without_cost = max(0, self.queries_without_cost - other.queries_without_cost)
        return Usage(
            _minus(self.prompt_tokens, other.prompt_tokens, without_usage),
            _minus(self.completion_tokens, other.completion_tokens, without_usage),
            _minus(self.cached_tokens, other.cached_tokens, without_usage),
            _minus(self.cache_write_tokens, other.cache_write_tokens, without_usage),
            _minus(self.reasoning_tokens, other.reasoning_tokens, without_usage),
            _minus(self.cost, other.cost, without_cost),
            without_usage,
            without_cost,
        )

    def words(self) -> list[str]:
        """Describe tokens and cost in short texts for people, with what is unknown. Empty if no query was made."""
        parts = []
        some, many = self.queries_without_usage, self.queries_without_cost
        if self.total_tokens is None:
            parts.append("tokens unknown")
        elif self.total_tokens or some:
            read, said = ("?" if n is None else f"{n:,}" for n in (self.prompt_tokens, self.completion_tokens))
            cached = f" ({self.cached_tokens:,} cached)" if self.cached_tokens else ""
            parts.append(f"{read} tokens in, {said} out{cached}" + (f" + unknown of {_queries(some)}" if some else ""))
        if self.cost is not None:
            money = f"${self.cost:.4f}" if self.cost >= 0.001 or not self.cost else f"${self.cost:.6f}"
            parts.append(money + (f" + unknown of {_queries(many)}" if many else ""))
        elif many:
            parts.append("cost unknown")
        return parts

    def record(self) -> dict[str, Any]:
        """Return the usage as a mapping for results and events: the counts, their total, and the cost.

        If something is unknown, the mapping also has the number of queries with unknown values.
        """
        record: dict[str, Any] = {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cached_tokens": self.cached_tokens,
            "cache_write_tokens": self.cache_write_tokens,
            "reasoning_tokens": self.reasoning_tokens,
            "total_tokens": self.total_tokens,
            "cost": self.cost,
        }
        return record | self.unknown() if self.queries_without_usage or self.queries_without_cost else record

    def unknown(self) -> dict[str, int]:
        """The non-zero ``queries_without_*`` counts, by name. Empty if all values are known."""
        names = ("queries_without_usage", "queries_without_cost")
        return {name: number for name in names if (number := getattr(self, name))}

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> Usage:
        """Read the result of `record` again. A missing key (from an older version) counts as 0."""
        return cls(**{name: record[name] for name in cls.__struct_fields__ if name in record})


NO_USAGE = Usage()
"""The usage of zero queries: the start value of a sum."""

UNKNOWN_USAGE = Usage(None, None, None, None, None, None, 1, 1)
"""The usage of a query whose provider reported nothing."""


def _queries(number: int) -> str:
    return "1 query" if number == 1 else f"{number} queries"


_Number = TypeVar("_Number", int, float)


def _minus(whole: _Number | None, part: _Number | None, unknown: int) -> _Number | None:
    left = whole if whole is None or part is None else max(whole - part, type(whole)(0))
    # If nothing known is left but something is unknown, the rest is unknown and not 0.
    return None if not left and unknown else left


class Meter:
    """Counts the usage of one attempt of a query while it runs (`Query.meter`).

    It is needed if the attempt gives no response, for example after a broken stream or a cancel. A crystal calls

    - ``sent`` before each request; from then on its usage is unknown,
    - ``refused`` if the provider did no work for the request,
    - ``report`` whenever the provider reports counts; each report replaces the previous one.

    If a crystal calls none of these, the attempt counts as free, unless a piece of text was streamed.
    """

    __slots__ = ("_before", "_pending", "_reported")

    def __init__(self) -> None:
        self._before = NO_USAGE
        self._pending = False
        self._reported: Usage | None = None

    def sent(self) -> None:
        """Start counting a request that is about to be sent. Earlier requests of the same attempt stay counted."""
        self._before = self.used
        self._pending, self._reported = True, None

    def refused(self) -> None:
        """Count nothing for the last request, because the provider did not serve it."""
        self._pending = False

    def report(self, usage: Usage, *, complete: bool = False) -> None:
        """Set the usage of the last request so far. ``complete``: the counts are final."""
        self._pending = True
        self._reported = usage.counted() if complete else usage.partial()

    @property
    def used(self) -> Usage:
        if not self._pending:
            return self._before
        return self._before + (UNKNOWN_USAGE if self._reported is None else self._reported)


STOPS = ("stop", "length", "tool_calls", "refusal", "content_filter", "repetition")
"""The reasons why a response ends. All providers use these words."""
CUTS = ("length", "repetition")
"""Those of a response that was cut off: at its token limit, or because it repeated itself endlessly."""


ToolMode = Literal["native", "text", "none"]
"""How a query offered tools: as tool definitions, as text in the messages (`text_tools`), or not at all."""


class RequestParameters(msgspec.Struct, frozen=True, omit_defaults=True):
    """The parameters of a request as they were sent. None: not sent, because not requested or not supported by the model.

    - ``stop`` are the stop sequences, with those that the crystal adds.
    - ``tool_mode`` is a `ToolMode`. None if the crystal does not report it.
    - ``dialect`` names the form in which a Chat Completions server got the messages (`openai.chat_messages.DIALECTS`).
    - ``template`` is the `template_label` of the server's chat template, if the server reports the template.
    - ``weights`` is the label of the version of the weights that answered: the crystal's option ``weights``, else what
      the server reports, else ``$CANTRIP_WEIGHTS``.
    - ``call_ids`` is the form of the ids of calls that a Chat Completions server got (`openai.tool_names.IdStyle`).
    """

    temperature: float | None = None
    top_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop: tuple[str, ...] = ()
    tool_mode: ToolMode | None = None
    dialect: str | None = None
    template: str | None = None
    weights: str | None = None
    call_ids: str = ""

    @classmethod
    def of(cls, call: Call) -> RequestParameters:
        """The parameters that a call asks for."""
        return cls(call.temperature, call.top_p, call.seed, call.max_tokens, call.top_k, call.min_p, call.stop)


WEIGHTS_VARIABLE = "CANTRIP_WEIGHTS"
"""The environment variable with the label of the weights' version, for crystals without the option ``weights``."""


def template_label(template: str) -> str:
    """The label of a chat template: the beginning of the SHA-256 of its text."""
    return f"sha256:{hashlib.sha256(template.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


class Response(msgspec.Struct, frozen=True):
    """The answer of a crystal. It has ``content`` or ``tool_calls`` or both (CRYSTAL-3).

    - ``tool_results`` are the ids of tool results in the response. Each must answer a known call.
    - ``refused`` is true if the provider declined to answer.
    - ``stop_reason`` is one of `STOPS`, or the provider's own word if none fits. ``length`` means that the response was
      cut at its token limit.
    - ``provider`` is JSON data that goes back with the assistant's message in every later query (see `Message`).
    - ``id`` is the provider's id of the response, for support questions.
    - ``sampled`` are the tokens of the response, if they were requested and the provider reports them.
    - ``text_calls`` is true if the crystal wrote its tool calls into ``content``. They stay in ``content``.
    - ``problem`` says why a program in the text is not run (`mediums.text_program`). The loop sets it.
    - ``notices`` tell the user how the request was changed.
    - ``refused_media`` are the keys of attachments that the provider refused, and that were left out of the request.
    - ``usage`` is the usage of this response only. It is unknown if the provider does not report it.
    - ``request`` has the parameters that were finally sent.
    - ``fingerprint`` is the provider's identifier for the version of the model.
    """

    content: str | None = None
    thinking: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = UNKNOWN_USAGE
    stop_reason: str | None = None
    model: str | None = None
    refused: bool = False
    tool_results: tuple[str, ...] = ()
    provider: Any = None
    id: str | None = None
    sampled: SampledTokens | None = None
    text_calls: bool = False
    problem: str | None = None
    notices: tuple[str, ...] = ()
    request: RequestParameters | None = None
    fingerprint: str | None = None
    refused_media: tuple[str, ...] = ()


class Query(msgspec.Struct, frozen=True):
    """One request to a crystal.

    ``messages`` is the whole context in order. The caller owns this list and appends to it after the query, so a
    crystal must not change or keep it. ``intent`` is the text of the current cast. ``request_id``, if it is not empty, is
    sent as the header ``X-ACP-Model-Request-ID``. The crystal reports its usage to ``meter``.
    """

    messages: Sequence[Message]
    tools: tuple[ToolDefinition, ...] = ()
    tool_choice: ToolChoice = "auto"
    params: Call = Call()
    intent: str = ""
    entity_id: str = ""
    trace_id: str = ""
    request_id: str = ""
    meter: Meter = msgspec.field(default_factory=Meter)


class Delta(msgspec.Struct, frozen=True):
    """A piece of a streamed response: text of the answer, or thinking."""

    kind: Literal["text", "thought"]
    text: str


def tool_mode(query: Query) -> ToolMode:
    """How a crystal that sends tool definitions offers the tools of a query."""
    return "native" if query.tools and query.tool_choice != "none" else "none"


Emit = Callable[[Delta], Awaitable[None]]
"""Takes the pieces of a response as they arrive. It waits while the reader is slow. It raises an error if the response is
endless."""


@runtime_checkable
class Crystal(Protocol):
    """A model. ``context_window`` is in tokens, None if it is not known.

    Optional attributes:

    - ``priced``: whether its cost is known.
    - ``max_input``: the largest number of tokens of a prompt, if that is less than the window.
    - ``takes_images``, ``takes_audio``, ``takes_documents`` (PDF): whether its model accepts such attachments.
    - ``remarks``: notes for the user, shown when a cast begins.
    - ``patient``: true for a person, who may take any time to answer.
    - ``samples``: false if its utterances are no samples of a model, but written by a script or a person.
    - ``text_calls``: true if it writes its tool calls as text, because its model accepts no tool definitions. Only such
      a crystal may also write a program as a code block (`mediums.text_program`).

    Optional methods:

    - ``prepare()`` does slow work before the first query, such as importing an SDK. It may block. It is called in a
      thread, possibly several times.
    - ``async aclose()`` closes the connections. A later query opens new ones.
    """

    @property
    def name(self) -> str:
        """The name of the provider, such as ``openai``."""
        ...

    @property
    def model(self) -> str:
        """The name of the model at its provider."""
        ...

    @property
    def context_window(self) -> int | None:
        """How many tokens a query and its answer may have together; None if that is not known."""
        ...

    async def query(self, query: Query, emit: Emit) -> Response:
        """Answer a query. Raises `CrystalError`. If the response was cut off, ``stop_reason`` says so (CRYSTAL-2)."""
        ...


def input_limit(crystal: Crystal) -> int | None:
    """The largest number of tokens of a prompt: the smaller of ``max_input`` and the window. None if not known."""
    window, most = crystal.context_window, getattr(crystal, "max_input", None)
    if not isinstance(most, int):
        return window if isinstance(window, int) else None
    return min(window, most) if isinstance(window, int) else most


_TAKES = {"image": "takes_images", "audio": "takes_audio", "document": "takes_documents"}


def takes(crystal: Crystal, kind: Literal["image", "audio", "document"]) -> bool | None:
    """Whether the model of a crystal accepts attachments of this kind. None if the crystal does not say."""
    known = getattr(crystal, _TAKES[kind], None)
    return known if isinstance(known, bool) else None


def check_response(response: Response, messages: Sequence[Message]) -> None:
    """Check a response against the contract (CRYSTAL-3, CRYSTAL-4). Raises `MalformedResponse`."""
    calls = response.tool_calls
    if response.tool_results:
        _check_results(response, messages)
    # An answer of white space alone says nothing either.
    if not calls and not (response.content or "").strip() and not response.refused:
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
