"""Translates the `session/update`s of any ACP agent into the display model (`cantrip client`).

Unknown and incomplete updates are accepted, because an agent's mistake must not end the session. Agents report output in
three ways: as content that grows with each update, as pieces in `_meta.terminal_output`, or as a raw result at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, cast, get_args

from cantrip_acp.cli.render.display import (
    ChildAction,
    ChildActionKind,
    Compaction,
    FileChange,
    Item,
    Message,
    Note,
    Notice,
    Plan,
    ToolCall,
    command_of,
    duration,
    exit_code_of,
    result_text,
)
from cantrip_acp.crystals.human import waited_seconds
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.styled import Styled
from cantrip_acp.types.usage import Usage

_FENCE = re.compile(r"\A(?P<fence>`{3,})[^\n`]*\n(?P<body>.*?)(?:\n?(?P=fence)\s*)?\Z", re.DOTALL)
_CHILD_KINDS = get_args(ChildActionKind)
_MOST_COMPACTIONS = 64
"""Maximum running compactions to remember, so that an agent that never ends them cannot fill the memory."""
_LONGEST_SUMMARY = 100_000


def get_text(source: Mapping[str, Any], key: str) -> str:
    """The string under a key, or an empty one."""
    value = source.get(key)
    return value if isinstance(value, str) else ""


def get_int(source: Mapping[str, Any], key: str) -> int | None:
    """The whole number under a key, or None."""
    value = source.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def get_mapping(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under a key, or an empty one."""
    value = source.get(key)
    return value if isinstance(value, Mapping) else {}


def usage_of(record: Mapping[str, Any]) -> Usage:
    """The usage that our own agent reports."""
    known: dict[str, Any] = {name: record[name] for name in Usage.__struct_fields__ if name in record}
    return Usage(**{name: value for name, value in known.items() if not isinstance(value, str | list | dict)})


def get_list(source: Mapping[str, Any], key: str) -> list[Any]:
    """The list under a key, or an empty one."""
    value = source.get(key)
    return value if isinstance(value, list) else []


class UpdateTranslator:
    """Translates the updates of one session, in order. ``own``: of an agent in this process, whose user sees by other means
    which title and which mode the session has. ``dot`` is the sign between the parts of a line."""

    def __init__(self, *, own: bool = False, dot: str = "·") -> None:
        self._own, self._dot = own, f" {dot} "
        # Seconds that questions had waited for the user at the end of the last turn.
        self._waited = waited_seconds()
        self._summaries: dict[str, str] = {}
        self._said = ("", "")
        """The id and the text of the agent's last message."""

    def translate(self, update: Mapping[str, Any]) -> list[Item]:
        """The display items for the `update` of one `session/update` (ACP, "Session updates")."""
        kind = get_text(update, "sessionUpdate")
        match kind:
            case "agent_message_chunk" | "agent_thought_chunk" | "user_message_chunk":
                role: Any = {"agent_m": "agent", "agent_t": "thought", "user_me": "user"}[kind[:7]]
                message_id, text = get_text(update, "messageId"), content_text(update.get("content"))
                if role == "agent":
                    known, before = self._said
                    self._said = message_id, (before if known == message_id else "") + text
                return [Message(role, message_id, text)]
            case "tool_call" | "tool_call_update":
                return [self.call(update)]
            case "plan":
                entries = [each for each in get_list(update, "entries") if isinstance(each, Mapping)]
                return [Plan(tuple((get_text(each, "content"), get_text(each, "status")) for each in entries))]
            case "session_info_update" if turn := get_mapping(
                get_mapping(get_mapping(update, "_meta"), "cantrip"), "turn"
            ):
                return [self._turn(turn)]
            case "current_mode_update" | "session_info_update" if self._own:
                return []
            case "current_mode_update":
                return [Note(f"mode: {clean_line(get_text(update, 'currentModeId'))}")]
            case "session_info_update":
                title = get_text(update, "title")
                return [Note(f"session: {clean_line(title)}")] if title else []
            case "notice":
                return [Notice(*(get_text(update, key) for key in ("severity", "title", "description")))]
            case "compaction_summary_chunk":
                self._keep_summary(update, lambda known: known + content_text(update.get("content")))
                return []
            case "compaction_update":
                return self._compaction(update)
            case "available_commands_update" | "config_option_update" | "usage_update":
                return []  # These updates only list options and numbers, which are not shown.
        words = get_text(update, "message") or get_text(update, "text") or content_text(update.get("content"))
        name = clean_line(kind, 60) or "an update without a name"
        return [Note(f"{name}: {clean_line(words)}" if words else name)]

    def call(self, update: Mapping[str, Any]) -> ToolCall:
        """Translate a `tool_call` or `tool_call_update`, with the actions of the call's children.

        Absent and null fields change nothing.
        """
        call_id = get_text(update, "toolCallId")
        meta = get_mapping(update, "_meta")
        ours, ended = get_mapping(meta, "cantrip"), get_mapping(meta, "terminal_exit")
        given, raw = update.get("rawInput"), update.get("rawOutput")
        changes, content = _content(update, ours)
        if self._own and content and get_text(ours, "permission") == "refused":
            # Nobody was asked. What the agent's model reads says how to allow the call.
            content = result_text(raw)
        plan = get_text(get_mapping(update, "rawInput"), "plan").strip()
        return ToolCall(
            call_id,
            get_text(update, "title") or None,
            get_text(update, "kind") or None,
            get_text(update, "status") or None,
            _locations(update["locations"]) if isinstance(update.get("locations"), list) else None,
            command_of(given) if given is not None else None,
            # Our agent names the command that called this gate. The gate's result is in that command's output.
            bool(get_text(ours, "via")),
            tuple(_children(call_id, ours)),
            changes,
            get_text(get_mapping(meta, "terminal_output"), "data"),
            content,
            _styled(raw, ours),
            (plan if self._said[1].rstrip().endswith(plan) else "") if given is not None else None,
            result_text(raw) if raw is not None else None,
            get_int(ended, "exit_code") if ended else exit_code_of(raw),
            get_text(ended, "signal") or None,
        )

    def _turn(self, turn: Mapping[str, Any]) -> Note:
        """The end of a turn of our own agent: its number, its duration without the waiting for the user, usage and id."""
        waited, self._waited = waited_seconds() - self._waited, waited_seconds()
        seconds = max((get_int(turn, "ms") or 0) / 1000 - waited, 0.0)
        words = usage_of(get_mapping(turn, "usage")).words()
        return Note(self._dot.join((f"turn {turn.get('number')}", duration(seconds), *words, get_text(turn, "id"))))

    def _compaction(self, update: Mapping[str, Any]) -> list[Item]:
        """Translate the update of a compaction. It is shown once, at its end; the summary may come earlier."""
        if "summary" in update:
            self._keep_summary(update, lambda _: "\n\n".join(map(content_text, get_list(update, "summary"))))
        status = get_text(update, "status")
        if status not in ("completed", "failed", "cancelled"):
            return []
        summary = self._summaries.pop(get_text(update, "compactionId"), "").strip()
        error = get_text(update, "error") or get_text(get_mapping(update, "error"), "message")
        return [Compaction(status, summary, clean_line(error))]

    def _keep_summary(self, update: Mapping[str, Any], change: Callable[[str], str]) -> None:
        key = get_text(update, "compactionId")
        if key not in self._summaries and len(self._summaries) >= _MOST_COMPACTIONS:
            del self._summaries[next(iter(self._summaries))]
        self._summaries[key] = change(self._summaries.get(key, ""))[:_LONGEST_SUMMARY]


