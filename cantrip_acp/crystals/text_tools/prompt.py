"""Gate calls in text, for models and servers that take no tool definitions (CRYSTAL-4): how they are asked for and told.

What the model reads of it is the same on every query, so that prompt caches stay warm. `parse` finds the calls.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from cantrip_acp.crystals.contract import Message, ToolCall, ToolDefinition
from cantrip_acp.crystals.openai.tool_names import wire_args, wire_name

FENCE = "tool_call"
RESULT = "<tool_result"
"""How the answer of a call begins. A model that writes this itself is making one up."""

_MADE_UP = re.compile(rf"^[ \t]*{re.escape(RESULT)}\b", re.MULTILINE)

_INTRODUCTION = """\
# Tools

You can call the tools below. To call one, write a fenced block on lines of its own, with one JSON object in it:

```tool_call
{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}
```

Every such block is executed, so write one only to make a call, never as an example. Several blocks are executed in order.
After your calls, stop: the results come in the next message, in <tool_result> elements. Never write those yourself.

The tools, each with a JSON Schema of its arguments:
"""

_REQUIRED = "\nEach of your answers must call at least one tool.\n"


def presentation(tools: Sequence[ToolDefinition], *, required: bool = False) -> str:
    """The text that stands in place of tool definitions."""
    lines = [_INTRODUCTION]
    for tool in tools:
        schema = msgspec.json.encode(dict(tool.parameters)).decode()
        lines.append(f"## {wire_name(tool.name)}\n{tool.description.strip()}\nArguments: {schema}\n")
    if required:
        lines.append(_REQUIRED)
    return "\n".join(lines)


def as_text(messages: Sequence[Message], tools: Sequence[ToolDefinition], *, required: bool = False) -> list[Message]:
    """The messages with calls and their answers as text, and the tools presented after the system messages."""
    out: list[Message] = []
    start = 0
    while start < len(messages) and messages[start].role == "system":
        start += 1
    out.extend(messages[:start])
    if tools:
        out.append(Message("system", presentation(tools, required=required), kind="capabilities"))
    results: list[Message] = []
    for message in messages[start:]:
        if message.role == "tool":
            results.append(message)
            continue
        _flush(results, out)
        if message.role == "assistant" and message.text_calls:
            # The model's own text has the calls already; a result that it invented is not shown to it again.
            out.append(Message("assistant", without_invented_results(message.content or ""), thinking=message.thinking))
        elif message.role == "assistant" and message.tool_calls:
            said = [message.content] if message.content else []
            text = "\n\n".join([*said, *(_block(call) for call in message.tool_calls)])
            out.append(Message("assistant", text, thinking=message.thinking))
        else:
            out.append(message)
    _flush(results, out)
    return out


def _flush(results: list[Message], out: list[Message]) -> None:
    if results:
        images = tuple(image for message in results for image in message.attachments)
        out.append(Message("user", "\n\n".join(map(_result, results)), attachments=images))
        results.clear()


def _block(call: ToolCall) -> str:
    return f'```{FENCE}\n{{"name": "{wire_name(call.gate)}", "arguments": {wire_args(call.args)}}}\n```'


def _result(message: Message) -> str:
    failed = ' error="true"' if message.is_error else ""
    return f'{RESULT} name="{wire_name(message.name or "tool")}"{failed}>\n{message.content or ""}\n</tool_result>'


def without_invented_results(text: str) -> str:
    """The text up to a tool's result that the model invented: that, and all that it made of it, counts for nothing."""
    made_up = _MADE_UP.search(text)
    return text if made_up is None else text[: made_up.start()]
