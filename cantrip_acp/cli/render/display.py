"""Display model: the items that the terminal shows (messages, tool calls, plans, notices).

Two translators make these items: `from_events.py` from the core's events (`cantrip cast`), and `from_acp.py` from the ACP
updates of any agent (`cantrip repl`, `cantrip client`). One renderer prints them (`renderer.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from cantrip_acp.types.styled import Styled

# Keys of a call's input that agents use for a shell command.
_COMMANDS: Final = ("command", "cmd", "script")
# Keys of a result that agents use for an exit status and for a command's output.
_STATUSES: Final = ("exit_code", "exitCode", "exit_status", "status_code")
_COMMAND_OUTPUTS: Final = ("output", "stdout", "aggregated_output")
_OUTPUTS: Final = (*_COMMAND_OUTPUTS, "result", "content", "text", "error")


@dataclass(frozen=True, slots=True)
class Message:
    """A piece of a message. Pieces with the same role and id belong together."""

    role: Literal["agent", "thought", "user"]
    message_id: str
    text: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The whole plan: the content and the status of each entry."""

    entries: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class FileChange:
    """A change of one file. ``old_text`` is None for a new file."""

    path: str
    old_text: str | None
    new_text: str


ChildActionKind = Literal["intent", "text", "action", "failure", "retry", "done", "stopped"]


@dataclass(frozen=True, slots=True)
class ChildAction:
    """One action of a child entity. ``number`` is dotted (``2.1``), and empty for an only child. ``call_id`` is the call
    that started the child."""

    call_id: str
    number: str
    kind: ChildActionKind
    text: str

    @property
    def depth(self) -> int:
        """The child's depth in the tree, from 1."""
        return self.number.count(".") + 1


@dataclass(frozen=True, slots=True)
class ToolCall:
    """News about one tool call. A field that is None has not changed.

    ``changes`` and ``content`` (a text) may repeat what earlier news of the call had; ``output`` is the next piece of output,
    which may have codes for colours, and ``styled`` the whole output in its colours. ``above`` is a plan that the message
    before the call shows. ``result`` is shown at the end of the call if it had no output and no change.
    ``inner`` is true for a gate that a command called: the command's own output contains its result.
    """

    call_id: str
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    locations: tuple[tuple[str, int | None], ...] | None = None
    command: str | None = None
    inner: bool = False
    children: tuple[ChildAction, ...] = ()
    changes: tuple[FileChange, ...] = ()
    output: str = ""
    content: str | None = None
    styled: Styled | None = None
    above: str | None = None
    result: str | None = None
    exit_code: int | None = None
    signal: str | None = None


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on one line."""

    text: str
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Notice:
    """A notice for the user. ``severity`` is info, warning or error."""

    severity: str
    title: str
    description: str = ""


@dataclass(frozen=True, slots=True)
class Compaction:
    """The end of a compaction of the agent's context. ``status`` is completed, failed or cancelled."""

    status: str
    summary: str = ""
    error: str = ""


Item = Message | Plan | ToolCall | ChildAction | Note | Notice | Compaction


def command_of(arguments: object) -> str:
    """The shell command in the input of a call; empty if there is none."""
    if not isinstance(arguments, Mapping):
        return ""
    for key in _COMMANDS:
        value = arguments.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and all(isinstance(part, str) for part in value):
            return " ".join(value)
    return ""


def result_text(result: Any) -> str:
    """The raw result of a call as text: the output of a command, or else the data as JSON."""
    if isinstance(result, Mapping) and (
        not result.keys() - {*_OUTPUTS, *_STATUSES} or result.keys() & {*_COMMAND_OUTPUTS}
    ):
        return "\n".join(value for key in _OUTPUTS if isinstance(value := result.get(key), str) and value)
    if result is None or isinstance(result, str):
        return result or ""
    return json.dumps(result, ensure_ascii=False, indent=2, default=str)


def exit_code_of(result: object) -> int | None:
    """The exit status in the raw result of a call."""
    if not isinstance(result, Mapping):
        return None
    found = (result.get(key) for key in _STATUSES)
    return next((value for value in found if isinstance(value, int) and not isinstance(value, bool)), None)


def duration(seconds: float) -> str:
    """A duration for people: `12 ms`, `1.4 s`, `3 min 20 s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"
