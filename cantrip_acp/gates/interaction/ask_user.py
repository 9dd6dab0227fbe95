"""The gate ``ask_user``: asks the user a question during a cast, with or without choices (ACP, Elicitation).

An interactive client answers instead of this gate. Without such a client, the gate tells the entity to put the question
into its answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cantrip_acp.gates.confinement import quoted
from cantrip_acp.gates.contract import Gate, GateContext, GateReply
from cantrip_acp.types.errors import GateError

MOST_CHOICES = 20


def _no_user(args: Mapping[str, Any], context: GateContext) -> GateReply:
    raise GateError(
        "the user cannot be asked here while the task runs",
        "Decide with what you know, or end with the question as your answer",
    )


def title(question: str) -> str:
    """Make the title of a call with this question."""
    return f"Ask {quoted(question)}"


def question_text(question: str, choices: Sequence[str]) -> str:
    """Format the question as chat text, for clients without forms."""
    return "\n".join([question, *(f"- {choice}" for choice in choices)])


def _preview(args: Mapping[str, Any], context: GateContext) -> GateReply:
    return GateReply(None, title=title(args["question"]))


ASK_USER = Gate(
    name="ask_user",
    description=(
        "Ask the user one question and wait for the answer, which is text. With choices the answer is one of them. Ask only "
        "what you cannot find out and what changes what you do; never for passwords or keys."
    ),
    parameters={
        "type": "object",
        "properties": {
            "question": {"type": "string", "minLength": 1, "maxLength": 4_000, "description": "The question."},
            "choices": {
                "type": "array",
                "items": {"type": "string", "minLength": 1, "maxLength": 500},
                "minItems": 2,
                "maxItems": MOST_CHOICES,
                "uniqueItems": True,
                "description": "The answers to choose from. Default: any text.",
            },
        },
        "required": ["question"],
        "additionalProperties": False,
    },
    handler=_no_user,
    kind="other",
    main_text="question",
    preview=_preview,
)
