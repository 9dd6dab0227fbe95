"""Gemini response: collects the chunks of a stream into one response, with unique call ids and a stop reason."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cantrip_acp.crystals import provider_errors
from cantrip_acp.crystals.catalog.types import Price, priced
from cantrip_acp.crystals.contract import Delta, Emit, Meter, Response
from cantrip_acp.crystals.google.messages import FAMILY
from cantrip_acp.crystals.logprobs import TokenCollector
from cantrip_acp.crystals.mended_answers import NO_NAME
from cantrip_acp.crystals.openai.tool_names import fresh_id, wire_name
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.usage import UNKNOWN_USAGE, Usage

_REFUSED = frozenset(
    {
        "SAFETY",
        "BLOCKLIST",
        "PROHIBITED_CONTENT",
        "SPII",
        "LANGUAGE",
        "IMAGE_SAFETY",
        "IMAGE_PROHIBITED_CONTENT",
        "MODEL_ARMOR",
        "JAILBREAK",
    }
)
"""Finish reasons that are a refusal. The same request would be refused again."""

_AGAIN = {
    "RECITATION": "it stopped because its words were too similar to a text that it was trained on",
    "IMAGE_RECITATION": "it stopped because its words were too similar to a text that it was trained on",
    "MALFORMED_FUNCTION_CALL": "it made a tool call that cannot be read",
    "UNEXPECTED_TOOL_CALL": "it called a tool that it was not offered",
    "MALFORMED_RESPONSE": "it made a response that cannot be read",
    "OTHER": "it stopped without a reason",
}
"""Finish reasons after which a retry often works."""

_STOPS = {"STOP": "stop", "MAX_TOKENS": "length", "FUNCTION_CALL": "stop"}
"""``FUNCTION_CALL`` comes from servers that imitate Google's."""


