"""What a scripted crystal plays: in a recipe, or in a script file of its own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from cantrip_acp.recipes.models.base import Model
from cantrip_acp.recipes.models.field_types import Arguments, Flag, Line, MaybeText, Text, number, or_unknown, whole


class Usage(Model):
    """What a scripted response says that it cost. null is a number that its provider does not report."""

    noun = "usage"
    prompt_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    completion_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cached_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cache_write_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    reasoning_tokens: Annotated[int | None, or_unknown(whole(0))] = 0
    cost: Annotated[float | None, or_unknown(number(0))] = Field(
        default=None, description="US dollars; not known where it is left out."
    )


class ScriptedToolCall(Model):
    noun = "tool call"
    id: Text = Field(default="", description="Made up where it is left out.")
    gate: Line
    args: Arguments = Field(
        default_factory=dict, description="A mapping; a text is sent as it stands, valid JSON or not."
    )


class ScriptedError(Model):
    """A query that fails."""

    noun = "error"
    status: Annotated[int, whole(100, 599)] = Field(default=500, description="The HTTP status.")
    message: Text = ""
    retry_after: Annotated[float, number(0)] = Field(default=0, description="Seconds.")
    code: Text = Field(default="", description="context_length_exceeded: the messages do not fit.")


class ScriptedToolResult(Model):
    noun = "tool result"
    tool_call_id: Text
    content: Text = ""


class ScriptedResponse(Model):
    """One response of a scripted crystal; an empty one plays a crystal that says nothing."""

    noun = "response"
    content: MaybeText = None
    thinking: MaybeText = None
    tool_calls: list[ScriptedToolCall] = Field(default_factory=list)
    code: Text = Field(default="", description="Python for the code medium.")
    bash: Text = Field(default="", description="A command for the bash medium.")
    usage: Usage = Usage()
    error: ScriptedError = ScriptedError()
    delay_ms: Annotated[float, number(0)] = Field(default=0, description="Milliseconds to wait before each piece.")
    chunks: list[Text] = Field(default_factory=list, description="The text in pieces, as it streams.")
    when: Text = Field(default="", description="Use it only while the intent holds this text.")
    repeat: Flag = Field(default=False, description="Never used up.")
    tool_result: ScriptedToolResult = Field(
        default=ScriptedToolResult(tool_call_id=""), description="A tool result that the provider claims to carry."
    )


class ScriptMapping(Model):
    """A script with children of its own."""

    noun = "script"
    responses: list[ScriptedResponse]
    children: list[Script] = Field(default_factory=list, description="Scripts of child entities, by order of birth.")
    usage: Usage = Field(default=Usage(), description="Of every response that gives none.")


def _script_kind(value: Any) -> str:
    return "<mapping>" if isinstance(value, dict | ScriptMapping) else "<list>"


Script = Annotated[
    Annotated[list[ScriptedResponse], Tag("<list>")] | Annotated[ScriptMapping, Tag("<mapping>")],
    Discriminator(_script_kind),
]
"""What a script file holds, and what ``children`` lists."""
