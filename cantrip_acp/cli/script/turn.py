"""Collects what an agent did in one step of a script, under the names that expectations use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cantrip_acp.cli.render.from_acp import get_list, get_mapping, get_text


class Happened:
    """Everything that came between a step's beginning and its end."""

    def __init__(self) -> None:
        self.updates: list[Mapping[str, Any]] = []
        self.permissions: list[dict[str, Any]] = []
        self.file_requests: list[dict[str, Any]] = []
        self.stderr: list[str] = []
        self.junk: list[str] = []
        """Lines of stdout that are not messages."""

    def as_data(self) -> dict[str, Any]:
        """The step as data for patterns, without the values of the reply."""
        said: dict[str, Any] = {
            "text": self._words("agent_message_chunk"),
            "thought": self._words("agent_thought_chunk"),
            "user_text": self._words("user_message_chunk"),
            "tool_calls": self.tool_calls(),
            "updates": list(self.updates),
            "permissions": list(self.permissions),
            "file_requests": list(self.file_requests),
            "stderr": "\n".join(self.stderr),
            "junk": list(self.junk),
        }
        for name, kind, key in (
            ("plan", "plan", "entries"),
            ("commands", "available_commands_update", "availableCommands"),
            ("options", "config_option_update", "configOptions"),
            ("mode", "current_mode_update", "currentModeId"),
            ("title", "session_info_update", "title"),
        ):
            said[name] = next((u.get(key) for u in reversed(self.updates) if u.get("sessionUpdate") == kind), None)
        said["usage_update"] = next(
            (u for u in reversed(self.updates) if u.get("sessionUpdate") == "usage_update"), None
        )
        return said

    def tool_calls(self) -> list[dict[str, Any]]:
        """Each tool call with its last state, in the order in which the calls began. `output` is its text, `diffs` its changes."""
        calls: dict[str, dict[str, Any]] = {}
        for update in self.updates:
            if update.get("sessionUpdate") not in ("tool_call", "tool_call_update"):
                continue
            call = calls.setdefault(get_text(update, "toolCallId"), {"_terminal": ""})
            call.update({k: v for k, v in update.items() if k not in ("sessionUpdate", "_meta") and v is not None})
            piece = get_mapping(get_mapping(update, "_meta"), "terminal_output")
            call["_terminal"] += get_text(piece, "data")
        return [_finished(call) for call in calls.values()]

    def _words(self, kind: str) -> str:
        """The text of one kind of message, without messages that broke off and their marks."""
        marks = [get_mapping(get_mapping(update, "_meta"), "cantrip") for update in self.updates]
        void = {get_text(mark, "void") for mark in marks if "void" in mark}
        return "".join(
            get_text(get_mapping(update, "content"), "text")
            for update, mark in zip(self.updates, marks, strict=True)
            if update.get("sessionUpdate") == kind
            and "void" not in mark
            and get_text(update, "messageId").removesuffix(":thought") not in void
        )


def _finished(call: dict[str, Any]) -> dict[str, Any]:
    terminal = call.pop("_terminal")
    parts = [terminal] if terminal else []
    diffs = []
    for content in get_list(call, "content"):
        if not isinstance(content, Mapping):
            continue
        if content.get("type") == "diff":
            diffs.append({key: content.get(key) for key in ("path", "oldText", "newText")})
        elif not terminal:
            parts.append(get_text(get_mapping(content, "content"), "text"))
    raw = call.get("rawOutput")
    if not parts and raw is not None:
        parts = [get_text(raw, "output") if isinstance(raw, Mapping) else str(raw)]
    return {**call, "output": "\n".join(part for part in parts if part), "diffs": diffs}


def call_line(call: Mapping[str, Any]) -> str:
    """A tool call on one line."""
    return "  ".join(str(call.get(key, "")) for key in ("kind", "status", "title"))


def update_line(update: Mapping[str, Any]) -> str:
    """An update on one line."""
    rest = {key: value for key, value in update.items() if key != "sessionUpdate"}
    shown = str(rest)
    return f"{update.get('sessionUpdate')}  {shown if len(shown) <= 160 else shown[:160] + '…'}"
