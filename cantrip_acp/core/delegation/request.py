"""A request for one child: its arguments and their schema (§5.1)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from cantrip_acp.gates.contract import NOTHING
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.crystals.contract import Crystal
    from cantrip_acp.types.context_block import Contributor

CHILD_PROPERTIES: Mapping[str, Any] = {
    "intent": {
        "type": "string",
        "minLength": 1,
        "description": "What the child is to do and to answer with. It knows nothing else of what you know.",
    },
    "context": {
        "description": "Data for the child, any JSON value, of any size. It is never put in its prompt: the child finds it "
        "as the variable `context` (code), in the file $CANTRIP_CONTEXT (bash), or by read_context (conversation)."
    },
    "system_prompt": {"type": "string", "description": "Who the child is; by default your own system prompt."},
    "gates": {
        "type": "array",
        "items": {"anyOf": [{"type": "string"}, {"type": "object"}]},
        "description": "Which of your gates it gets, by name, or {name, root} with a folder below the gate's own; by "
        "default all. done is always among them.",
    },
    "wards": {
        "anyOf": [{"type": "array", "items": {"type": "object"}}, {"type": "object"}],
        "description": "Further restrictions such as {max_turns: 5}; wards can only get tighter.",
    },
    "crystal": {"type": "string", "description": "The name of another crystal of this recipe; by default yours."},
    "medium": {"type": "string", "description": "conversation, code or bash; by default yours."},
    "max_depth": {"type": "integer", "minimum": 0, "description": "How deep its own children may nest."},
}
"""The arguments of one child as JSON Schema, in the order of positions."""

CHILD_SCHEMA: Mapping[str, Any] = {
    "type": "object",
    "properties": dict(CHILD_PROPERTIES),
    "required": ["intent"],
    "additionalProperties": False,
}


MAX_RECORDED_CHARS = 64 * 1024
"""Maximum number of characters of data in a loom's record of a delegation. Larger data are recorded by size, hash and
beginning.
"""

MAX_TEXT_CHARS = 1_000_000
"""Maximum number of characters of an intent or a system prompt."""


class Request(Struct, frozen=True):
    """One child. None means the parent's own value; ``context`` is `NOTHING` if there is none.

    ``own_crystal`` replaces the crystal. ``contributors`` add to the child's context: a parent's own do not (COMP-4).
    """

    intent: str
    context: Any = NOTHING
    system_prompt: str | None = None
    gates: tuple[str | Mapping[str, Any], ...] | None = None
    wards: tuple[Mapping[str, Any], ...] = ()
    crystal: str | None = None
    medium: str | None = None
    call: Mapping[str, Any] | None = None
    max_depth: int | None = None
    own_crystal: Crystal | None = None
    contributors: tuple[Contributor, ...] = ()

    @classmethod
    def of(cls, args: Mapping[str, Any]) -> Request:
        """Make a request from arguments that fit `CHILD_SCHEMA`. Raises `GateError` for a blank intent (INTENT-1)."""
        intent = args["intent"]
        if not intent.strip():
            raise GateError("intent is required", "say what the child is to do (INTENT-1)")
        for name in ("intent", "system_prompt"):
            if (size := len(args.get(name) or "")) > MAX_TEXT_CHARS:
                raise GateError(
                    f"{name} has {size:,} characters; the child reads all of it, so at most {MAX_TEXT_CHARS:,} are allowed",
                    "give large data as context",
                )
        gates, wards = args.get("gates"), args.get("wards") or ()
        return cls(
            intent=intent,
            context=args.get("context", NOTHING),
            system_prompt=args.get("system_prompt"),
            gates=tuple(gates) if gates is not None else None,
            wards=(wards,) if isinstance(wards, Mapping) else tuple(wards),
            crystal=args.get("crystal"),
            medium=args.get("medium"),
            call=args.get("call"),
            max_depth=args.get("max_depth"),
        )


def recorded_data(data: Any) -> Any:
    """The form in which the loom records the data of a delegation."""
    if isinstance(data, str):
        text, size = data, len(data)
    elif isinstance(data, list | Mapping):
        text = msgspec.json.encode(data).decode()
        size = len(text)
    else:
        return data
    if size <= MAX_RECORDED_CHARS:
        return data
    raw = text.encode("utf-8", "surrogatepass")
    digest = hashlib.sha256(raw).hexdigest()
    return {"kept_elsewhere": True, "bytes": len(raw), "sha256": digest, "begins": text[:200]}
