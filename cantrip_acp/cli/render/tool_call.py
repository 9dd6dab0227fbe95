"""Tool call state: what an agent reported about one tool call, and how much of it was shown.
Agents report output in three ways: as content that a longer one replaces, as `_meta.terminal_output` pieces of a
display terminal, or only at the end as a raw result. The first two come out of `take_output()`, each byte once; the raw
result comes from `result_text()`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from cantrip_acp.cli.render.child_output import ChildLine, ChildLines
from cantrip_acp.text.sanitize import clean, clean_line

if TYPE_CHECKING:
    from cantrip_acp.cli.render.terminal import Block


# --- A change of a file as a unified diff, one line at a time, with a style.

# Above this number of lines, the diff takes too long to compute.
_MOST_LINES = 20_000


def unified(name: str, old: str | None, new: str, *, limit: int | None = 120) -> Iterator[tuple[str, str]]:
    """`(line, style)` pairs. `old` is None for a new file. Yields at most `limit` lines, then the number of left out lines."""
    before = [] if old is None else old.splitlines()
    after = new.splitlines()
    a, b = (name, name) if name.startswith("/") else (f"a/{name}", f"b/{name}")
    yield ("--- /dev/null" if old is None else f"--- {a}"), "bold"
    yield f"+++ {b}", "bold"
    if len(before) + len(after) > _MOST_LINES:
        yield f"{len(before):,} lines become {len(after):,}: too much to show here", "dim italic"
        return
    shown = 0
    left_out = 0
    for number, line in enumerate(difflib.unified_diff(before, after, lineterm="", n=3)):
        if number < 2:
            continue  # the file names that difflib writes
        if limit is not None and shown >= limit:
            left_out += 1
            continue
        shown += 1
        yield line, {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "")
    if left_out:
        yield f"… {left_out:,} more lines of this change …", "dim italic"
    elif not shown:
        yield "(no line differs)", "dim italic"
    elif old is not None and old.endswith("\n") != new.endswith("\n"):
        yield "\\ no newline at the end of the " + ("new file" if old.endswith("\n") else "old file"), "dim"


_FENCE = re.compile(r"\A(?P<fence>`{3,})[^\n`]*\n(?P<body>.*?)(?:\n?(?P=fence)\s*)?\Z", re.DOTALL)
# rawInput keys that agents use for a shell command.
_COMMANDS = ("command", "cmd", "script")
# rawOutput keys that agents use for an exit status and for a command's output.
_STATUSES = ("exit_code", "exitCode", "exit_status", "status_code")
_OUTPUTS = ("output", "stdout", "aggregated_output", "result", "content", "text", "error")


def text(source: Mapping[str, Any], key: str) -> str:
    """The string under a key, or an empty one."""
    value = source.get(key)
    return value if isinstance(value, str) else ""


def number(source: Mapping[str, Any], key: str) -> int | None:
    """The whole number under a key, or None."""
    value = source.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def mapped(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under a key, or an empty one."""
    value = source.get(key)
    return value if isinstance(value, Mapping) else {}


