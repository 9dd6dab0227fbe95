"""Anthropic response: parses the event stream of the Messages API into a response. It needs no SDK.

Events are plain JSON, so any field may be missing. Unknown events are ignored, as the API documentation recommends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from cantrip_acp.crystals.anthropic.messages import THINKING, replay_data
from cantrip_acp.crystals.catalog.types import Price, priced
from cantrip_acp.crystals.contract import Delta, Emit, Response
from cantrip_acp.crystals.mended_answers import NO_NAME
from cantrip_acp.crystals.openai.chat_stream import count_of
from cantrip_acp.crystals.openai.tool_names import fresh_id, wire_name
from cantrip_acp.crystals.retry import MAX_RESPONSE_CHARS
from cantrip_acp.types.errors import ContextLimitError, CrystalError, MalformedResponse
from cantrip_acp.types.messages import RequestParameters, ToolCall
from cantrip_acp.types.usage import NO_USAGE, Usage

_STOPS = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "refusal",
}
_COUNTS = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")


class InvalidEvent(Exception):
    """An event does not follow the protocol. The text says why."""


class _Block:
    """One content block while it is streamed."""

    __slots__ = ("fields", "given", "kind", "parts", "said")

    def __init__(self, kind: str, fields: dict[str, Any]) -> None:
        self.kind = kind
        self.fields = fields
        self.parts: list[str] = []
        """Pieces of the text of a text or thinking block, or of the JSON input of a tool_use block."""
        self.given = ""
        """The input that a tool_use block began with, as JSON."""
        self.said = False
        """Whether a text block contains more than blanks."""


class ResponseReader:
    """Collects the events of a response. ``stopped`` is the provider's stop reason. ``done``: the stream has ended.

    A paused response continues in another stream. Call `resume` before that stream.
    """

    def __init__(self) -> None:
        self.done = False
        self.stopped: str | None = None
        self.events = 0
        self._model: str | None = None
        self._id: str | None = None
        self._why: str | None = None
        self._blocks: list[_Block] = []
        self._open: dict[int, _Block] = {}
        self._counts: dict[str, int] = {}
        self._earlier: list[Usage] = []
        self._left = MAX_RESPONSE_CHARS

    @property
    def paused(self) -> bool:
        """Whether the provider paused a long turn with its own tools and waits for a request to continue. If there are
        calls of our tools, they are answered first."""
        return (
            self.stopped == "pause_turn"
            and bool(self._wire_blocks())
            and not any(b.kind == "tool_use" for b in self._blocks)
        )

    async def add_event(self, event: Any, emit: Emit) -> None:
        """Process one event. Raises `InvalidEvent`."""
        kind = _text(event, "type")
        if kind == "content_block_delta":
            await self._delta(event, emit)
        elif kind == "content_block_start":
            await self._start(event, emit)
        elif kind == "message_start":
            message = _part(event, "message")
            self._model = _text(message, "model") or self._model
            self._id = _text(message, "id") or self._id
            self._count(_part(message, "usage"))
        elif kind == "message_delta":
            delta = _part(event, "delta")
            self.stopped = _text(delta, "stop_reason") or self.stopped
            details = _part(delta, "stop_details")
            self._why = _text(details, "explanation") or _text(details, "category") or self._why
            self._count(_part(event, "usage"))
        elif kind == "message_stop":
            self.done = True
        elif kind is None:
            raise InvalidEvent(f"an event without a type: {str(event)[:80]}")
        self.events += 1

    def resume(self) -> list[dict[str, Any]]:
        """Prepare for the next stream of a paused response. Returns the blocks so far. Send them back unchanged."""
        self.done = False
        self.stopped = None
        self._open = {}
        self._earlier.append(self.used())
        self._counts = {}
        return self._wire_blocks()

    def response(
        self, names: Mapping[str, str], model: str, price: Price | None, request: RequestParameters
    ) -> Response:
        """Make the whole response. ``names`` maps tool names in the request to our names. ``request``: the sent parameters.

        Raises `CrystalError` if the token limit was reached before the answer began, or if the answer is empty.
        """
        content = "".join("".join(b.parts) for b in self._blocks if b.said) or None
        thought = "\n\n".join(t for b in self._blocks if b.kind == "thinking" and (t := "".join(b.parts))) or None
        stop = _STOPS.get(self.stopped or "", self.stopped)
        usage = sum((priced(each, price) for each in (*self._earlier, self.used())), NO_USAGE)
        served = self._model or model
        if stop == "refusal":
            said = " ".join(part for part in (content, self._why) if part)
            said = said or "The model declined to answer."
            return Response(said, thought, (), usage, stop, served, refused=True, id=self._id, request=request)
        calls = self._calls(names)
        empty = Response(None, thought, (), usage, stop, served, id=self._id, request=request)
        if content is None and not calls and stop == "length":
            if self.stopped == "model_context_window_exceeded":
                raise ContextLimitError(f"anthropic:{model}: the context window was full before the answer began")
            raise CrystalError(
                f"anthropic:{model}: max_tokens ({request.max_tokens}) was reached before the answer began"
                f"{', all of it by thinking' if thought else ''}; raise max_tokens of the call",
                retryable=False,
            ).with_answer(empty)
        if content is None and not calls:
            # This happens after tool results. A retry helps.
            told = f"anthropic:{model}: the answer is empty (stop reason {stop})"
            raise CrystalError(told, retryable=True).with_answer(empty)
        if stop is None:
            stop = "tool_calls" if calls else "stop"
        kept = replay_data(self._wire_blocks(), model)
        return Response(content, thought, calls, usage, stop, served, provider=kept, id=self._id, request=request)

    async def _start(self, event: Any, emit: Emit) -> None:
        given = _part(event, "content_block")
        kind = _text(given, "type")
        if kind is None:
            raise InvalidEvent("a block of content without a type")
        block = _Block(kind, {})
        index = event.get("index")
        if not isinstance(index, int):
            raise InvalidEvent("a block of content without an index")
        first = ""
        if kind in ("text", "thinking"):
            first = _text(given, kind) or ""
            if kind == "thinking":
                block.fields["signature"] = _text(given, "signature") or ""
        elif kind == "redacted_thinking":
            block.fields["data"] = _text(given, "data") or ""
        elif kind == "tool_use":
            name = _text(given, "name") or wire_name(NO_NAME)
            block.fields = {"id": _text(given, "id") or "", "name": name}
            start = given.get("input")
            # The API always starts with an empty input. Other servers send the whole input here, and some send it again.
            if start and isinstance(start, dict):
                block.given = json.dumps(start, ensure_ascii=False)
                self._left -= len(block.given)
        else:
            # A call of a server-side tool. It is sent back unchanged.
            block.fields = given
        self._open[index] = block
        self._blocks.append(block)
        if first:
            await self._grow(block, first, emit)

    async def _delta(self, event: Any, emit: Emit) -> None:
        index = event.get("index")
        block = self._open.get(index) if isinstance(index, int) else None
        if block is None:
            raise InvalidEvent("a delta for a block of content that was not started")
        delta = _part(event, "delta")
        kind = _text(delta, "type")
        if kind == "text_delta" and block.kind == "text":
            piece = _text(delta, "text")
        elif kind == "thinking_delta" and block.kind == "thinking":
            piece = _text(delta, "thinking")
        elif kind == "input_json_delta" and block.kind not in ("text", *THINKING):
            piece = _text(delta, "partial_json")
        elif kind == "signature_delta" and block.kind == "thinking":
            block.fields["signature"] += _text(delta, "signature") or ""
            return
        else:
            return
        if piece:
            await self._grow(block, piece, emit)

    async def _grow(self, block: _Block, piece: str, emit: Emit) -> None:
        # The size of text is limited where it is emitted. The arguments of a call need a limit here.
        self._left -= len(piece)
        if self._left < 0:
            raise MalformedResponse(
                f"the response was stopped, because it has more than {MAX_RESPONSE_CHARS:,} characters"
            )
        if block.kind == "text":
            # Emit leading blanks only together with text. A block of only blanks is left out everywhere.
            blank = not block.said
            block.parts.append(piece)
            if piece.strip():
                block.said = True
            if block.said:
                await emit(Delta("text", "".join(block.parts) if blank else piece))
        elif block.kind == "thinking":
            if not block.parts and any(b.kind == "thinking" and b.parts for b in self._blocks if b is not block):
                await emit(Delta("thought", "\n\n"))
            block.parts.append(piece)
            await emit(Delta("thought", piece))
        else:
            block.parts.append(piece)

    def _calls(self, names: Mapping[str, str]) -> tuple[ToolCall, ...]:
        seen: set[str] = set()
        calls = []
        for block in self._blocks:
            if block.kind != "tool_use":
                continue
            given = block.fields["id"]
            call_id = given if given and given not in seen else fresh_id()
            seen.add(call_id)
            name = block.fields["name"]
            gate = NO_NAME if name == wire_name(NO_NAME) else names.get(name, name)
            args = "".join(block.parts)
            calls.append(ToolCall(call_id, gate, (args if args.strip() not in ("", "{}") else block.given) or "{}"))
        return tuple(calls)

    def _wire_blocks(self) -> list[dict[str, Any]]:
        """Return the blocks to send back. Thinking is unchanged. Text of only blanks is left out, because the API refuses it."""
        out: list[dict[str, Any]] = []
        for block in self._blocks:
            whole = "".join(block.parts)
            if block.kind == "text":
                if block.said:
                    out.append({"type": "text", "text": whole})
            elif block.kind == "thinking":
                # The API refuses a thinking block without a signature.
                if block.fields["signature"]:
                    out.append({"type": "thinking", "thinking": whole, **block.fields})
            elif block.kind == "redacted_thinking":
                out.append({"type": "redacted_thinking", **block.fields})
            elif block.kind == "tool_use":
                out.append({"type": "tool_use", **block.fields})
            else:
                out.append({**block.fields, "input": _parsed(whole)} if whole else block.fields)
        return out

    def _count(self, usage: Mapping[str, Any]) -> None:
        for name in _COUNTS:
            value = count_of(usage.get(name))
            if value is not None:
                self._counts[name] = value
        thought = count_of(_part(usage, "output_tokens_details").get("thinking_tokens"))
        if thought is not None:
            self._counts["thinking_tokens"] = thought

    def used(self) -> Usage:
        count = self._counts.get
        cached, written = count("cache_read_input_tokens", 0), count("cache_creation_input_tokens", 0)
        fresh = count("input_tokens")
        return Usage(
            prompt_tokens=None if fresh is None else fresh + cached + written,
            completion_tokens=count("output_tokens"),
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=count("thinking_tokens", 0),
        )


def events_of(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The events of a message that was not streamed."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(message["content"]):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
    ended = {key: message.get(key) for key in ("stop_reason", "stop_details")}
    return [*events, {"type": "message_delta", "delta": ended}, {"type": "message_stop"}]


def _parsed(args: str) -> Any:
    try:
        return msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError, UnicodeError):
        return {}


def _part(value: Any, name: str) -> dict[str, Any]:
    found = value.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: Any, name: str) -> str | None:
    found = value.get(name) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None
