"""``echo``: gives back its text; good for trying out a circle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantrip_acp.gates.contract import Gate, GateContext


def _echo(args: Mapping[str, Any], context: GateContext) -> Any:
    return args["text"]


ECHO = Gate(
    name="echo",
    description="Return the given text unchanged.",
    parameters={
        "type": "object",
        "properties": {"text": {"type": "string", "description": "The text to return."}},
        "required": ["text"],
        "additionalProperties": False,
    },
    handler=_echo,
    pure=True,
    main_text="text",
)