def _content(update: Mapping[str, Any], ours: Mapping[str, Any]) -> tuple[tuple[FileChange, ...], str | None]:
    """The changes and the text in the content of a call. The text is None if the update has no content."""
    items = update.get("content")
    if not isinstance(items, list):
        return (), None
    changes, words = [], []
    # The first item summarizes the children, whose actions are shown separately.
    for item in items[1:] if "children" in ours else items:
        if not isinstance(item, Mapping):
            continue
        if get_text(item, "type") == "diff":
            old = item.get("oldText")
            changes.append(
                FileChange(get_text(item, "path"), old if isinstance(old, str) else None, get_text(item, "newText"))
            )
        elif get_text(item, "type") == "content":
            block = get_mapping(item, "content")
            kind = " ".join(filter(None, (get_text(block, "type"), get_text(block, "mimeType"))))
            words.append(get_text(block, "text") or (f"[{kind}]" if block else ""))
    return tuple(changes), _without_fence("\n".join(words))


def _styled(raw: object, ours: Mapping[str, Any]) -> Styled | None:
    """The whole output in ``rawOutput``, in the colours that our own agent gives for it."""
    styles = tuple(
        (each[0], each[1])
        for each in get_list(ours, "styles")
        if isinstance(each, list) and list(map(type, each)) == [int, str]
    )
    return Styled(get_text(raw, "output"), styles) if isinstance(raw, Mapping) and styles else None


def _locations(locations: list[Any]) -> tuple[tuple[str, int | None], ...]:
    found = ((get_text(each, "path"), get_int(each, "line")) for each in locations if isinstance(each, Mapping))
    return tuple((path, line) for path, line in found if path)


def _children(call_id: str, ours: Mapping[str, Any]) -> list[ChildAction]:
    """The actions of a call's children since the last update, from our own agent's `_meta.cantrip.children`."""
    actions = []
    for each in get_list(ours, "children"):
        if isinstance(each, Mapping) and each.get("kind") in _CHILD_KINDS:
            number, kind = get_text(each, "number"), cast("ChildActionKind", each["kind"])
            actions.append(ChildAction(call_id, number[:40], kind, get_text(each, "text")))
    return actions


def content_text(content: object) -> str:
    """A content block as text. Content that is not text is shown by its name or kind and size."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Mapping):
        return ""
    kind = get_text(content, "type")
    if kind == "text":
        return get_text(content, "text")
    if kind == "resource_link":
        return f"[{get_text(content, 'title') or get_text(content, 'name')}]({get_text(content, 'uri')})"
    if kind == "resource":
        return f"[{get_text(get_mapping(content, 'resource'), 'uri')}]"
    size = len(get_text(content, "data")) * 3 // 4
    return f"[{kind or 'content'} {get_text(content, 'mimeType')}, {size:,} bytes]"


def _without_fence(text: str) -> str:
    """Output without the Markdown code fence that some agents put around it."""
    match = _FENCE.match(text)
    return match["body"] if match else text