class ResponseReader:
    """Collects the chunks of a response. Call ``add`` with the SDK's chunks in order, then ``response``."""

    def __init__(
        self,
        who: str,
        model: str,
        known_ids: Iterable[str],
        names_back: Mapping[str, str],
        emit: Emit,
        meter: Meter,
        price: Price | None,
    ) -> None:
        self._meter = meter
        self._price = price
        self._who = who
        self._model = model
        self._back = names_back
        self._used_ids = set(known_ids)
        self._emit = emit
        self._parts: list[dict[str, Any]] = []
        self._calls: list[ToolCall] = []
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._usage: Any = None
        self._reported: str | None = None
        self._id: str | None = None
        self._finish: str | None = None
        self._finish_message: str | None = None
        self._blocked: str | None = None
        self._blocked_message: str | None = None
        self._tokens = TokenCollector()
        self.begun = False

    async def add(self, chunk: Any) -> None:
        """Add one ``GenerateContentResponse`` of the stream."""
        self.begun = True
        self._reported = chunk.model_version or self._reported
        self._id = chunk.response_id or self._id
        if chunk.usage_metadata is not None:
            self._usage = chunk.usage_metadata
            ends = any(candidate.finish_reason is not None for candidate in chunk.candidates or ())
            # Each chunk has the counts so far. Report them now, because a query that is cancelled later is billed for them.
            self._meter.report(self._counted(), complete=ends)
        feedback = chunk.prompt_feedback
        if feedback is not None and feedback.block_reason is not None:
            self._blocked = _word(feedback.block_reason)
            self._blocked_message = feedback.block_reason_message
        # Only one candidate was requested.
        for candidate in (chunk.candidates or ())[:1]:
            for part in (candidate.content.parts if candidate.content is not None else None) or ():
                await self._part(part)
            logprobs = candidate.logprobs_result
            for token in (logprobs.chosen_candidates if logprobs is not None else None) or ():
                self._tokens.add(token.token or "", token.log_probability, token_id=token.token_id)
            if candidate.finish_reason is not None:
                self._finish = _word(candidate.finish_reason)

    @property
    def ended(self) -> bool:
        """Whether the API said that the response is complete, or that there is none."""
        return self._finish is not None or self._blocked is not None

    def explain(self, finish_message: str | None) -> None:
        """Set the provider's text about the end of the response."""
        self._finish_message = finish_message

    async def _part(self, part: Any) -> None:
        signature = part.thought_signature
        if part.function_call is not None:
            kept = self._call(part.function_call)
        elif part.text is not None:
            if not part.text and signature is None:
                return
            kept = {"text": part.text}
            if part.thought:
                kept["thought"] = True
        else:
            kept = part.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"thought_signature"})
            if not kept:
                return
        if signature is not None:
            kept["thoughtSignature"] = base64.b64encode(signature).decode()
        if not self._joined(kept):
            self._parts.append(kept)
        if part.function_call is None and part.text:
            thought = bool(part.thought)
            (self._thoughts if thought else self._text).append(part.text)
            await self._emit(Delta("thought" if thought else "text", part.text))

    def _joined(self, part: dict[str, Any]) -> bool:
        """Append a piece of text to the last part, if both are text without a signature. False if that is not possible."""
        last = self._parts[-1] if self._parts else None
        plain = {"text"} | ({"thought"} if "thought" in part else set())
        if last is None or "text" not in part or set(part) != plain or set(last) != plain:
            return False
        last["text"] += part["text"]
        return True

    def _call(self, call: Any) -> dict[str, Any]:
        """Add a call, and return it in Gemini's form. It gets a new id if Gemini sent none, or one that was used before."""
        args = call.args or {}
        name = call.name or wire_name(NO_NAME)
        minted = call.id if call.id and call.id not in self._used_ids else fresh_id()
        self._used_ids.add(minted)
        gate = self._back.get(name, name) if call.name else NO_NAME
        self._calls.append(ToolCall(minted, gate, json.dumps(args, ensure_ascii=False, separators=(",", ":"))))
        kept: dict[str, Any] = {"name": name, "args": args}
        if call.id:
            kept["id"] = call.id
        return {"functionCall": kept}

    def response(self) -> Response:
        """Return the whole response after the end of the stream. Raises `CrystalError` if its end or its content is missing."""
        usage = self._counted()
        if self._blocked is not None and self._finish is None:
            return self._refusal(f"the prompt was blocked: {self._blocked}", self._blocked_message, usage)
        finish = self._finish
        if finish is None or finish == "FINISH_REASON_UNSPECIFIED":
            raise provider_errors.connection_error(self._who, EOFError("finishReason is missing"), sent=True)
        if finish in _REFUSED:
            return self._refusal(f"stopped by {finish}", self._finish_message, usage)
        if finish in _AGAIN:
            detail = f" ({provider_errors.error_text(self._finish_message)})" if self._finish_message else ""
            raise CrystalError(f"{self._who}: {_AGAIN[finish]} ({finish}){detail}", retryable=True)
        stop = _STOPS.get(finish)
        if stop is None and not self._calls and not self._text:
            raise CrystalError(
                f"{self._who} ended with {finish}: {provider_errors.error_text(self._finish_message or 'no explanation')}",
                retryable=False,
            )
        text = "".join(self._text)
        if not text and not self._calls:
            empty = self._make_response(None, usage, stop or finish)
            if stop == "length":
                raise CrystalError(
                    f"{self._who} used all its tokens for thinking and did not answer; raise max_tokens or lower the effort",
                    retryable=False,
                ).with_answer(empty)
            raise CrystalError(f"{self._who}: the answer is empty", retryable=True).with_answer(empty)
        return self._make_response(
            text or None, usage, "tool_calls" if self._calls and stop == "stop" else stop or finish
        )

    def _refusal(self, why: str, message: str | None, usage: Usage) -> Response:
        """Make the response for a refusal, without its calls. If it has no text, the text is the reason."""
        self._calls = []
        self._parts = []
        text = "".join(self._text) or f"[{self._who} declined: {why}{f': {message}' if message else ''}]"
        return msgspec.structs.replace(self._make_response(text, usage, "refusal"), refused=True, provider=None)

    def _make_response(self, text: str | None, usage: Usage, stop: str) -> Response:
        kept = {"family": FAMILY, "model": self._model, "parts": self._parts} if self._parts else None
        return Response(
            content=text,
            thinking="".join(self._thoughts) or None,
            tool_calls=tuple(self._calls),
            usage=usage,
            stop_reason=stop,
            model=self._reported or self._model,
            provider=kept,
            id=self._id,
            sampled=self._tokens.whole(),
        )

    def _counted(self) -> Usage:
        found = self._usage
        if found is None or (found.prompt_token_count is None and found.total_token_count is None):
            return UNKNOWN_USAGE
        thoughts = found.thoughts_token_count or 0
        usage = Usage(
            # Gemini counts the input of server-side tools separately from the prompt.
            prompt_tokens=(found.prompt_token_count or 0) + (found.tool_use_prompt_token_count or 0),
            # A response without text has no such count.
            completion_tokens=(found.candidates_token_count or 0) + thoughts,
            cached_tokens=found.cached_content_token_count or 0,
            reasoning_tokens=thoughts,
        )
        return priced(usage, self._price)


def _word(value: Any) -> str:
    return str(getattr(value, "value", value))
