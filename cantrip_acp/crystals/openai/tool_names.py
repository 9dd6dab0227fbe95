"""Tool names, call ids and arguments: changes them so that a provider's API accepts them. All providers use this."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from hashlib import sha256

import msgspec

from cantrip_acp.crystals.contract import ToolCall, ToolDefinition

LONGEST_NAME = 64
LONGEST_ID = 40
"""Characters of a tool call's id in Chat Completions; the Responses API takes 64."""

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_DECODER = msgspec.json.Decoder()


def wire_name(name: str) -> str:
    """Convert a tool's name to only letters, digits, ``_`` and ``-``. The same name always has the same result."""
    if _NAME.fullmatch(name):
        return name
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[: LONGEST_NAME - 9]}_{_digest(name)}"


def original_names(tools: Iterable[ToolDefinition]) -> Mapping[str, str]:
    """Map the converted names back to the tools' own names. Names that do not change are left out."""
    return {sent: tool.name for tool in tools if (sent := wire_name(tool.name)) != tool.name}


def wire_id(call_id: str) -> str:
    """Shorten a tool call's id if it is too long. Ids of other providers or of a medium may be longer."""
    return call_id if 0 < len(call_id) <= LONGEST_ID else f"call_{_digest(call_id, 24)}"


def wire_args(args: str) -> str:
    """Return the arguments of an earlier call as a JSON object, because chat templates and servers parse them.

    Malformed arguments are put into an object, so that the model sees what it wrote.
    """
    if not args.strip():
        return "{}"
    try:
        if isinstance(_DECODER.decode(args), dict):
            return args
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    return msgspec.json.encode({"malformed_arguments": args.encode("utf-8", "replace").decode()}).decode()


def make_tool_calls(calls: Iterable[tuple[str, str, str]], back: Mapping[str, str]) -> tuple[ToolCall, ...]:
    """Make tool calls from (id, name, args). A missing or repeated id is replaced by a new one (CRYSTAL-4)."""
    seen: set[str] = set()
    out: list[ToolCall] = []
    for given, name, args in calls:
        call_id = given if given and given not in seen else f"call_{secrets.token_hex(12)}"
        seen.add(call_id)
        out.append(ToolCall(call_id, back.get(name, name), args))
    return tuple(out)


def _digest(text: str, length: int = 8) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]
