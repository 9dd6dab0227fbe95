"""Prompt links: reads what the links of a prompt lead to, as context blocks (ACP, Content).

Each link is read once, before the cast, and recorded with it. The rules are those of the gates: only the session's
folders, and through the client where it offers its files. A link that cannot be read gives a note in its block and
does not fail the prompt. Sizes are limited, and a note says what was left out.
"""

from __future__ import annotations

import base64
import inspect
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit

import anyio.to_thread

from cantrip_acp.acp.sessions.prompt_content import Link, media_of
from cantrip_acp.core.context_block import ContextBlock
from cantrip_acp.core.errors import CantripError, GateError
from cantrip_acp.crystals.contract import Attachment
from cantrip_acp.gates.confinement import Root
from cantrip_acp.gates.contract import GateContext, GateInvocation

if TYPE_CHECKING:
    from cantrip_acp.acp.sessions.session import Session
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.gates.path_handle import Place


# --- Parse a link: a file or some of its lines, a folder, a git diff, or something else that is not read.
#
# Editors write lines in many ways (``#L10``, ``#L10-20``, ``#L10:20``, ``#L10-L20``, ``#L10C5-L20C3``), and put their
# own schemes around paths (``zed:///agent/file?path=…``). This part reads no files.

_LINES = re.compile(r"#?L?(\d{1,9})(?:C\d{1,9})?(?:\s*[-:,]\s*L?(\d{1,9})(?:C\d{1,9})?)?\Z")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_LONGEST = 8_192
"""Characters of a URI; a longer one is not parsed."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a link. ``path`` is as written, absolute or relative to the session's folder; lines count from 1.

    With ``diff`` it is the diff from the commit ``base`` (None: the last one), below ``path`` if that is set.
    """

    path: str = ""
    first: int | None = None
    last: int | None = None
    symbol: str = ""
    diff: bool = False
    base: str | None = None


def target_of(uri: str) -> Target | None:
    """Parse a URI; None where it is neither a file nor a diff (``https:`` and the like)."""
    if len(uri) > _LONGEST or "\0" in uri:
        return None
    if not _SCHEME.match(uri):
        path, _, fragment = uri.partition("#")
        return _file(unquote(path), fragment, "") if path else None
    try:
        parts = urlsplit(uri)
        asked = {name: values[0] for name, values in parse_qs(parts.query, max_num_fields=20).items()}
    except ValueError:
        return None
    kind = parts.path.rstrip("/").rpartition("/")[2]
    if parts.scheme in ("git-diff", "git+diff") or (
        parts.scheme not in ("file", "http", "https") and kind == "git-diff"
    ):
        return Target(path=asked.get("path", ""), diff=True, base=asked.get("base") or asked.get("ref"))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            return None
        return _file(unquote(parts.path), parts.fragment, asked.get("symbol", ""))
    if parts.scheme not in ("http", "https") and asked.get("path") and "/agent/" in f"/{parts.netloc}{parts.path}":
        symbol = unquote(kind) if "/symbol/" in parts.path else asked.get("symbol", "")
        return _file(asked["path"], parts.fragment, symbol)
    return None


def _file(path: str, fragment: str, symbol: str) -> Target | None:
    if not path:
        return None
    lines = _LINES.match(fragment)
    if lines is None or not int(lines[1]):
        return Target(path, symbol=symbol)
    first, last = int(lines[1]), int(lines[2] or lines[1])
    return Target(path, min(first, last) or 1, max(first, last), symbol)


MOST = 65_536
"""Bytes of one file that are included; `read_file` can read the rest."""
MOST_TOGETHER = 262_144
"""Characters of all links of a prompt."""
MOST_LINKS = 64
MOST_ATTACHED = 5_242_880
"""Bytes of an image, audio file or document behind a link."""

_ENTRIES = 300


async def pinned(session: Session, context: Sequence[ContextBlock | Link]) -> tuple[ContextBlock, ...]:
    """The context of a prompt with every link read. A link of an unknown kind keeps only its sender's description."""
    blocks: list[ContextBlock] = []
    seen: set[str] = set()
    left = MOST_TOGETHER
    reader = _Reader(session)
    for part in context:
        if not isinstance(part, Link):
            blocks.append(part)
            continue
        target = target_of(part.uri)
        if target is None or part.uri in seen:
            if part.described:
                blocks.append(ContextBlock(part.described, title=part.name, uri=part.uri))
            continue
        if left <= 0 or len(seen) >= MOST_LINKS:
            blocks.append(_named(part, "not shown here: this prompt has more pinned to it than there is room for"))
            continue
        seen.add(part.uri)
        block = await _one(reader, part, target)
        left -= len(block.text)
        blocks.append(block)
    return tuple(blocks)


