"""Chat stream: parses the chunks of a Chat Completions answer. It accepts missing fields and the variants of different
servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from cantrip_acp.crystals.contract import Delta
from cantrip_acp.crystals.logprobs import TokenCollector
from cantrip_acp.types.usage import Usage

STOP_REASONS = {
    "stop": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "content_filter": "content_filter",
    "refusal": "refusal",
}
"""Maps the servers' finish reasons to the stop reasons of the contract."""

_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


@dataclass(slots=True)
class PartialCall:
    """A tool call while its pieces arrive. ``args`` are the pieces of its arguments so far."""

    id: str = ""
    name: str = ""
    args: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.args)


@dataclass(slots=True)
class ServerReport:
    """What a server says of an answer beside its text: tokens, time, model, ids."""

    usage: Mapping[str, Any] | None = None
    timings: Mapping[str, Any] | None = None
    model: str | None = None
    fingerprint: str | None = None
    weights: str | None = None
    """The label of the version of the weights, which SGLang reports."""
    id: str | None = None
    prompt: tuple[str, int] | None = None
    """The text of the whole prompt and the number of its tokens, which llama.cpp reports if ``verbose`` is set."""
    stopped_by_text: bool = False
    """Whether a stop sequence ended the answer, which llama.cpp reports if ``verbose`` is set."""
    template: str | None = None
    """The label of the server's chat template, if it is known."""

    def feed(self, chunk: Mapping[str, Any]) -> bool:
        """Process one chunk. Returns whether it has the usage."""
        if isinstance(chunk.get("model"), str) and chunk["model"]:
            self.model = chunk["model"]
        if isinstance(chunk.get("system_fingerprint"), str) and chunk["system_fingerprint"]:
            self.fingerprint = chunk["system_fingerprint"]
        verbose = chunk.get("__verbose")
        if isinstance(verbose, Mapping) and isinstance(verbose.get("prompt"), str):
            self.prompt = verbose["prompt"], _count(verbose, "tokens_evaluated")
            self.stopped_by_text = verbose.get("stop_type") == "word"
        metadata = chunk.get("metadata")
        if isinstance(metadata, Mapping) and isinstance(metadata.get("weight_version"), str):
            self.weights = metadata["weight_version"]
        if isinstance(chunk.get("id"), str) and chunk["id"]:
            self.id = chunk["id"]
        if isinstance(chunk.get("timings"), Mapping):
            self.timings = chunk["timings"]
        usage = chunk.get("usage")
        if usage is None and isinstance(chunk.get("x_groq"), Mapping):
            usage = chunk["x_groq"].get("usage")
        if not isinstance(usage, Mapping):
            return False
        self.usage = usage
        return True

    def counted(self) -> Usage | None:
        """The usage that the server reported; None if it reported none."""
        if self.usage is not None:
            return usage_of(self.usage)
        if self.timings is not None:
            cached = _count(self.timings, "cache_n")
            return Usage(_count(self.timings, "prompt_n") + cached, _count(self.timings, "predicted_n"), cached)
        return None


