"""The gate ``read_context``: lets an entity read the data of its task, which are not in its prompt (§3.3, §5.1).

This gate is for the conversation medium. In the code medium the data are the variable ``context``, and in the bash medium
they are in the file ``$CANTRIP_CONTEXT``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import msgspec

from cantrip_acp.gates.contract import Gate, GateContext

PAGE = 20_000
"""The default number of characters of a page."""
_LARGEST_PAGE = 100_000


def as_text(data: Any) -> str:
    """Render the data as text: a text stays unchanged, other data become indented JSON."""
    if isinstance(data, str):
        return data
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def read_context(data: Any) -> Gate:
    """Make the gate that shows the data."""
    return READ_CONTEXT.bind(data=_Held(data))


def _read(args: Mapping[str, Any], context: GateContext) -> Any:
    text = context.dependencies["data"].text
    offset = min(int(args.get("offset", 0)), len(text))
    page = text[offset : offset + int(args.get("limit", PAGE))]
    end = offset + len(page)
    if offset == 0 and end == len(text):
        return page
    more = f"; go on with offset {end}" if end < len(text) else ", the end"
    return f"{page}\n[characters {offset:,} to {end:,} of {len(text):,}{more}]"


class _Held:
    """Holds the data, and renders it as text only once for all pages."""

    def __init__(self, data: Any) -> None:
        self._data = data

    @cached_property
    def text(self) -> str:
        return as_text(self._data)


READ_CONTEXT = Gate(
    name="read_context",
    description="Read the data that came with the task, a page at a time. Data that is not text is shown as JSON.",
    parameters={
        "type": "object",
        "properties": {
            "offset": {"type": "integer", "minimum": 0, "default": 0, "description": "Character to begin with."},
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": _LARGEST_PAGE,
                "default": PAGE,
                "description": "Characters of the page.",
            },
        },
        "additionalProperties": False,
    },
    handler=_read,
    pure=True,
    kind="read",
)
