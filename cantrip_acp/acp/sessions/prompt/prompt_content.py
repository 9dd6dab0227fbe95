"""Prompt content: turns the content blocks of a prompt into an intent and context (ACP, Content).

Text becomes the intent. A link stays in the intent as ``[@name](uri)``, and the content of the file goes before the
intent as a context block. An embedded resource is handled in the same way. This content is only data for the crystal.
Images, audio and other binary resources become attachments. A crystal that does not support one gets a note instead.

`read_prompt` parses the blocks, and `read_links` reads the linked files. Each link is read once, before the cast, and
its content is recorded with the cast. Links are read with the gates of the session: only below the session's folders, and
through the client if it offers its files. If a link cannot be read, its block has a note with the reason. Sizes are
limited, and a note says what was left out.
"""

from __future__ import annotations

import base64
import binascii
import inspect
import os
import re
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import anyio.to_thread
from msgspec.structs import replace

from cantrip_acp.acp.protocol import Audio, ContentBlock, Image, Prompt, Resource, ResourceLink, Text
from cantrip_acp.acp.wire.jsonrpc import invalid_params
from cantrip_acp.gates.confinement import Root
from cantrip_acp.gates.contract import GateContext, GateInvocation, GateReply
from cantrip_acp.telemetry import tracing
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import CantripError, GateError
from cantrip_acp.types.messages import Attachment

if TYPE_CHECKING:
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.confinement import PathHandle
    from cantrip_acp.gates.contract import Gate

    Route = Callable[[GateInvocation], GateInvocation]

MAX_TEXT = 262_144
"""Characters of an embedded resource that are included."""
MAX_URI = 65_536
"""Characters of the longest accepted URI. The intent holds the whole URI."""
MAX_ATTACHMENT = 20_971_520
"""Bytes of one attachment."""
_MAX_NAME = 1_000

_FILE_SIGNATURES = (
    (b"\x89PNG\r\n\x1a\n", 0, "image/png"),
    (b"\xff\xd8\xff", 0, "image/jpeg"),
    (b"GIF8", 0, "image/gif"),
    (b"WEBP", 8, "image/webp"),
    (b"WAVE", 8, "audio/wav"),
    (b"ID3", 0, "audio/mpeg"),
    (b"%PDF-", 0, "application/pdf"),
)

_USUAL = {"image": "image/png", "audio": "audio/wav"}