@dataclass(slots=True)
class ChatAnswer:
    """The answer so far. Call ``feed`` with each chunk."""

    text: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    thought_key: str | None = None
    """The key under which the server sends thinking. It expects the thinking back under the same key."""
    calls: list[PartialCall] = field(default_factory=list)
    details: list[dict[str, Any]] = field(default_factory=list)
    finish: str | None = None
    error: Any = None
    refused: bool = False
    server: ServerReport = field(default_factory=ServerReport)
    tokens: TokenCollector = field(default_factory=TokenCollector)
    _slots: dict[int, PartialCall] = field(default_factory=dict)

    def feed(self, chunk: Mapping[str, Any]) -> list[Delta]:
        """Process one chunk, and return the pieces to show. A whole answer (``message`` instead of ``delta``) works too."""
        choices = chunk.get("choices")
        counted = self.server.feed(chunk)
        if counted and not choices and (self.text or self.calls or self.thoughts) and self.finish is None:
            # The last chunk has only the usage. Some servers end with it and send no finish reason.
            self.finish = "stop"
        if not isinstance(choices, list):
            return []
        for choice in choices:
            if isinstance(choice, Mapping) and choice.get("index") in (0, None):
                self.tokens.chat(chunk, choice)
                return self._choice(choice)
        self.tokens.prompt(chunk.get("prompt_token_ids"))
        return []

    @property
    def ended(self) -> bool:
        """Whether the server said that the answer is complete."""
        return self.finish is not None

    def stop_reason(self) -> str:
        """One of `contract.STOPS`, or the server's own word."""
        if self.refused:
            return "refusal"
        reason = STOP_REASONS.get(self.finish or "", self.finish or "stop")
        return "tool_calls" if reason == "stop" and self.calls else reason

    def _choice(self, choice: Mapping[str, Any]) -> list[Delta]:
        if choice.get("error"):
            self.error = choice["error"]
        deltas: list[Delta] = []
        delta = choice.get("delta")
        if not isinstance(delta, Mapping) or (not delta and choice.get("message")):
            delta = choice.get("message")
        if isinstance(delta, Mapping):
            deltas = self._delta(delta)
        elif isinstance(choice.get("text"), str):
            deltas = self._add_text("text", choice["text"])
        finish = choice.get("finish_reason")
        if isinstance(finish, str) and finish:
            self.finish = finish
        return deltas

    def _delta(self, delta: Mapping[str, Any]) -> list[Delta]:
        deltas: list[Delta] = []
        for key in _THOUGHTS:
            value = delta.get(key)
            if isinstance(value, str) and value:
                # A server may send the same thinking under two keys. Use only the first key.
                if self.thought_key in (None, key):
                    self.thought_key = key
                    deltas += self._add_text("thought", value)
                break
        details = delta.get("reasoning_details")
        if isinstance(details, list):
            self.details.extend(dict(d) for d in details if isinstance(d, Mapping))
        content = delta.get("content")
        if isinstance(content, str):
            deltas += self._add_text("text", content)
        elif isinstance(content, list):
            deltas += self._parts(content)
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self.refused = True
            deltas += self._add_text("text", refusal)
        calls = delta.get("tool_calls")
        for call in calls if isinstance(calls, list) else [calls]:
            if isinstance(call, Mapping):
                self._call(call)
        legacy = delta.get("function_call")
        if isinstance(legacy, Mapping):
            self._call({"index": 0, "function": legacy})
        return deltas

    def _parts(self, parts: list[Any]) -> list[Delta]:
        deltas: list[Delta] = []
        for part in parts:
            if not isinstance(part, Mapping):
                continue
            if isinstance(part.get("text"), str):
                deltas += self._add_text("text", part["text"])
            elif isinstance(part.get("thinking"), list):
                for piece in part["thinking"]:
                    if isinstance(piece, Mapping) and isinstance(piece.get("text"), str):
                        deltas += self._add_text("thought", piece["text"])
        return deltas

    def _add_text(self, kind: str, text: str) -> list[Delta]:
        if not text:
            return []
        if kind == "text":
            self.text.append(text)
            return [Delta("text", text)]
        self.thoughts.append(text)
        return [Delta("thought", text)]

    def _call(self, piece: Mapping[str, Any]) -> None:
        function = piece.get("function")
        function = function if isinstance(function, Mapping) else piece
        given = function.get("name")
        name = given if isinstance(given, str) else ""
        raw = function.get("arguments")
        args = raw if isinstance(raw, str) else "" if raw is None else msgspec.json.encode(raw).decode()
        call_id = piece.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        index = piece.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) else None
        call = self._slot(index, call_id, name)
        if call is None:
            call = PartialCall()
            self.calls.append(call)
        if index is not None:
            self._slots[index] = call
        call.id = call.id or call_id
        # Usually the first piece has the whole name. Some servers repeat it in each piece, and a few stream it in parts.
        if name and name != call.name:
            call.name += name
        if args:
            call.args.append(args)

    def _slot(self, index: int | None, call_id: str, name: str) -> PartialCall | None:
        """The call that a piece belongs to; None if the piece begins a new call."""
        if index is not None:
            at = self._slots.get(index)
        else:
            known = [call for call in self.calls if call_id and call.id == call_id]
            at = known[0] if known else self.calls[-1] if self.calls else None
        if at is None:
            return None
        if call_id and at.id and call_id != at.id:
            # Servers that send whole calls use index 0 for all of them. Others give each piece of a call its own id.
            return None if name or index is None else at
        if not call_id and name and at.name and _complete(at.text):
            return None
        if index is None and call_id and not at.id and at.name:
            return None
        return at


def usage_of(raw: Mapping[str, Any]) -> Usage:
    """Parse a ``usage`` with the names of Chat Completions or of the Responses API. A missing count is None."""
    prompts, completions = ("prompt_tokens", "input_tokens"), ("completion_tokens", "output_tokens")
    prompt = next((count_of(raw[key]) for key in prompts if raw.get(key) is not None), None)
    completion = next((count_of(raw[key]) for key in completions if raw.get(key) is not None), None)
    read = _details(raw, "prompt_tokens_details", "input_tokens_details")
    said = _details(raw, "completion_tokens_details", "output_tokens_details")
    # DeepSeek has its own name for cached tokens.
    cached = _count(read, "cached_tokens") or _count(raw, "prompt_cache_hit_tokens") or _count(raw, "cached_tokens")
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        cached_tokens=min(cached, prompt or 0),
        cache_write_tokens=min(_count(read, "cache_write_tokens"), max(0, (prompt or 0) - cached)),
        reasoning_tokens=min(_count(said, "reasoning_tokens") or _count(raw, "reasoning_tokens"), completion or 0),
    )


def _details(raw: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    for key in keys:
        if isinstance(raw.get(key), Mapping):
            found: Mapping[str, Any] = raw[key]
            return found
    return {}


def count_of(value: Any) -> int | None:
    """A number of tokens, which some servers send as text. None if it is no such number."""
    if isinstance(value, str) and value.isascii() and value.isdigit():
        value = float(value)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15 else None


def _count(raw: Mapping[str, Any], key: str) -> int:
    return count_of(raw.get(key)) or 0


def _complete(args: str) -> bool:
    """Whether the arguments are a complete JSON value. Then the next piece with a name begins another call."""
    try:
        msgspec.json.decode(args)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
