"""What a person types in a model's place, read as prose or as tool calls. Pure: no terminal in here."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from cantrip_acp.crystals.contract import ToolDefinition

COMMANDS = ("help", "tools", "all", "say", "refuse", "gate")
"""Words behind a slash that are not tools; a tool of such a name is called by ``/gate NAME``."""

HELP = """\
text              say it, as the model; a line that ends in \\ goes on in the next one
/TOOL {json}      call a tool with arguments as JSON, which may take several lines
/TOOL text        call it with that text as its first argument: /bash ls -l, /done it is 42
/TOOL             call it with the lines that follow, up to a line with a single dot
/gate TOOL …      the same, for a tool whose name is taken here
/say              say the lines that follow, up to a line with a single dot
+…                hold this text or call; it goes together with the next one
/refuse [why]     decline, as a provider does
/tools  /all      the tools and their arguments; all messages, whole
Ctrl-C stops the cast; Ctrl-D ends it as a crystal that has gone"""

END = "."


@dataclass(frozen=True)
class Said:
    """What was typed: prose, a call (tool and arguments as JSON text), a refusal, or a question to the terminal itself.

    ``more`` where it is not complete, ``problem`` with what is wrong with it. ``hold``: it goes with what comes next.
    """

    kind: Literal["text", "call", "refusal", "show", "problem", "more", "nothing"]
    text: str = ""
    tool: str = ""
    args: str = ""
    hold: bool = False


@dataclass
class Typing:
    """Lines as they are typed, until they are something. ``tools`` are those that the query offers."""

    tools: Sequence[ToolDefinition]
    _lines: list[str] = field(default_factory=list)
    _until: Literal["line", "block", "json"] = "line"

    @property
    def inside(self) -> bool:
        """Whether a line is awaited that goes on with what was begun."""
        return bool(self._lines)

    def add(self, line: str) -> Said:
        """One line without its end. ``more`` while it is not complete."""
        if self._lines and self._until == "block":
            if line != END:
                self._lines.append(line)
                return Said("more")
            head, *body = self._take()
            return self._command(head, "\n".join(body))
        if self._lines and self._until == "json":
            if not line.strip():
                return self._read("\n".join(self._take()), final=True)
            return self._read("\n".join([*self._take(), line]), final=False)
        if line.endswith("\\") and not line.endswith("\\\\"):
            self._lines.append(line[:-1])
            self._until = "line"
            return Said("more")
        return self._read("\n".join([*self._take(), line]), final=False)

    def _take(self) -> list[str]:
        lines, self._lines, self._until = self._lines, [], "line"
        return lines

    def _wait(self, lines: list[str], until: Literal["block", "json"]) -> Said:
        self._lines, self._until = lines, until
        return Said("more")

    def _read(self, typed: str, *, final: bool) -> Said:
        words = typed.strip()
        hold = words.startswith("+")
        plain = words[1:].lstrip() if hold else words
        if not plain:
            return Said("nothing")
        if not plain.startswith("/"):
            return Said("text", text=plain if hold else typed.strip("\n"), hold=hold)
        name, _, rest = plain[1:].partition(" ")
        name, newline, more = name.partition("\n")
        rest = more + (" " + rest if rest else "") if newline else rest.strip()
        if name in ("help", "tools", "all"):
            return Said("show", text=name)
        if name == "refuse":
            return Said("refusal", text=rest)
        if name == "gate":
            name, _, rest = rest.partition(" ")
            rest = rest.strip()
        if not rest and (name == "say" or self._asks_for_text(name)):
            return self._wait([words], "block")
        if rest.startswith("{") and not final and _unfinished(rest):
            return self._wait(typed.split("\n"), "json")
        return self._called(name, rest, hold)

    def _command(self, head: str, body: str) -> Said:
        """A command with the block that followed it."""
        hold = head.startswith("+")
        name = head.lstrip("+ ").lstrip("/").removeprefix("gate ").strip()
        if name == "say":
            return Said("text", text=body, hold=hold) if body.strip() else Said("nothing")
        return self._called(name, body, hold)

    def _called(self, name: str, rest: str, hold: bool) -> Said:
        tool = self._tool(name)
        if tool is None:
            near = difflib.get_close_matches(name, [t.name for t in self.tools] + list(COMMANDS), n=1)
            hint = f"did you mean /{near[0]}?" if near else "/tools lists them"
            return Said("problem", text=f"no tool {name!r} here; {hint} (prose that begins with / goes behind /say)")
        if rest.lstrip().startswith("{"):
            try:
                value = json.loads(rest)
            except ValueError as error:
                return Said("problem", text=f"nothing was sent: this is not valid JSON: {error}")
            if isinstance(value, dict):
                return Said("call", tool=tool.name, args=rest.strip(), hold=hold)
        if not rest.strip():
            return Said("call", tool=tool.name, args="{}", hold=hold)
        first = _first(tool)
        if first is None:
            return Said(
                "problem", text=f"nothing was sent: {tool.name} takes its arguments as JSON: /{tool.name} {{…}}"
            )
        name, kind = first
        return Said("call", tool=tool.name, args=json.dumps({name: _value(rest, kind)}, ensure_ascii=False), hold=hold)

    def _tool(self, name: str) -> ToolDefinition | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def _asks_for_text(self, name: str) -> bool:
        """Whether a call without anything would lack its text."""
        tool = self._tool(name)
        return tool is not None and bool(tool.parameters.get("required"))


def _first(tool: ToolDefinition) -> tuple[str, Any] | None:
    """The argument that a bare text is for, and its type; None where others are required as well."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required") or ()
    if not isinstance(properties, Mapping) or not properties or len(required) > 1:
        return None
    name = str(required[0]) if required else str(next(iter(properties)))
    schema = properties.get(name)
    return name, schema.get("type") if isinstance(schema, Mapping) else None


def _value(text: str, kind: Any) -> Any:
    """The text as its argument wants it; where any type goes, or another one, JSON is read as such."""
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _unfinished(text: str) -> bool:
    """Whether it may become a JSON object with more lines."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text.rstrip()) or error.msg.startswith(("Unterminated", "Invalid control"))
    return False
