"""Responses stream: puts a streamed answer of the Responses API together. It is pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cantrip_acp.crystals.contract import Delta
from cantrip_acp.crystals.logprobs import Sampled, Tokens

BREAK = "\n\n"
"""Separates two messages of one answer."""

_INCOMPLETE = {"max_output_tokens": "length", "content_filter": "content_filter"}


@dataclass(slots=True)
class ResponsesAnswer:
    """The answer so far. ``feed`` takes each event and returns what can be shown of it."""

    final: Mapping[str, Any] | None = None
    """The response in the event that ends the stream: completed or incomplete."""
    error: Any = None
    usage: Mapping[str, Any] | None = None
    """Reported only at the end, also for a response that failed."""
    refused: bool = False
    _items: dict[int, dict[str, Any]] = field(default_factory=dict)
    _shown: bool = False
    _said: tuple[Any, Any] | None = None
    """The item and part that the last piece of text belonged to."""

    def feed(self, event: Mapping[str, Any]) -> list[Delta]:
        """Take one event, and return what to show of it."""
        kind = event.get("type")
        self._count(event.get("response"))
        delta = event.get("delta")
        match kind:
            case "response.output_text.delta" if isinstance(delta, str) and delta:
                return self._text(event, delta)
            case "response.refusal.delta" if isinstance(delta, str) and delta:
                self.refused = True
                return self._text(event, delta)
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                if isinstance(delta, str) and delta:
                    self._shown = True
                    return [Delta("thought", delta)]
            case "response.reasoning_summary_part.added" if self._shown:
                return [Delta("thought", "\n\n")]
            case "response.output_item.done":
                item, index = event.get("item"), event.get("output_index")
                if isinstance(item, dict):
                    self._items[index if isinstance(index, int) else len(self._items)] = item
            case "response.completed" | "response.incomplete":
                response = event.get("response")
                self.final = response if isinstance(response, Mapping) else {}
            case "response.failed":
                response = event.get("response")
                self.error = (response.get("error") if isinstance(response, Mapping) else None) or {
                    "message": "the response failed"
                }
            case "error":
                self.error = event
        return []

    def _text(self, event: Mapping[str, Any], delta: str) -> list[Delta]:
        """A piece of text, with a blank line before the first piece of another message (`content` has it too)."""
        before, self._said = self._said, (event.get("output_index"), event.get("item_id"))
        if before is not None and before != self._said:
            return [Delta("text", BREAK), Delta("text", delta)]
        return [Delta("text", delta)]

    def take(self, whole: Mapping[str, Any]) -> None:
        """Take a response that came in one piece, without a stream."""
        self._count(whole)
        if whole.get("status") == "failed":
            self.error = whole.get("error") or {"message": "the response failed"}
        elif isinstance(whole.get("output"), list):
            self.final = whole

    def _count(self, response: Any) -> None:
        usage = response.get("usage") if isinstance(response, Mapping) else None
        if isinstance(usage, Mapping):
            self.usage = usage

    def items(self) -> list[dict[str, Any]]:
        """The output items in order, as the API gave them."""
        output = (self.final or {}).get("output")
        if isinstance(output, list) and output:
            return [item for item in output if isinstance(item, dict)]
        return [self._items[index] for index in sorted(self._items)]

    def content(self) -> str | None:
        """All text of the answer, including a refusal."""
        messages: list[str] = []
        for item in self.items():
            if item.get("type") == "message":
                texts: list[str] = []
                for part in _parts(item.get("content")):
                    if part.get("type") == "refusal":
                        self.refused = True
                        texts.append(str(part.get("refusal") or ""))
                    elif isinstance(part.get("text"), str):
                        texts.append(part["text"])
                messages.append("".join(texts))
        # Comments on its work (phase commentary) and the answer itself are separate messages.
        return BREAK.join(text for text in messages if text) or None

    def thinking(self) -> str | None:
        """The summaries of the reasoning, or the reasoning itself where a server gives it."""
        texts: list[str] = []
        for item in self.items():
            if item.get("type") == "reasoning":
                parts = _parts(item.get("summary")) or _parts(item.get("content"))
                texts.extend(part["text"] for part in parts if isinstance(part.get("text"), str))
        return "\n\n".join(t for t in texts if t) or None

    def calls(self) -> list[tuple[str, str, str]]:
        """(id, name, args) of each function call."""
        return [
            (str(item.get("call_id") or ""), str(item.get("name") or ""), str(item.get("arguments") or "{}"))
            for item in self.items()
            if item.get("type") == "function_call"
        ]

    def tokens(self) -> Sampled | None:
        """The tokens of the answer's text, with their log-probabilities."""
        tokens = Tokens()
        for item in self.items():
            if item.get("type") == "message":
                for part in _parts(item.get("content")):
                    tokens.entries(part.get("logprobs"))
        return tokens.whole()

    @property
    def complete(self) -> bool:
        """Whether the answer was not cut off, so that its items may be sent back."""
        final = self.final or {}
        return bool(final.get("status", "completed") == "completed")

    def stop_reason(self) -> str:
        """One of `contract.STOPS`, or the API's own word."""
        if self.refused:
            return "refusal"
        details = (self.final or {}).get("incomplete_details")
        if isinstance(details, Mapping) and details.get("reason"):
            reason = str(details["reason"])
            return _INCOMPLETE.get(reason, reason)
        if not self.complete:
            # It was cut off without a reason, although the event calls it completed.
            return "length"
        return "tool_calls" if self.calls() else "stop"


def _parts(value: Any) -> list[Mapping[str, Any]]:
    return [part for part in value if isinstance(part, Mapping)] if isinstance(value, list) else []