_MIME = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]*/[a-z0-9][a-z0-9!#$&^_.+-]*\Z")


def media_of(head: bytes) -> str | None:
    """The media type of data, by its first bytes. None if it is unknown."""
    return next((mime for sign, at, mime in _FILE_SIGNATURES if head[at : at + len(sign)] == sign), None)


@dataclass(frozen=True, slots=True)
class Link:
    """A resource link of a prompt. ``description`` is the client's title and description of it."""

    name: str
    uri: str
    description: str = ""


def read_prompt(blocks: Sequence[ContentBlock]) -> tuple[str, tuple[ContextBlock | Link, ...]]:
    """Return the intent and the context of a prompt. Links are not read yet (`read_links` does that).

    Raises `RpcError` -32602 for an empty prompt, for data that is not base64, and for a wrong media type.
    """
    parts: list[str] = []
    context: list[ContextBlock | Link] = []
    has_text = seen = False
    before: ContentBlock | None = None
    for index, block in enumerate(blocks):
        place = f"prompt[{index}]"
        if isinstance(block, Text):
            if isinstance(before, Text):
                parts.append("\n")
            elif parts and block.text[:1].isalnum():
                parts.append(" ")
            parts.append(block.text)
            has_text = has_text or bool(block.text.strip())
        elif isinstance(block, ResourceLink):
            _check_uri(block.uri, f"{place}.uri")
            parts.append(_apart(parts) + _link_markdown(block.name, block.uri))
            description = [value for value in (block.title, block.description) if isinstance(value, str) and value]
            context.append(Link(_limit_name(block.name), block.uri, _limit_text("\n".join(description))))
        elif isinstance(block, Resource):
            _check_uri(block.resource.uri, f"{place}.resource.uri")
            name = _name(block.resource.uri)
            parts.append(_apart(parts) + _link_markdown(name, block.resource.uri))
            context.append(_resource_block(block, name, place))
        else:
            context.append(_media_block(block, place))
            seen = True
        before = block
    intent = "".join(parts)
    if seen and not has_text:
        # A prompt may be only a pasted image or file, without text. Then the attachment is the question.
        intent = f"{intent} See what is attached.".lstrip()
    if not intent.strip():
        raise invalid_params("intent is required: the prompt contains no text", "prompt")
    return intent, tuple(context)


class PromptRequest(NamedTuple):
    """What ``session/prompt`` asks for. Without an intent the last cast continues."""

    intent: str | None
    context: tuple[ContextBlock | Link, ...]
    trace: tracing.Trace


def read_request(params: Prompt, trace: tracing.Trace | None, session_id: str) -> PromptRequest:
    """Read a prompt. ``trace`` is the session's, for a prompt without one. Raises `RpcError` for content of the wrong shape."""
    intent, context = read_prompt(params.prompt) if params.prompt else (None, ())
    found = tracing.trace_from(params.meta, default=trace)
    return PromptRequest(intent, context, replace(found, conversation=session_id))


def _limit_text(text: str) -> str:
    if len(text) <= MAX_TEXT:
        return text
    return f"{text[:MAX_TEXT]}\n[cut: {len(text) - MAX_TEXT:,} more characters of this resource are not shown]"


def _check_uri(uri: str, place: str) -> None:
    if len(uri) > MAX_URI:
        raise invalid_params(f"longer than {MAX_URI:,} characters", place)


def _apart(parts: Sequence[str]) -> str:
    """Add a space before a link that would otherwise touch the text or link before it."""
    return "" if not parts or parts[-1][-1:].isspace() or parts[-1][-1:] in ("", "(", '"') else " "


def _link_markdown(name: str, uri: str) -> str:
    return f"[@{_limit_name(name)}]({uri})"


def _name(uri: str) -> str:
    return _limit_name(uri.rstrip("/").rpartition("/")[2] or uri)


def _limit_name(name: str) -> str:
    return name if len(name) <= _MAX_NAME else f"{name[:_MAX_NAME]}…"


def _media_block(block: Image | Audio, place: str) -> ContextBlock:
    kind = "image" if isinstance(block, Image) else "audio"
    uri = block.uri if isinstance(block, Image) and isinstance(block.uri, str) and block.uri else None
    return _attachment(kind, block.mime_type, block.data, uri, f"{place}.data", place)


def _resource_block(block: Resource, name: str, place: str) -> ContextBlock:
    """Make a context block of an embedded resource: with its text, or else with an attachment."""
    resource = block.resource
    if resource.text is not None:
        return ContextBlock(_limit_text(resource.text), title=name, uri=resource.uri)
    if resource.blob is None:
        raise invalid_params("a resource must have a text or a blob", f"{place}.resource")
    mime = resource.mime_type if isinstance(resource.mime_type, str) and resource.mime_type else ""
    family = mime.lower().partition("/")[0]
    if family not in ("image", "audio") and mime.lower() != "application/pdf":
        try:
            text = base64.b64decode(resource.blob, validate=True).decode()
            return ContextBlock(_limit_text(text), title=name, uri=resource.uri)
        except binascii.Error:
            raise _not_base64(f"{place}.resource.blob") from None
        except ValueError:
            pass
    kind = family if family in ("image", "audio") else "document"
    where = f"{place}.resource"
    return _attachment(kind, mime or "application/octet-stream", resource.blob, resource.uri, f"{where}.blob", where)


def _attachment(kind: Any, mime: str, data: str, uri: str | None, where: str, place: str) -> ContextBlock:
    mime = mime.strip().lower().partition(";")[0].rstrip()
    if not _MIME.match(mime):
        raise invalid_params("must be a media type such as image/png", f"{place}.mimeType")
    try:
        decoded = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _not_base64(where) from None
    size = len(decoded)
    if not size:
        raise invalid_params("holds no data", where)
    # Providers refuse an image whose bytes do not match its media type.
    seen = media_of(decoded[:16])
    if seen is None and kind != "document" and not mime.startswith(f"{kind}/"):
        raise invalid_params(f"must be a media type of {kind}, such as {_USUAL[kind]}, not {mime}", f"{place}.mimeType")
    mime = seen or mime
    title = _name(uri) if uri else ""
    if size > MAX_ATTACHMENT:
        what = f"{kind} ({mime}, {size:,} bytes)"
        return ContextBlock(
            f"[Left out: {'a' if kind == 'document' else 'an'} {what}, larger than the limit of {MAX_ATTACHMENT:,} bytes]",
            title,
            uri=uri,
        )
    return ContextBlock(title=title, uri=uri, attachment=Attachment.of(mime, data, uri, title))


def _not_base64(where: str) -> Exception:
    return invalid_params("is not base64", where)


# --- Links: parse the URI of a file, of some lines of it, of a folder, or of a git diff. Other URIs are not read.
#
# Editors write line numbers in many ways (``#L10``, ``#L10-20``, ``#L10:20``, ``#L10-L20``, ``#L10C5-L20C3``), and some have
# their own schemes (``zed:///agent/file?path=…``).

_LINK_LINES = re.compile(r"#?L?(\d{1,9})(?:C\d{1,9})?(?:\s*[-:,]\s*L?(\d{1,9})(?:C\d{1,9})?)?\Z")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
MAX_LINK = 8_192
"""Characters of the longest URI that is parsed as a link."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of a link: a file, some of its lines, a folder or a git diff.

    ``path`` is absolute or relative to the session's folder. ``first`` and ``last`` are line numbers from 1. With
    ``diff`` it is the diff from the commit ``base`` (None means the last commit), only below ``path`` if that is set.
    """

    path: str = ""
    first: int | None = None
    last: int | None = None
    symbol: str = ""
    diff: bool = False
    base: str | None = None


def parse_link(uri: str) -> Target | None:
    """Parse a URI. None if it is neither a file nor a diff, such as ``https:``."""
    if len(uri) > MAX_LINK or "\0" in uri:
        return None
    if not _SCHEME.match(uri):
        path, _, fragment = uri.partition("#")
        return _file_target(unquote(path), fragment, "") if path else None
    try:
        parts = urlsplit(uri)
        query = {name: values[0] for name, values in parse_qs(parts.query, max_num_fields=20).items()}
    except ValueError:
        return None
    kind = parts.path.rstrip("/").rpartition("/")[2]
    if parts.scheme in ("git-diff", "git+diff") or (
        parts.scheme not in ("file", "http", "https") and kind == "git-diff"
    ):
        return Target(path=query.get("path", ""), diff=True, base=query.get("base") or query.get("ref"))
    if parts.scheme == "file":
        if parts.netloc not in ("", "localhost"):
            return None
        return _file_target(unquote(parts.path), parts.fragment, query.get("symbol", ""))
    if parts.scheme not in ("http", "https") and query.get("path") and "/agent/" in f"/{parts.netloc}{parts.path}":
        symbol = unquote(kind) if "/symbol/" in parts.path else query.get("symbol", "")
        return _file_target(query["path"], parts.fragment, symbol)
    return None


def _file_target(path: str, fragment: str, symbol: str) -> Target | None:
    if not path:
        return None
    lines = _LINK_LINES.match(fragment)
    if lines is None or not int(lines[1]):
        return Target(path, symbol=symbol)
    first, last = int(lines[1]), int(lines[2] or lines[1])
    return Target(path, min(first, last) or 1, max(first, last), symbol)


MAX_FILE = 65_536
"""Bytes of one linked file that are included. The entity can read the rest with `read_file`."""
MAX_ALL_LINKS = 262_144
"""Characters that are included from all links of a prompt together."""
MAX_LINKS = 64
MAX_LINKED_ATTACHMENT = 5_242_880
"""Bytes of the largest image, audio file or document that a link may attach."""

_MAX_ENTRIES = 300


async def read_links(
    entity: Entity,
    route: Route | None,
    context: Sequence[ContextBlock | Link],
    unread: Callable[[Link, str], None] = lambda link, why: None,
) -> tuple[ContextBlock, ...]:
    """Read every link in the context of a prompt. Of a link that cannot be parsed only the client's description is kept.

    ``route`` redirects gate calls to the client (`client_services.gate_router`). ``unread`` is called for each link that
    cannot be read, with the reason.
    """
    blocks: list[ContextBlock] = []
    seen: set[str] = set()
    left = MAX_ALL_LINKS
    reader = _Reader(entity, route)
    for part in context:
        if not isinstance(part, Link):
            blocks.append(part)
            continue
        target = parse_link(part.uri)
        if target is None or part.uri in seen:
            if part.description:
                blocks.append(ContextBlock(part.description, title=part.name, uri=part.uri))
            continue
        if left <= 0 or len(seen) >= MAX_LINKS:
            why = "not shown here: this prompt has more pinned to it than there is room for"
            unread(part, why)
            blocks.append(_unread_block(part, why))
            continue
        seen.add(part.uri)
        block = await _read_link(reader, part, target, unread)
        left -= len(block.text)
        blocks.append(block)
    return tuple(blocks)


async def _read_link(reader: _Reader, link: Link, target: Target, unread: Callable[[Link, str], None]) -> ContextBlock:
    why = ""
    try:
        found = await reader.read(target)
    except (GateError, CantripError) as problem:
        why = str(problem)
    except OSError as problem:
        why = f"cannot be read: {problem.strerror or problem}"
    if why:
        unread(link, why)
        return _unread_block(link, why)
    if isinstance(found, bytes):
        mime = media_of(found)
        assert mime is not None
        data = base64.b64encode(found).decode()
        return ContextBlock(title=link.name, uri=link.uri, attachment=Attachment.of(mime, data, link.uri, link.name))
    # An empty block would look like an error.
    found = found or "[there is nothing in it]"
    text = f"{link.description}\n{found}" if link.description else found
    return ContextBlock(text, title=_link_title(link, target), uri=link.uri)


def _unread_block(link: Link, why: str) -> ContextBlock:
    text = f"[{why}]"
    return ContextBlock(f"{link.description}\n{text}" if link.description else text, title=link.name, uri=link.uri)


def _link_title(link: Link, target: Target) -> str:
    if target.diff:
        return f"{link.name}: what differs from {target.base or 'the last commit'}"
    if target.first is None:
        return link.name
    lines = f"line {target.first}" if target.first == target.last else f"lines {target.first} to {target.last}"
    return f"{link.name}: {target.symbol + ', ' if target.symbol else ''}{lines}"


class _Reader:
    """Reads the targets of links with the same gates and rules as the session's entity."""

    def __init__(self, entity: Entity, route: Route | None) -> None:
        self._route = route
        circle = entity.circle
        workspace = circle.workspace
        self._context = GateContext({}, circle.wards, workspace, entity.id, "", "", "link", circle.folders)

    async def read(self, target: Target) -> str | bytes:
        """Read a target. Returns text, or the bytes of an attachment."""
        if target.diff:
            from cantrip_acp.gates.git.git_read import GIT_DIFF

            named = {"base": target.base, "path": target.path}
            return await self._call_gate(GIT_DIFF, {name: value for name, value in named.items() if value})
        attached = await anyio.to_thread.run_sync(self._kind, target.path)
        if isinstance(attached, bytes):
            return attached
        if attached == "folder":
            from cantrip_acp.gates.files.list_dir import LIST_DIR

            return await self._call_gate(LIST_DIR, {"path": target.path, "depth": 2}, max_entries=_MAX_ENTRIES)
        from cantrip_acp.gates.files.read_file import READ_FILE

        args: dict[str, Any] = {"path": target.path}
        if target.first is not None and target.last is not None:
            args |= {"offset": target.first, "limit": target.last - target.first + 1}
        return await self._call_gate(READ_FILE, args, max_bytes=MAX_FILE)

    def _kind(self, path: str) -> str | bytes:
        """Returns ``folder``, the bytes of an attachment, or ``file`` for everything else, including missing files."""
        with Root.of(self._context).find(path) as place:
            if place.status is not None and stat.S_ISDIR(place.status.st_mode):
                return "folder"
            if place.status is None or not stat.S_ISREG(place.status.st_mode):
                return "file"
            return _attachment_file(place) or "file"

    async def _call_gate(self, gate: Gate, args: Mapping[str, Any], **bound: Any) -> str:
        context = self._context
        gate = gate.bind(**bound)
        context = GateContext(
            gate.dependencies, context.wards, context.workspace, context.entity_id, "", "", "link", context.folders
        )
        invocation = GateInvocation(gate, args, "link", None, context)
        if self._route is not None:
            invocation = self._route(invocation)
        handler, blocking = invocation.gate.handler, invocation.gate.blocking
        if blocking:
            reply = await anyio.to_thread.run_sync(handler, args, context, abandon_on_cancel=True)
        else:
            reply = handler(args, context)
        if inspect.isawaitable(reply):
            reply = await reply
        result = reply.result if isinstance(reply, GateReply) else reply
        if isinstance(result, list):
            return "\n".join(map(str, result))
        return result if isinstance(result, str) else str(result)


def _attachment_file(place: PathHandle) -> bytes | None:
    """The content of an image, an audio file or a PDF. None for other files. Raises `GateError` if it is too large."""
    descriptor, status = place.open_file()
    with os.fdopen(descriptor, "rb") as file:
        head = file.read(16)
        if media_of(head) is None:
            return None
        if status.st_size > MAX_LINKED_ATTACHMENT:
            raise GateError(
                f"{place.shown!r} has {status.st_size:,} bytes; a link attaches at most {MAX_LINKED_ATTACHMENT:,} bytes"
            )
        return head + file.read(MAX_LINKED_ATTACHMENT)