def listed(source: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a key, or an empty one."""
    value = source.get(key)
    return value if isinstance(value, list) else []


class ToolView:
    """One tool call. `inner` is true for a gate that a command called: the command's own output contains its result."""

    def __init__(self, call_id: str, *, started: float) -> None:
        self.call_id = call_id
        self.started = started
        self.kind = ""
        self.status = ""
        self.locations: list[Any] = []
        self.inner = False
        self.headed = False
        self.showed_output = False
        self.showed_diff = False
        self.block: Block | None = None
        self._title = ""
        self._input: object = None
        self._result: object = None
        self._diffs: list[tuple[str, str | None, str]] = []
        self._seen_diffs: set[int] = set()
        self._terminal: list[str] = []
        self._content = ""
        self._shown = ""
        self._exit_code: int | None = None
        self._signal = ""
        self._children = ChildLines()
        self._told: list[ChildLine] = []

    def take(self, update: Mapping[str, Any]) -> None:
        """Add what a `tool_call` or `tool_call_update` says. Absent and null fields change nothing."""
        self._title = text(update, "title") or self._title
        self.kind = clean_line(text(update, "kind"), 20) or self.kind
        self.status = text(update, "status") or self.status
        if isinstance(update.get("locations"), list):
            self.locations = update["locations"]
        if update.get("rawInput") is not None:
            self._input = update["rawInput"]
        if update.get("rawOutput") is not None:
            self._result = update["rawOutput"]
        if isinstance(update.get("content"), list):
            self._contents(update["content"])
        self._meta(mapped(update, "_meta"))

    def _contents(self, items: list[Any]) -> None:
        words = []
        for item in items:
            if not isinstance(item, Mapping):
                continue
            if text(item, "type") == "diff":
                old = item.get("oldText")
                change = (text(item, "path"), old if isinstance(old, str) else None, text(item, "newText"))
                if hash(change) not in self._seen_diffs:
                    self._seen_diffs.add(hash(change))
                    self._diffs.append(change)
            elif text(item, "type") == "content":
                block = mapped(item, "content")
                told = self._children.take(text(block, "text"))
                if told is not None:
                    self._told += told
                    continue
                kind = " ".join(filter(None, (text(block, "type"), text(block, "mimeType"))))
                words.append(text(block, "text") or (f"[{kind}]" if block else ""))
        self._content = _unfenced("\n".join(words))
        if self.status in ("", "pending") and self._content.strip() == self._command().strip():
            # A permission request repeats the command, and the heading already shows it.
            self._content = ""

    def _meta(self, meta: Mapping[str, Any]) -> None:
        if piece := text(mapped(meta, "terminal_output"), "data"):
            self._terminal.append(piece)
        if ended := mapped(meta, "terminal_exit"):
            self._exit_code = number(ended, "exit_code")
            self._signal = text(ended, "signal")
        # Our agent names the command that called this gate. The gate's result is in that command's output.
        if text(mapped(meta, "cantrip"), "via"):
            self.inner = True

    def has_news(self) -> bool:
        """Whether there is something to show besides the heading."""
        return bool(self._diffs or self._terminal or self._told or self._content != self._shown)

    def take_children(self) -> list[ChildLine]:
        """What the call's children did since the last call of this method."""
        told, self._told = self._told, []
        return told

    def take_diffs(self) -> list[tuple[str, str | None, str]]:
        diffs, self._diffs = self._diffs, []
        return diffs

    def take_output(self) -> str:
        """Return the output that has not been shown yet."""
        out = "".join(self._terminal)
        self._terminal = []
        if self._content != self._shown:
            if self._content.startswith(self._shown):
                out += self._content[len(self._shown) :]
            elif not self._shown.startswith(self._content):
                out += ("\n" if self._shown else "") + self._content
            self._shown = self._content
        return out

    def title(self) -> str:
        """The agent's title. If it only begins a command: the command if it has one line, else an empty text."""
        title = clean_line(self._title.strip("`"), 160) or clean_line(self.call_id, 60) or "(no name)"
        lines = clean(self._command()).strip().splitlines()
        if lines and clean_line(lines[0]).startswith(title.rstrip(" ….")[:60]):
            return lines[0].strip() if len(lines) == 1 else ""
        return title

    def name(self) -> str:
        """The title, or the first line of the command if the title is empty."""
        return self.title() or self.command_lines()[0]

    def command_lines(self) -> list[str]:
        """The shell command of an `execute` call, if the title does not contain all of it."""
        command = clean(self._command()).strip()
        if not command or command == self.title():
            return []
        lines = command.splitlines()
        return lines if len(lines) <= 20 else [*lines[:19], f"… {len(lines) - 19} more lines"]

    def _command(self) -> str:
        if not isinstance(self._input, Mapping):
            return ""
        for key in _COMMANDS:
            value = self._input.get(key)
            if isinstance(value, str):
                return value
            if isinstance(value, list) and all(isinstance(part, str) for part in value):
                return " ".join(value)
        return ""

    def outcome(self) -> str:
        """How the call ended: its status, with the signal or the exit status if the agent gives one."""
        code = self._exit_code
        if code is None and isinstance(self._result, Mapping):
            code = next((value for key in _STATUSES if (value := number(self._result, key)) is not None), None)
        if self._signal:
            return f"{self.status} · {clean_line(self._signal, 20)}"
        return f"{self.status} · exit {code}" if code is not None else self.status

    def result_text(self) -> str:
        """The raw result as text, for agents that send no content."""
        result = self._result
        if isinstance(result, Mapping):
            parts = [text(result, key) for key in _OUTPUTS]
            return "\n".join(part for part in parts if part)
        if result is None or isinstance(result, str):
            return result or ""
        return json.dumps(result, ensure_ascii=False, indent=2)


def _unfenced(words: str) -> str:
    """Output without the Markdown code fence that some agents put around it."""
    match = _FENCE.match(words)
    return match["body"] if match else words
