"""The gates ``done`` (ends a cast with an answer; CIRCLE-1, CIRCLE-8, D-003) and ``echo`` (returns its text, for tests)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantrip_acp.gates.contract import Gate, GateContext


def _done(args: Mapping[str, Any], context: GateContext) -> Any:
    return args["answer"]


DONE = Gate(
    name="done",
    description="Finish the task with this answer. Nothing that comes after it in the same utterance is run.",
    parameters={
        "type": "object",
        "properties": {
            "answer": {"description": "The answer or result: any JSON value; text where it is for a reader."}
        },
        "required": ["answer"],
        "additionalProperties": False,
    },
    handler=_done,
    main_text="answer",
    kind="other",
)


# ``echo``


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
