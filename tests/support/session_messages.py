"""Provider messages of a session, rebuilt from its chunks.

The mapping: a ``prompt`` is a message of the user, an ``answer`` text of the assistant, a ``tool-call`` a call in a message
of the assistant, a ``tool-result`` its answer. A ``context`` is not sent. Chunks of one side follow each other in one
message where the provider wants that.
"""

from __future__ import annotations

import json
from typing import Any

from cantrip_acp.substrate.chunks import Chunk
from cantrip_acp.substrate.projects import session_id
from cantrip_acp.substrate.substrate import Substrate
from cantrip_acp.substrate.types import SESSION_TYPES, type_id


def session_chunks(substrate: Substrate, entity_id: str, *, at: int | None = None) -> list[tuple[str, Chunk]]:
    """The type and the chunk of everything in a session, in order."""
    types = {type_id(name): name for name in SESSION_TYPES}
    found: list[tuple[str, Chunk]] = []
    for each in substrate.scope(session_id(entity_id), at=at).placed:
        if each.kind == "instance":
            scopes = (placement.scope for placement in substrate.placements(each.chunk.id, at=at))
            found += [(types[scope], each.chunk) for scope in scopes if scope in types]
    return found


def anthropic_messages(substrate: Substrate, entity_id: str, *, at: int | None = None) -> list[dict[str, Any]]:
    """The ``messages`` of a request to Anthropic's Messages API."""
    messages: list[dict[str, Any]] = []
    for kind, chunk in session_chunks(substrate, entity_id, at=at):
        body = chunk.body
        if kind == "prompt":
            _add(messages, "user", {"type": "text", "text": chunk.text})
        elif kind == "answer":
            _add(messages, "assistant", {"type": "text", "text": chunk.text})
        elif kind == "tool-call":
            call = {"type": "tool_use", "id": body["tool_use_id"], "name": body["program"], "input": body["input"]}
            _add(messages, "assistant", call)
        elif kind == "tool-result":
            result = {"type": "tool_result", "tool_use_id": body["tool_use_id"], "content": chunk.text}
            _add(messages, "user", result | ({"is_error": True} if body.get("is_error") else {}))
    return messages


def _add(messages: list[dict[str, Any]], role: str, block: dict[str, Any]) -> None:
    if messages and messages[-1]["role"] == role:
        messages[-1]["content"].append(block)
    else:
        messages.append({"role": role, "content": [block]})


def openai_messages(substrate: Substrate, entity_id: str, *, at: int | None = None) -> list[dict[str, Any]]:
    """The ``messages`` of a request to OpenAI's Chat Completions API."""
    messages: list[dict[str, Any]] = []
    turn = ""
    for kind, chunk in session_chunks(substrate, entity_id, at=at):
        body = chunk.body
        if kind == "prompt":
            messages.append({"role": "user", "content": chunk.text})
        elif kind == "tool-result":
            messages.append({"role": "tool", "tool_call_id": body["tool_use_id"], "content": chunk.text})
        elif kind in ("answer", "tool-call"):
            # One message of the assistant for each turn.
            if body.get("turn") != turn or not messages or messages[-1]["role"] != "assistant":
                messages.append({"role": "assistant", "content": None})
            turn = str(body.get("turn"))
            if kind == "answer":
                messages[-1]["content"] = chunk.text
                continue
            arguments = body["input"] if isinstance(body["input"], str) else json.dumps(body["input"])
            function = {"name": body["program"], "arguments": arguments}
            calls = messages[-1].setdefault("tool_calls", [])
            calls.append({"id": body["tool_use_id"], "type": "function", "function": function})
    return messages
