"""Editor files: file gates that read and write through the client, so they see unsaved text (ACP, File System).

The rules of the gates apply first, as on the disk: the path is resolved below the gate's root, and hidden, protected
and binary files are refused. Then the client is asked, with the resolved path. Files outside of the session's folders,
such as the worktree of a fork, are read and written on the disk.

The client is not trusted: the type, the size and the time of its answers are checked. If the client fails, the gate
fails. It does not use the disk instead, because that could overwrite unsaved changes.

A client may read a file with another encoding, drop a byte order mark, change line ends, or show a text that is older than
the disk. So its text is compared with the disk first (`EditorFileGates._present`). A file that is not plain UTF-8 and has
no unsaved changes is read and written on the disk, byte for byte. After a write through the client, the bytes on the disk are
put right if the client saved the text in another form.
"""

from __future__ import annotations

import inspect
import os
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread
import msgspec
from msgspec import structs

from cantrip_acp.acp.wire.connection import Disconnected
from cantrip_acp.acp.wire.jsonrpc import METHOD_NOT_FOUND, RpcError
from cantrip_acp.files.protected_paths import is_git_config
from cantrip_acp.gates.atomic_write import check_writable, replace_file
from cantrip_acp.gates.confinement import Root, one_line
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.files import edit_file, file_content, read_file, write_file
from cantrip_acp.gates.files.edit_file import Replacement, replace_exactly
from cantrip_acp.gates.files.file_content import UTF8, Encoding, image_type, valid_unicode
from cantrip_acp.gates.known_texts import digest
from cantrip_acp.gates.search import search
from cantrip_acp.text.logs import logger
from cantrip_acp.types.errors import GateError

if TYPE_CHECKING:
    from cantrip_acp.acp.wire.connection import Connection
    from cantrip_acp.gates.confinement import PathHandle
    from cantrip_acp.gates.contract import Gate, GateContext, GateInvocation
    from cantrip_acp.types.records import Diff

log = logger(__name__)

READ_SECONDS = 20.0
WRITE_SECONDS = 60.0
"""Seconds that a client may take to answer. A write may wait for a user who reviews the change."""

_MAX_ERROR_TEXT = 300
"""Characters of the client's error text that are passed on."""


class ReadTextFile(msgspec.Struct, rename="camel", omit_defaults=True):
    session_id: str
    path: str
    line: int | None = None
    limit: int | None = None


class TextFile(msgspec.Struct):
    content: str


class WriteTextFile(msgspec.Struct, rename="camel"):
    session_id: str
    path: str
    content: str


class ClientTimeout(GateError):
    """The client did not answer in time."""


class ClientRefused(GateError):
    """The client answered with an error: the file does not exist there, or cannot be read or written."""


class EditorFiles:
    """Sends file requests of one session to its client. ``reads`` and ``writes``: whether the client offers these methods."""

    def __init__(self, connection: Connection, session_id: str, *, reads: bool, writes: bool) -> None:
        self.reads, self.writes = reads, writes
        self._connection = connection
        self._session_id = session_id

    async def read(self, path: str, shown: str, line: int | None = None, limit: int | None = None) -> str | None:
        """Read a file, or ``limit`` lines from ``line`` (counted from 1). Returns None if the client lacks the method.

        ``path`` is absolute. ``shown`` is the entity's name for the file. Raises `ClientRefused` and `ClientTimeout`.
        """
        request = ReadTextFile(self._session_id, path, line, limit)
        answer = await self._ask("fs/read_text_file", request, TextFile, READ_SECONDS, f"reading {shown!r}")
        if answer is None:
            self.reads = False
            return None
        return valid_unicode(str(answer.content))

    async def write(self, path: str, shown: str, content: str) -> bool:
        """Replace the text of a file. Returns False if the client lacks the method. Raises the same errors as `read`."""
        request = WriteTextFile(self._session_id, path, content)
        answer = await self._ask("fs/write_text_file", request, Any, WRITE_SECONDS, f"writing {shown!r}")
        if answer is None:
            self.writes = False
        return answer is not None

    async def _ask(self, method: str, request: Any, shape: Any, seconds: float, doing: str) -> Any:
        """Send a request and return the answer, or None if the client lacks the method although it offered it."""
        try:
            with anyio.fail_after(seconds):
                answer = await self._connection.request(method, request, shape)
        except TimeoutError:
            unsure = (
                ". The file may have been written all the same: read it before you continue"
                if "write" in method
                else ""
            )
            raise ClientTimeout(f"the editor did not answer within {seconds:g} seconds, {doing}{unsure}") from None
        except Disconnected:
            raise ClientTimeout(f"the editor has disconnected, {doing}") from None
        except RpcError as problem:
            if problem.code == METHOD_NOT_FOUND:
                log.warning("the client offered %s but does not have it; the gates now use the disk", method)
                return None
            message = " ".join(problem.message.split())[:_MAX_ERROR_TEXT]
            raise ClientRefused(
                f"the editor refused, {doing}: {message} ({method} failed with {problem.code})"
            ) from None
        return {} if answer is None else answer


