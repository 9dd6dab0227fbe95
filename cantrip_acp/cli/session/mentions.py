"""``@path`` in what a user types: finds the files that are meant, and completes their names."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from cantrip_acp.acp.sessions.prompt.prompt_content import Link

_MENTION = re.compile(r'(?:^|(?<=\s))@(?:"(?P<quoted>[^"\n]+)"|(?P<plain>[^\s"]+))')
_LINES = re.compile(r"#L?\d+(?:[-:]L?\d+)?\Z")
_AFTER = ".,;:!?)]}'"
"""Signs of a sentence that may follow a path."""
_MOST = 200
"""The most names that are offered for completion."""


def mentioned(text: str, workspace: Path) -> tuple[list[Link], list[str]]:
    """The files, folders and lines (``@src/app.py#L10-20``) that a text mentions as links, and notes about those that do not
    exist. A word such as ``@property`` is no mention. Whether a link may be read is decided when it is read."""
    found, notes = _mentions(text, workspace)
    return list({link.uri: link for _, _, link in found}.values()), notes


def prompt_blocks(text: str, workspace: Path) -> tuple[list[dict[str, str]], list[str]]:
    """A text as the content of a prompt (ACP), with a link in the place of each mention; and the notes of `mentioned`."""
    found, notes = _mentions(text, workspace)
    blocks: list[dict[str, str]] = []
    at = 0
    for start, end, link in found:
        if start > at:
            blocks.append({"type": "text", "text": text[at:start]})
        blocks.append({"type": "resource_link", "name": link.name, "uri": link.uri})
        at = end
    if at < len(text) or not blocks:
        blocks.append({"type": "text", "text": text[at:]})
    return blocks, notes


def _mentions(text: str, workspace: Path) -> tuple[list[tuple[int, int, Link]], list[str]]:
    """The mentions of existing files, each with its place in the text, and notes about missing ones."""
    links: list[tuple[int, int, Link]] = []
    notes = []
    for found in _MENTION.finditer(text):
        quoted, plain = found["quoted"], found["plain"]
        name, end = quoted or plain, found.end()
        if (path := _existing(name, workspace)) is None and plain is not None:
            name = plain.rstrip(_AFTER)
            end -= len(plain) - len(name)
            path = _existing(name, workspace)
        if path is not None:
            lines = _LINES.search(name) if not (workspace / name).exists() else None
            uri = path.as_uri() + (lines[0] if lines is not None else "")
            links.append((found.start(), end, Link(name, uri)))
        elif quoted is not None or "/" in name or "." in name.strip("."):
            notes.append(f"there is no file {name!r} in {workspace}, so nothing is attached for it")
    return links, notes


def _existing(name: str, workspace: Path) -> Path | None:
    for each in (name, _LINES.sub("", name)):
        path = Path(os.path.normpath(workspace / Path(each).expanduser())) if each else None
        try:
            if path is not None and path.exists():
                return path
        except (OSError, ValueError):
            continue
    return None


def complete_path(typed: str, workspace: Path) -> Iterator[str]:
    """The paths below the workspace that begin with what was typed after ``@``. A folder ends in a slash."""
    folder, _, start = typed.rpartition("/")
    where = Path(os.path.normpath(workspace / folder))
    if not where.is_relative_to(workspace):
        return
    try:
        entries = sorted(os.scandir(where), key=lambda entry: entry.name)
    except OSError:
        return
    shown = [each for each in entries if each.name.startswith(start) and (start or not each.name.startswith("."))]
    for entry in shown[:_MOST]:
        yield f"{folder}/{entry.name}".lstrip("/" if not folder else "") + ("/" if entry.is_dir() else "")
