"""Formatting for an editor: titles on one line, results and outputs as content of tool calls, all of limited size."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.types.events import QUESTION

if TYPE_CHECKING:
    from cantrip_acp.types import events
    from cantrip_acp.types.messages import Attachment

CONTENT_LIMIT = 32 * 1024
"""Characters of a result or an output that are sent as content. ``rawOutput`` and the loom hold more."""

TITLE_LIMIT = 160

_MAX_COMPARED_PAIRS = 1_000_000
"""The largest number of line pairs that are compared to count changed lines."""

ASKED_IN_CHAT = "Asked in the chat."

STOPPED = "[stopped before it had ended]"
"""The content of a call that was stopped without output."""

_FENCED_KINDS = frozenset({"read", "search", "execute", "fetch"})


def headline(text: str) -> str:
    """The first line of a text, with limited length. Some clients cut a title at ``: ``, so the colon is replaced.

    >>> headline("Read note: a.txt")
    'Read note – a.txt'
    """
    first, _, more = text.strip().partition("\n")
    first = " ".join(first.split()).replace(": ", " – ")
    if more.strip() or len(first) > TITLE_LIMIT:
        return first[:TITLE_LIMIT].rstrip() + " …"
    return first or "(empty)"


def title_with_counts(title: str, diffs: Sequence[events.Diff]) -> str:
    """The title of a file change with the number of added and removed lines.

    >>> from cantrip_acp.types.events import Diff
    >>> title_with_counts("Edit greet.py", [Diff("/w/greet.py", "a\\nb\\n", "a\\nc\\n")])
    'Edit greet.py (+1 −1)'
    """
    if not diffs:
        return headline(title)
    added = removed = 0
    for diff in diffs:
        more, fewer = _changed_lines((diff.old_text or "").splitlines(), diff.new_text.splitlines())
        added, removed = added + more, removed + fewer
    new = "new, " if all(diff.old_text is None for diff in diffs) else ""
    fewer_lines = "" if new else f" −{removed}"
    return f"{headline(title)} ({new}+{added}{fewer_lines})"


def _changed_lines(old: list[str], new: list[str]) -> tuple[int, int]:
    """The numbers of added and removed lines. In long texts, all lines from the first to the last difference count."""
    start = 0
    while start < min(len(old), len(new)) and old[start] == new[start]:
        start += 1
    end = 0
    while end < min(len(old), len(new)) - start and old[-1 - end] == new[-1 - end]:
        end += 1
    old, new = old[start : len(old) - end], new[start : len(new) - end]
    if len(old) * len(new) > _MAX_COMPARED_PAIRS:
        return len(new), len(old)
    from difflib import SequenceMatcher

    unchanged = sum(block.size for block in SequenceMatcher(None, old, new, autojunk=False).get_matching_blocks())
    return len(new) - unchanged, len(old) - unchanged


def file_locations(locations: tuple[events.Location, ...]) -> list[acp.Location] | None:
    """The files of a call. Folders are left out, because clients open every location as a file."""
    return [acp.Location(place.path, place.line) for place in locations if not os.path.isdir(place.path)] or None


def raw_output(value: Any) -> dict[str, Any] | None:
    """Wrap a result into an object, because clients with an older schema require an object.

    >>> raw_output("text"), raw_output({"exit_code": 0})
    ({'output': 'text'}, {'exit_code': 0})
    """
    if value is None:
        return None
    return value if isinstance(value, dict) and value.keys() != {"output"} else {"output": value}


_JOINED = (acp.AgentMessageChunk, acp.AgentThoughtChunk)
"""Updates whose text clients join."""


class MessageSeparator:
    """Adds a blank line at the start of the second message of a turn, and of each later one.

    Clients join the pieces of a message by its id. Without the blank line, a client that ignores the id would show the
    second message directly after the first.
    """

    def __init__(self) -> None:
        self.last: dict[type[acp.Update], tuple[str | None, int]] = {}
        """By kind of update: the id of the last message, and the number of line ends at its end. Clear it when a turn starts."""

    def separate(self, update: acp.Update) -> acp.Update:
        """Return the update to send: the given one, or a copy with a blank line at its start."""
        kind = type(update)
        if kind is acp.UserMessageChunk:
            self.last.clear()
        if not isinstance(update, _JOINED) or not update.content.text:
            return update
        text = update.content.text
        last, ends = self.last.get(kind, (update.message_id, 0))
        if last != update.message_id:
            text = "\n" * max(2 - ends, 0) + text.lstrip("\n")
        at_end = len(text) - len(text.rstrip("\n"))
        self.last[kind] = update.message_id, at_end if at_end < len(text) else ends + at_end
        if not text or text == update.content.text:
            return update
        return msgspec.structs.replace(update, content=acp.TextContent(text))


def text_content(text: str) -> acp.Content:
    return acp.Content(acp.TextContent(text))


def image_content(attachments: Sequence[Attachment]) -> list[acp.ToolContent]:
    """A result's attachments as ACP image content."""
    return [acp.Content(acp.ImageContent(each.data, each.mime, each.uri)) for each in attachments]


def truncate_end(text: str) -> str:
    if len(text) <= CONTENT_LIMIT:
        return text
    return f"{text[:CONTENT_LIMIT]}\n[{len(text) - CONTENT_LIMIT} more characters are not shown]"


def code_block(text: str, language: str = "") -> str:
    """The text as a Markdown code block. Clients render content as Markdown, but files and outputs are not Markdown."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def result_content(value: Any, kind: str, *, failed: bool) -> list[acp.ToolContent]:
    """The result of a gate as content. Empty if there is no result."""
    text = truncate_end(value if isinstance(value, str) else pretty_json(value))
    if not text:
        return []
    return [text_content(code_block(text) if kind in _FENCED_KINDS and not failed else text)]


def failure_text(text: str, annotations: Mapping[str, Any]) -> str:
    """The text of a failure for people: from the annotations, or else ``text``, which was written for the model."""
    text_for_people = annotations.get("error")
    return text_for_people if isinstance(text_for_people, str) else STOPPED if annotations.get("stopped") else text


def call_meta(annotations: Mapping[str, Any], **more: Any) -> dict[str, Any] | None:
    """The ``_meta`` of a tool call. It says if the call was not allowed or was stopped, and how a question ended."""
    found = {key: annotations[key] for key in ("permission", "stopped", QUESTION) if key in annotations}
    found |= {key: value for key, value in more.items() if value}
    return {"cantrip": found} if found else None


def pretty_json(value: Any) -> str:
    return "" if value is None else json.dumps(value, ensure_ascii=False, indent=2, default=str)
