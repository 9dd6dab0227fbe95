"""The crystal contract: the types of queries and responses (§2.1, CRYSTAL-1..5).

A crystal is an object with a ``name``, a ``model``, a ``context_window`` and the method ``query``. It keeps no state
between queries. It may send pieces of its response through ``emit`` as they arrive.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from cantrip_acp.text.defaults import complete
from cantrip_acp.types.call import Call, ToolChoice
from cantrip_acp.types.errors import MalformedResponse
from cantrip_acp.types.messages import (
    Attachment,
    Message,
    RequestParameters,
    SampledTokens,
    ToolCall,
    ToolDefinition,
    ToolMode,
)
from cantrip_acp.types.usage import NO_USAGE, UNKNOWN_USAGE, Usage


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
"""The stop reasons of a response that was cut off: at its token limit, or because it repeated itself endlessly."""


WEIGHTS_VARIABLE = "CANTRIP_WEIGHTS"
"""The environment variable with the label of the weights' version, for crystals without the option ``weights``."""


def requested(call: Call) -> RequestParameters:
    """The parameters that a call asks for."""
    return RequestParameters(
        call.temperature, call.top_p, call.seed, call.max_tokens, call.top_k, call.min_p, call.stop
    )


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
    """A model. ``context_window`` is in tokens, None if unknown. It may also have the members of `CrystalBase`."""

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


class CrystalBase:
    """The defaults for the optional members of a crystal. A crystal may inherit this class, or only have the members that it
    needs."""

    priced: bool | None = None
    """Whether the cost of the crystal's queries is known."""
    max_input: int | None = None
    """The largest number of tokens of a prompt, if that is less than the window."""
    takes_images: bool | None = None
    takes_audio: bool | None = None
    takes_documents: bool | None = None
    """Whether the model accepts documents (PDF); None if that is not known."""
    remarks: Sequence[str] = ()
    """Notes for the user, shown when a cast begins."""
    patient: bool = False
    """True for a person, who may take any time to answer."""
    samples: bool = True
    """False if a script or a person writes its utterances, so that they are not samples of a model."""
    text_calls: bool = False
    """True if it writes its tool calls as text, because its model accepts no tool definitions. Only such a crystal may also
    write a program as a code block (`mediums.text_program`)."""
    queries: int = 0
    """The number of queries that the crystal has answered."""

    def prepare(self) -> None:
        """Do slow work before the first query, such as importing an SDK. It may block: a thread calls it, perhaps several times."""

    async def aclose(self) -> None:
        """Close the connections. A later query opens new ones."""

    def skip(self, queries: int) -> None:
        """Skip queries that were already answered in another process. Only scripted crystals need it."""

    def child(self, number: int, depth: int) -> Crystal | None:
        """The crystal of a child; None if children use this one."""
        return None


def input_limit(crystal: Crystal) -> int | None:
    """The largest number of tokens of a prompt: the smaller of ``max_input`` and the window. None if not known."""
    window, most = crystal.context_window, complete(crystal, CrystalBase).max_input
    if not isinstance(most, int):
        return window if isinstance(window, int) else None
    return min(window, most) if isinstance(window, int) else most


_TAKES = {"image": "takes_images", "audio": "takes_audio", "document": "takes_documents"}


def takes(crystal: Crystal, kind: Literal["image", "audio", "document"]) -> bool | None:
    """Whether the model of a crystal accepts attachments of this kind. None if the crystal does not say."""
    known = getattr(complete(crystal, CrystalBase), _TAKES[kind])
    return known if isinstance(known, bool) else None


def cannot_read(crystal: Crystal, attachment: Attachment) -> bool:
    """Whether the model of a crystal is known not to read this attachment."""
    # Providers send a document of text as text.
    is_text = attachment.kind == "document" and attachment.mime.startswith(("text/", "application/json"))
    return not is_text and takes(crystal, attachment.kind) is False


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