_HEAD = 8_192
_MOST_UNSAVED = 64
"""The largest number of unsaved files to remember."""
_MOST_SAVED = 1_000


_OTHER_CODECS = ("gb18030", "shift_jis", "euc-jp", "euc-kr", "big5", "koi8-r", "cp1251", "cp1250", "iso8859-2")
"""Encodings in which an editor may show a file that has no mark."""


@dataclass(frozen=True, slots=True)
class _Present:
    """The present text of a file. ``disk``: it must be read and written on the disk. ``encoding`` is that of the file; None
    if the file is not on the disk. ``stale``: the editor shows an older text."""

    text: str
    disk: bool = False
    encoding: Encoding | None = None
    stale: bool = False

    @property
    def note(self) -> str:
        return "[The editor still shows an older text of this file. This is what is on the disk.]" if self.stale else ""


class EditorFileGates:
    """The file gates of one session. ``folders`` are the session's folders, whose files may be open in the editor.

    ``was_saved`` says whether a file, by its absolute path, had this content on the disk at some time.
    """

    def __init__(
        self,
        buffers: EditorFiles,
        folders: Sequence[str],
        was_saved: Callable[[str, bytes], Awaitable[bool]] | None = None,
    ) -> None:
        self._buffers = buffers
        self._was_saved = was_saved
        self._saved: dict[str, bytes] = {}
        """By path: the digest of the last text that was the same in the editor and on the disk."""
        self._folders = tuple(os.path.realpath(folder) for folder in folders)
        self._unsaved: dict[str, str] = {}
        """By path: the last seen text of a file in the editor that differs from the file on the disk."""
        self._handlers = {
            read_file.READ_FILE.handler: self._read,
            write_file.WRITE_FILE.handler: self._write,
            edit_file.EDIT_FILE.handler: self._edit,
            search.SEARCH.handler: self._search,
        }
        self._proposals = {
            write_file.WRITE_FILE.handler: self._proposed_write,
            edit_file.EDIT_FILE.handler: self._proposed_edit,
        }

    def route(self, invocation: GateInvocation) -> GateInvocation:
        """Redirect a call to the client if its gate is a built-in file gate. Other gates with that name are unchanged."""
        gate = invocation.gate
        handler = self._handlers.get(gate.handler)
        if handler is None or not (self._buffers.reads or self._buffers.writes):
            return invocation
        proposes = self._proposals.get(gate.handler, gate.proposes)
        replaced: Gate = replace(gate, handler=handler, proposes=proposes, blocking=False)
        return replace(invocation, gate=replaced)

    # --- the gates -----------------------------------------------------------------------------------------------------

    async def _read(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        offset, limit = read_file.requested_lines(args)
        with Root.of(context).find(args["path"]) as file:
            if not self._in_session_folders(file):
                return await _disk(read_file.READ_FILE, args, context)
            if file.status is not None and image_type(_head(file)) is not None and not _is_text(file):
                return await _disk(read_file.READ_FILE, args, context)
            _check_text(file)
            cut = offset > 1 or limit is not None
            large = file.status is not None and file.status.st_size > read_file.INLINE
            text = await self._read_from_client(file, offset if offset > 1 else None, limit) if cut and large else None
            before = offset - 1
            note = ""
            if not text or (limit is not None and _lines(text) > limit):
                # The client returned too many lines, or the line does not exist. Read the whole text.
                text, before = await self._read_from_client(file), 0
                if text is not None:
                    self._note_if_unsaved(file, text)
                    present = await self._judge(file, text, write_file.MAX_BYTES)
                    if present.disk:
                        return await _disk(read_file.READ_FILE, args, context)
                    text, note = present.text, present.note
                    if context.known is not None:
                        context.known.saw(file.absolute, text)
            if text is None:
                return await _disk(read_file.READ_FILE, args, context)
            work = partial(read_file.reply_for_text, file, text, context, args, before=before)
            reply = await anyio.to_thread.run_sync(work) if len(text) > read_file.INLINE else work()
            return structs.replace(reply, result=f"{reply.result}\n{note}") if note else reply

    async def _write(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        content = args["content"]
        with Root.of(context).find(args["path"], writing=True) as file:
            if not self._in_session_folders(file):
                return await _disk(write_file.WRITE_FILE, args, context)
            exists = file.status is not None
            _check_write(args, file, context)
            present = await self._present(file, context)
            if present is not None and present.disk:
                return await _disk(write_file.WRITE_FILE, args, context)
            before = present.text if present is not None else None
            if before is not None and before == content:
                return write_file.write_reply("unchanged:", file, content, before, _size(content), "")
            write_file.check_known(file, before, context)
            old = _text_at(file.absolute)
            if not await self._write_to_client(file, content, present, context):
                return await _disk(write_file.WRITE_FILE, args, context)
            if context.known is not None:
                context.known.saw(file.absolute, content)
            verb = "updated" if exists or before is not None else "created"
            return write_file.write_reply(
                verb, file, content, before, _size(content), self._note_if_unsaved(file, content, old)
            )

    async def _edit(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        with Root.of(context).find(args["path"], writing=True) as file:
            if not self._in_session_folders(file):
                return await _disk(edit_file.EDIT_FILE, args, context)
            check_writable(file)
            _check_text(file)
            present = await self._present(file, context, strictly=True)
            if present is None or present.disk:
                return await _disk(edit_file.EDIT_FILE, args, context)
            before = present.text
            replaced = await _replace_text(args, before, file, context)
            old = _text_at(file.absolute)
            if not await self._write_to_client(file, replaced.text, present, context):
                return await _disk(edit_file.EDIT_FILE, args, context)
            if context.known is not None:
                context.known.saw_edit(file.absolute, before, replaced.text)
            note = self._note_if_unsaved(file, replaced.text, old)
            if present.stale:
                note += "; the editor showed an older text than the disk, whose text was edited"
            return edit_file.edit_reply(file, replaced, before, note)

    async def _search(self, args: Mapping[str, Any], context: GateContext) -> GateReply:
        """Search the disk, and add a note that names files with unsaved changes in the editor."""
        reply = await _disk(search.SEARCH, args, context)
        lexical = Root.of(context).lexical(args.get("path", "."))
        differing = [p for p in self._still_unsaved() if lexical is not None and _below(p, lexical)]
        if not differing or not isinstance(reply.result, str):
            return reply
        names = ", ".join(one_line(path.removeprefix(f"{lexical}/")) for path in differing[:10])
        note = f"[only saved text was searched; these files have unsaved changes in the editor, which read_file sees: {names}]"
        return structs.replace(reply, result=f"{reply.result.rstrip()}\n{note}")

    # --- proposed changes --------------------------------------------------------------------------------------------

    async def _proposed_write(self, args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
        with Root.of(context).find(args["path"], writing=True) as file:
            if not self._in_session_folders(file):
                return await _disk_proposes(write_file.WRITE_FILE, args, context)
            _check_write(args, file, context)
            present = await self._present(file, context)
            if present is not None and present.disk:
                return await _disk_proposes(write_file.WRITE_FILE, args, context)
            before = present.text if present is not None else None
            return write_file.diff_for_editor(file, before, args["content"])

    async def _proposed_edit(self, args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
        with Root.of(context).find(args["path"], writing=True) as file:
            check_writable(file)
            if not self._in_session_folders(file):
                return await _disk_proposes(edit_file.EDIT_FILE, args, context)
            _check_text(file)
            present = await self._present(file, context, strictly=True)
            if present is not None and present.disk:
                return await _disk_proposes(edit_file.EDIT_FILE, args, context)
            if present is None or len(present.text) > write_file.MAX_DIFF:
                return ()
            before = present.text
            return write_file.diff_for_editor(file, before, (await _replace_text(args, before, file, context)).text)

    # --- the client's text and the disk ------------------------------------------------------------------------------

    def _in_session_folders(self, file: PathHandle) -> bool:
        if is_git_config((*file.root.inner, *file.parts)):
            # The gate for the disk removes credentials from this file. The editor would show them.
            return False
        real = os.path.realpath(file.root.path)
        path = os.path.join(real, *file.parts)
        return any(_below(path, folder) for folder in self._folders)

    async def _read_from_client(
        self, file: PathHandle, line: int | None = None, limit: int | None = None
    ) -> str | None:
        """Read a file from the client. Returns None if the text must be read from the disk."""
        if not self._buffers.reads:
            return None
        try:
            text = await self._buffers.read(file.absolute, file.shown, line, limit)
        except ClientRefused as refused:
            if file.status is None:
                raise file.no_such("file") from None
            if line is not None or _is_not_utf8(file):
                # Some clients refuse lines after the end of the file: the caller then reads the whole text. What is not
                # UTF-8 they cannot have open.
                return None
            raise refused
        if text == "" and file.status is None:
            # Some clients answer with empty text for a missing file.
            raise file.no_such("file")
        return text

    async def _present(self, file: PathHandle, context: GateContext, *, strictly: bool = False) -> _Present | None:
        """The present text of a file, and where it is to be changed. None if there is no file or if it is not text. For
        ``strictly`` see `_current_text`. Raises `GateError` if the client's text cannot be changed without harm."""
        text, asked = await self._current_text(file, context, strictly=strictly)
        if text is not None and not asked and file.status is not None and _is_not_utf8(file):
            return _Present(text, disk=True)
        largest = int(context.dependencies.get("max_bytes", write_file.MAX_BYTES))
        return None if text is None else await self._judge(file, text, largest)

    async def _judge(self, file: PathHandle, text: str, largest: int) -> _Present:
        data = write_file.read_whole(file, largest) if file.status is not None else None
        decoded = file_content.decode_file(file, data) if data is not None else None
        if decoded is None or data is None:
            return _Present(text)
        saved, encoding = decoded
        plain = encoding == UTF8
        if _same_text(text, saved):
            # The client may have changed line ends.
            self._remember_saved(file, saved)
            if encoding.guess and not text.isascii():
                # Two that read the same letters are sure.
                return _Present(saved, encoding=structs.replace(encoding, guess=False))
            return _Present(saved, not plain, encoding)
        if "\ufffd" in text and "\ufffd" not in saved:
            if _same_text(text, data.decode("utf-8", "replace")):
                return _Present(saved, True, encoding)
            raise GateError(
                f"{file.shown!r} has unsaved changes in the editor, which shows some of its letters as \ufffd because it opened "
                "the file with another encoding; nothing was changed",
                f"Ask for it to be reopened with its encoding (it looks like {encoding.label}), or for the changes to be saved",
            )
        if not plain:
            for codec in _OTHER_CODECS:
                other = Encoding(codec, label=codec)
                try:
                    if _same_text(text, other.decode(data)) and other.encode(other.decode(data)) == data:
                        return _Present(other.decode(data), encoding=other)
                except (UnicodeDecodeError, UnicodeEncodeError):
                    continue
        if await self._is_older(file, text):
            return _Present(saved, not plain, encoding, stale=True)
        return _Present(text, encoding=encoding)

    async def _is_older(self, file: PathHandle, text: str) -> bool:
        """Whether a text that differs from the disk was saved there earlier, so that nobody changed it in the editor."""
        if self._saved.get(file.absolute) == digest(text):
            return True
        if self._was_saved is None:
            return False
        forms = {text, text.replace("\r\n", "\n"), text.replace("\r\n", "\n").replace("\n", "\r\n")}
        return any([await self._was_saved(file.absolute, form.encode("utf-8", "surrogatepass")) for form in forms])

    def _remember_saved(self, file: PathHandle, text: str) -> None:
        self._saved.pop(file.absolute, None)
        self._saved[file.absolute] = digest(text)
        if len(self._saved) > _MOST_SAVED:
            del self._saved[next(iter(self._saved))]

    async def _current_text(
        self, file: PathHandle, context: GateContext, *, strictly: bool = False
    ) -> tuple[str | None, bool]:
        """The present text of a file in the client, or else on the disk; None if there is no file or if it is not text. And
        whether it is the client's.

        With ``strictly``, raises if the client refuses. Otherwise the text on the disk is used then, which is enough for
        a call that replaces the whole file.
        """
        largest = int(context.dependencies.get("max_bytes", write_file.MAX_BYTES))
        text = None
        if self._buffers.reads and (file.status is None or _is_text(file)):
            try:
                text = await self._buffers.read(file.absolute, file.shown)
            except ClientRefused:
                if strictly and file.status is not None and not _is_not_utf8(file):
                    raise
                if strictly and file.status is None:
                    raise file.no_such("file") from None
        if text == "" and file.status is None:
            # Some clients answer with empty text for a missing file.
            text = None
        if text is None:
            if strictly and file.status is None:
                raise file.no_such("file")
            return _text_on_disk(file, largest), False
        if _size(text) > largest:
            raise GateError(f"{file.shown!r} is larger than the {largest:,} bytes that this gate changes")
        return text, True

    async def _write_to_client(
        self, file: PathHandle, content: str, present: _Present | None, context: GateContext
    ) -> bool:
        """Write the text through the client. Returns False if the caller must write to the disk."""
        before = present.text if present is not None else None
        if self._buffers.writes:
            file.make_parents()
            if await self._buffers.write(file.absolute, file.shown, content):
                if present is not None and present.encoding is not None:
                    _put_bytes_right(content, present.encoding, context, file)
                if (saved := _text_at(file.absolute)) is not None and _same_text(content, saved):
                    self._remember_saved(file, content)
                return True
        if present is not None and present.stale:
            return False
        if self._buffers.reads and before is not None and not _same_text(before, _text_on_disk(file)):
            raise GateError(
                f"{file.shown!r} has unsaved changes in the editor, and the editor does not let the agent write there; "
                "nothing was written",
                "Ask for the file to be saved first",
            )
        return False

    def _note_if_unsaved(self, file: PathHandle, text: str, old: str | None = None) -> str:
        """Note whether the client's text is saved on the disk. Returns a note for the entity if it is not.

        ``old`` is the content of the disk before the write: if the disk has something else now, the client saved the text in
        another form.
        """
        path = file.absolute
        self._unsaved.pop(path, None)
        saved = _text_at(path)
        if len(text) > read_file.INLINE or _same_text(text, saved):
            return ""
        if old is not None and saved is not None and not _same_text(old, saved):
            return "; the editor changed the text while it saved it, as a formatter does: read the file again"
        if len(self._unsaved) >= _MOST_UNSAVED:
            self._unsaved.pop(next(iter(self._unsaved)))
        self._unsaved[path] = text
        return "; only in the editor, which has not saved it yet: commands still see the old file"

    def _still_unsaved(self) -> list[str]:
        for path, text in list(self._unsaved.items()):
            if _same_text(text, _text_at(path)):
                del self._unsaved[path]
        return sorted(self._unsaved)


def _put_bytes_right(content: str, encoding: Encoding, context: GateContext, file: PathHandle) -> None:
    """If the client saved this text with a different encoding, mark or line ends, write it again in the file's original form."""
    try:
        wanted = encoding.encode(content)
    except UnicodeEncodeError:
        # Only the client knows how to write this character.
        return
    with Root.of(context).find("/".join(file.parts), writing=True) as place:
        data = write_file.read_whole(place, len(wanted) * 4 + 64) if place.status is not None else None
        if data is None or data == wanted:
            return
        decoded = file_content.decode_file(place, data)
        if decoded is not None and _same_text(content, decoded[0]):
            replace_file(place, wanted)


async def _disk(gate: Gate, args: Mapping[str, Any], context: GateContext) -> GateReply:
    reply = gate.handler(args, context)
    reply = await reply if inspect.isawaitable(reply) else reply
    assert isinstance(reply, GateReply)
    return reply


async def _disk_proposes(gate: Gate, args: Mapping[str, Any], context: GateContext) -> tuple[Diff, ...]:
    assert gate.proposes is not None
    found: tuple[Diff, ...] = await anyio.to_thread.run_sync(gate.proposes, args, context)  # type: ignore[arg-type]
    return found


async def _replace_text(args: Mapping[str, Any], before: str, file: PathHandle, context: GateContext) -> Replacement:
    _check_content(args["new_text"], "new_text", context)
    largest = int(context.dependencies.get("max_bytes", write_file.MAX_BYTES))
    work = partial(
        replace_exactly,
        before,
        args["old_text"],
        args["new_text"],
        every=bool(args.get("replace_all", False)),
        shown=file.shown,
        largest=largest,
    )
    replaced = await anyio.to_thread.run_sync(work) if len(before) > edit_file.INLINE else work()
    if _size(replaced.text) > largest:
        raise GateError(f"the file would have {_size(replaced.text):,} bytes; this gate writes up to {largest:,}")
    return replaced


def _check_write(args: Mapping[str, Any], file: PathHandle, context: GateContext) -> None:
    """Raise `GateError` if this file cannot be written."""
    if args["path"].endswith("/") and file.status is None:
        raise GateError(f"{args['path']!r} names a folder", "give the path of a file in it")
    check_writable(file)
    _check_content(args["content"], "content", context)


def _check_content(content: str, name: str, context: GateContext) -> None:
    """Raise `GateError` if a file cannot hold this text."""
    try:
        size = len(content.encode())
    except UnicodeEncodeError:
        raise GateError(
            f"{name} contains half of a surrogate pair, which a text file cannot store", "send whole characters"
        ) from None
    largest = int(context.dependencies.get("max_bytes", write_file.MAX_BYTES))
    if size > largest:
        raise GateError(f"{name} has {size:,} bytes; this gate writes files of up to {largest:,}")


def _check_text(file: PathHandle) -> None:
    """Raise `GateError` if the file on the disk is not text. A missing file passes: it may be open in the editor."""
    if file.status is None:
        return
    kind = _binary(file)
    if kind is not None:
        raise GateError(f"{file.shown!r} is a binary file ({kind}, {file.status.st_size:,} bytes), not text")


def _is_text(file: PathHandle) -> bool:
    return _binary(file) is None


def _binary(file: PathHandle) -> str | None:
    return file_content.binary_kind(_head(file))


def _is_not_utf8(file: PathHandle) -> bool:
    decoded = file_content.decode(write_file.read_whole(file, write_file.MAX_BYTES) or b"")
    return decoded is not None and decoded[1] != UTF8


def _head(file: PathHandle) -> bytes:
    descriptor, _ = file.open_file()
    try:
        return os.read(descriptor, _HEAD)
    except OSError as error:
        raise GateError(f"cannot read {file.shown!r}: {(error.strerror or str(error)).lower()}") from None
    finally:
        os.close(descriptor)


def _text_on_disk(file: PathHandle, largest: int = write_file.MAX_DIFF) -> str | None:
    if file.status is None:
        return None
    data = write_file.read_whole(file, largest)
    decoded = file_content.decode(data) if data is not None else None
    return decoded[0] if decoded is not None else None


def _text_at(path: str) -> str | None:
    """The text on the disk at a resolved path, only for a comparison. None if it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        decoded = file_content.decode(file.read(4 * read_file.INLINE))
    return decoded[0] if decoded is not None else None


def _same_text(text: str, saved: str | None) -> bool:
    """Whether two texts are equal except for line ends and byte order marks, which editors may change."""
    return saved is not None and _normalize(text) == _normalize(saved)


def _normalize(content: str) -> str:
    return content.removeprefix("\ufeff").replace("\r\n", "\n")


def _size(content: str) -> int:
    return len(content.encode("utf-8", "replace"))


def _lines(content: str) -> int:
    return content.count("\n") + (1 if content and not content.endswith("\n") else 0)


def _below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