async def _one(reader: _Reader, link: Link, target: Target) -> ContextBlock:
    try:
        found = await reader.read(target)
    except (GateError, CantripError) as problem:
        return _named(link, str(problem))
    except OSError as problem:
        return _named(link, f"cannot be read: {problem.strerror or problem}")
    if isinstance(found, bytes):
        mime = media_of(found)
        assert mime is not None
        data = base64.b64encode(found).decode()
        return ContextBlock(title=link.name, uri=link.uri, attachment=Attachment.of(mime, data, link.uri, link.name))
    # An empty block would look as if something was lost.
    found = found or "[there is nothing in it]"
    text = f"{link.described}\n{found}" if link.described else found
    return ContextBlock(text, title=_title(link, target), uri=link.uri)


def _named(link: Link, why: str) -> ContextBlock:
    text = f"[{why}]"
    return ContextBlock(f"{link.described}\n{text}" if link.described else text, title=link.name, uri=link.uri)


def _title(link: Link, target: Target) -> str:
    if target.diff:
        return f"{link.name}: what differs from {target.base or 'the last commit'}"
    if target.first is None:
        return link.name
    lines = f"line {target.first}" if target.first == target.last else f"lines {target.first} to {target.last}"
    return f"{link.name}: {target.symbol + ', ' if target.symbol else ''}{lines}"


class _Reader:
    """Reads with the same gates and rules as the session's entity."""

    def __init__(self, session: Session) -> None:
        self._session = session
        entity = session.entity
        circle = entity.circle
        workspace = circle.workspace
        self._context = GateContext({}, circle.wards, workspace, entity.id, "", "", "link", circle.folders)

    async def read(self, target: Target) -> str | bytes:
        """Returns text, or the bytes of an attachment."""
        if target.diff:
            from cantrip_acp.gates.git.git_read import GIT_DIFF

            named = {"base": target.base, "path": target.path}
            return await self._by(GIT_DIFF, {name: value for name, value in named.items() if value})
        attached = await anyio.to_thread.run_sync(self._kind, target.path)
        if isinstance(attached, bytes):
            return attached
        if attached == "folder":
            from cantrip_acp.gates.files.list_dir import LIST_DIR

            return await self._by(LIST_DIR, {"path": target.path, "depth": 2}, max_entries=_ENTRIES)
        from cantrip_acp.gates.files.read_file import READ_FILE

        args: dict[str, Any] = {"path": target.path}
        if target.first is not None and target.last is not None:
            args |= {"offset": target.first, "limit": target.last - target.first + 1}
        return await self._by(READ_FILE, args, max_bytes=MOST)

    def _kind(self, path: str) -> str | bytes:
        """The kind of a path: ``folder``, the bytes of an attachment, or ``file`` for everything else, including errors."""
        with Root.of(self._context).find(path) as place:
            if place.status is not None and stat.S_ISDIR(place.status.st_mode):
                return "folder"
            if place.status is None or not stat.S_ISREG(place.status.st_mode):
                return "file"
            return _attachable(place) or "file"

    async def _by(self, gate: Gate, args: Mapping[str, Any], **bound: Any) -> str:
        context = self._context
        gate = gate.bind(**bound)
        context = GateContext(
            gate.dependencies, context.wards, context.workspace, context.entity_id, "", "", "link", context.folders
        )
        invocation = GateInvocation(gate, args, "link", None, context)
        lend = self._session.permissions.lend
        invocation = lend(invocation) if lend is not None else invocation
        handler, blocking = invocation.gate.handler, invocation.gate.blocking
        if blocking:
            reply = await anyio.to_thread.run_sync(handler, args, context, abandon_on_cancel=True)
        else:
            reply = handler(args, context)
        if inspect.isawaitable(reply):
            reply = await reply
        result = getattr(reply, "result", reply)
        if isinstance(result, list):
            return "\n".join(map(str, result))
        return result if isinstance(result, str) else str(result)


def _attachable(place: Place) -> bytes | None:
    """The content of an image, an audio file or a PDF; None for other files. Raises `GateError` where it is too large."""
    descriptor, status = place.open_file()
    with os.fdopen(descriptor, "rb") as file:
        head = file.read(16)
        if media_of(head) is None:
            return None
        if status.st_size > MOST_ATTACHED:
            raise GateError(
                f"{place.shown!r} has {status.st_size:,} bytes, more than the {MOST_ATTACHED:,} that are attached by a link"
            )
        return head + file.read(MOST_ATTACHED)
