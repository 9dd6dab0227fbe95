"""What a person sees in a model's place: the messages that are new, and the tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from cantrip_acp.crystals.contract import Message, ToolDefinition

LONGEST = 4000
"""Characters of one message that are shown; ``/all`` shows it whole."""

# A message may hold anything that a file or a command gave: nothing of it may steer the terminal or turn text around.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """The text without what would steer a terminal."""
    return _UNSAFE.sub("\ufffd", text)


def messages(shown: Sequence[Message], *, whole: bool = False) -> str:
    """Messages as they are read, one after the other."""
    return "".join(f"{head}\n{_indented(text, whole=whole)}" for head, text in _parts(shown))


def _parts(shown: Sequence[Message]) -> Iterator[tuple[str, str]]:
    for message in shown:
        if message.role == "assistant":
            calls = "".join(f"\n/{call.gate} {call.args}" for call in message.tool_calls)
            yield "── you said", (message.content or "") + calls
            continue
        kind = f" ({message.kind})" if message.kind not in ("turn", message.role) else ""
        if message.role == "tool":
            head = f"── {message.name or 'tool'}{' failed' if message.is_error else ''}"
        else:
            head = f"── {message.role}{kind}"
        notes = "".join(f"[{a.kind} {a.title or a.uri or a.mime}]\n" for a in message.attachments)
        yield head, notes + (message.content or "")


def _indented(text: str, *, whole: bool) -> str:
    if len(text) > LONGEST and not whole:
        half = LONGEST // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n… {left_out:,} characters more; /all shows them …\n{text[-half:]}"
    return "".join(f"   {line}\n" for line in clean(text).split("\n"))


def tool_line(tools: Sequence[ToolDefinition]) -> str:
    """The names of the tools in one line."""
    names = "  ".join(f"/{tool.name}" for tool in tools)
    return f"── tools: {names or 'none'}   (/help)\n"


def tool_list(tools: Sequence[ToolDefinition]) -> str:
    """Each tool with what it does and its arguments."""
    out = []
    for tool in tools:
        out.append(f"/{tool.name}  {' '.join(tool.description.split())[:300]}\n")
        properties = tool.parameters.get("properties")
        required = tool.parameters.get("required") or ()
        for name, schema in properties.items() if isinstance(properties, Mapping) else ():
            about = schema if isinstance(schema, Mapping) else {}
            optional = "" if name in required else ", optional"
            description = " ".join(str(about.get("description", "")).split())[:200]
            out.append(
                f"     {name}: {about.get('type', 'any')}{optional}{f'  {description}' if description else ''}\n"
            )
    return clean("".join(out)) or "no tools\n"
