"""Session store: finds, lists, saves, locks and deletes the sessions on disk. Each has a loom and a metadata file.

The metadata file (``ID.session.json``) makes lists fast, because the loom need not be read. If it is missing or damaged,
it is rebuilt from the loom; then only options that were chosen before the first prompt are lost. Session ids that come
from a client are checked before they become part of a path.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

import msgspec

from cantrip_acp.acp.sessions.options import modes
from cantrip_acp.files import paths
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.text import codecs
from cantrip_acp.text.logs import logger
from cantrip_acp.text.storable import storable
from cantrip_acp.types.errors import CantripError, DefinitionError, LoomLocked
from cantrip_acp.types.records import CastRecord, ConfigRecord, new_id, now

log = logger(__name__)

PAGE = 50
"""The number of sessions in one answer to ``session/list``."""

FORK = " (fork)"
"""The suffix of the title of a forked session."""

_MAX_METADATA = 4_000_000
"""Bytes of the largest metadata file. A larger file was written by another program."""

_MAX_TIME = 253_402_300_799_000_000_000
"""The end of the year 9999, in nanoseconds."""

_ID = re.compile(r"sess_[A-Za-z0-9_-]{1,100}\Z")
_METADATA = ".session.json"
_LOOM = ".loom.jsonl"
_OTHER_SUFFIXES = (".loom.jsonl.index", ".lock", _METADATA)


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """An "always" answer of the user for a gate or a medium's tool, and a pattern (`permissions.patterns`)."""

    tool: str
    pattern: str
    allowed: bool


class ClientPrompt(msgspec.Struct, frozen=True):
    """A system prompt that the client gave for a session: added to the recipe's, or in place of it."""

    mode: Literal["append", "override"]
    text: str


class ForkedFrom(msgspec.Struct, frozen=True, rename="camel"):
    """Where a fork began: at the turn ``turn`` of the session ``session_id``, or at 0, before its first answer. ``at`` is the
    time of the fork (ISO 8601)."""

    session_id: str
    turn: str | int
    at: str


class SessionMetadata(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The content of a session's metadata file.

    - ``loom``: the location of the loom.
    - ``known_mode``: the mode in which the session began, if it was changed since. The entity is not told of that one.
    - ``recipe``, ``crystal`` and ``effort``: the values that the user chose in the session.
    - ``started``: the recipe with which the agent was started.
    - ``from_turn``: the turn from which the entity of a fork continued.
    - ``forked_from``: where this session was forked from another one, which may be deleted since.
    - ``system_prompt``: the client's part of the system prompt. It never changes (CALL-1).
    - ``title_chosen``: whether a user chose the title, so that no prompt replaces it.
    - ``reuse_results``: whether gates that declare their inputs may reuse results (the boolean option).
    """

    untouched: ClassVar = ("id", "cwd", "entity_id", "loom", "directories")

    id: str
    cwd: str
    entity_id: str
    loom: str
    from_turn: str | None = None
    forked_from: ForkedFrom | None = None
    directories: list[str] = []
    started: str | None = None
    title: str | None = None
    title_chosen: bool = False
    system_prompt: ClientPrompt | None = None
    reuse_results: bool = True
    mode: str = "ask"
    known_mode: str | None = None
    recipe: str | None = None
    crystal: str | None = None
    effort: str | None = None
    granted: list[Grant] = []
    queued: list[str] = []
    """The texts of prompts that wait. If the process ends, the user is told of them when the session is loaded."""


class ListedSession(msgspec.Struct):
    """A session in a list. ``updated`` is the time of its last activity, in nanoseconds since 1970."""

    metadata: SessionMetadata
    updated: int

    @property
    def updated_at(self) -> str:
        when = datetime.fromtimestamp(self.updated / 1e9, UTC)
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class BadCursor(ValueError):
    """A list cursor that this agent did not make."""


class NoSession(CantripError):
    """The session no longer exists: another process has deleted it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id[:100]!r}")
        self.session_id = session_id


class SessionStore:
    """The sessions in one state folder. The methods read and write files, so call them in a thread."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "looms"
        self.exports = state_dir / "exports"
        self._empty_looms: dict[str, tuple[int, int]] = {}
        """By session id: the time and the size of looms without metadata. They are not read again for each list."""

    def loom_path(self, session_id: str) -> Path:
        """The path of a session's loom file. Creates its folder."""
        return paths.private(self.folder) / f"{session_id}{_LOOM}"

    def save(self, metadata: SessionMetadata) -> None:
        """Write a session's metadata file, with known secrets masked. It replaces the previous one."""
        path = paths.private(self.folder) / f"{metadata.id}{_METADATA}"
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.new")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(storable(metadata)))
            os.replace(part, path)
        except OSError as problem:
            part.unlink(missing_ok=True)
            raise OSError(problem.errno, problem.strerror, str(path)) from None

    def find(self, session_id: str) -> SessionMetadata | None:
        """Read a session's metadata. None if there is no such session."""
        if not _ID.match(session_id):
            return None
        metadata = _read_metadata(self.folder / f"{session_id}{_METADATA}")
        if metadata is None or metadata.id != session_id:
            return self._rebuild(session_id)
        return metadata if metadata.title is not None else self._with_title(metadata)

    def set_title(self, session_id: str, title: str) -> bool:
        """Set the title of a session that is not open here. Returns False if there is no such session.

        Raises `LoomLocked` if another process has the session open.
        """
        metadata = self.find(session_id)
        if metadata is None:
            return False
        if not is_address(metadata.loom):
            with Loom.open(self.loom_path(session_id)) as loom:
                loom.append(title_record(metadata.entity_id, title))
        metadata.title, metadata.title_chosen = title, True
        self.save(metadata)
        return True

    def has(self, session_id: str) -> bool:
        """Whether a session exists on disk. Call this while the session's loom is locked."""
        if (self.folder / f"{session_id}{_METADATA}").is_file():
            return True
        try:
            return (self.folder / f"{session_id}{_LOOM}").stat().st_size > 0
        except OSError:
            return False

    def _with_title(self, metadata: SessionMetadata) -> SessionMetadata:
        """Add the title from the loom to metadata without a title. A prompt may have come from a terminal."""
        from_loom = self._read_from_loom(metadata.id, "its title is not known: its loom cannot be read")
        if from_loom is not None and from_loom.title is not None:
            metadata.title = from_loom.title
            self._save_rebuilt(metadata)
        return metadata

    def _rebuild(self, session_id: str) -> SessionMetadata | None:
        """Rebuild the metadata from the loom. None if there is no loom, or no prompt in it."""
        metadata = self._read_from_loom(
            session_id, "it is not listed: its metadata file and its loom are missing or damaged"
        )
        if metadata is not None:
            self._save_rebuilt(metadata)
        return metadata

    def _read_from_loom(self, session_id: str, consequence: str) -> SessionMetadata | None:
        """Read the metadata from a session's loom file. None if the loom has none. ``consequence`` is a text for the log."""
        path = self.folder / f"{session_id}{_LOOM}"
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if not status.st_size or not stat.S_ISREG(status.st_mode) or self._empty_looms.get(session_id) == stamp:
                return None
            with Loom.open(path, readonly=True) as loom:
                metadata = metadata_from_loom(session_id, loom)
                damage = [str(problem) for problem in loom.problems]
        except FileNotFoundError:
            return None
        except (CantripError, OSError, ValueError, RecursionError) as problem:
            metadata, damage = None, [str(problem)]
        if metadata is None or metadata.title is None:
            self._empty_looms[session_id] = stamp
            if damage:
                log.warning("session %s: %s: %s", session_id, consequence, damage[0][:300])
        return metadata

    def _save_rebuilt(self, metadata: SessionMetadata) -> None:
        """Save rebuilt metadata, unless the session is being deleted. A deletion removes the loom before the metadata."""
        with contextlib.suppress(OSError):
            self.save(metadata)
            if not (self.folder / f"{metadata.id}{_LOOM}").exists():
                (self.folder / f"{metadata.id}{_METADATA}").unlink(missing_ok=True)

    def list(
        self, cwd: str | None, cursor: str | None, *, open_ids: frozenset[str]
    ) -> tuple[list[ListedSession], str | None]:
        """Return a page of sessions, last active first, and the cursor of the next page.

        ``cwd`` is compared by its real path. ``open_ids`` are the ids of sessions that are open in this process; they are
        listed even before their first prompt. Raises `BadCursor`.
        """
        after = _after(cursor) if cursor is not None else None
        real = lru_cache(maxsize=None)(_real_path)
        wanted = real(cwd) if cwd is not None else None
        page: list[ListedSession] = []
        # Read only as many metadata files as the page needs, because there may be very many.
        for updated, session_id in sorted(self._candidates(open_ids)):
            if after is not None and (updated, session_id) <= after:
                continue
            metadata = self.find(session_id)
            if metadata is None or (wanted is not None and real(metadata.cwd) != wanted):
                continue
            if len(page) == PAGE:
                return page, _cursor(page[-1])
            page.append(ListedSession(metadata, -updated))
        return page, None

    def _candidates(self, open_ids: frozenset[str]) -> Iterator[tuple[int, str]]:
        """Possible sessions: pairs of the negated time of the last activity, and the id."""
        looms: dict[str, int] = {}
        notes: dict[str, int] = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    for suffix, times in ((_METADATA, notes), (_LOOM, looms)):
                        name = entry.name.removesuffix(suffix)
                        if name != entry.name and _ID.match(name):
                            with contextlib.suppress(OSError):
                                status = entry.stat()
                                if suffix == _METADATA or status.st_size:
                                    times[name] = _activity_time(status)
        except FileNotFoundError:
            return
        for session_id in looms.keys() | notes.keys():
            # The metadata file is written when a session is opened, so the time of the last activity is that of the loom.
            updated = looms.get(session_id) or (notes[session_id] if session_id in open_ids else 0)
            if updated:
                yield -updated, session_id
                continue
            # A session with an empty loom is not listed, unless its loom is in a database or, as `cantrip repl --loom` makes
            # it, in a file of another name.
            metadata = self.find(session_id)
            if metadata is not None and metadata.loom != str(self.folder / f"{session_id}{_LOOM}"):
                kept = self.folder / f"{session_id}{_METADATA}" if is_address(metadata.loom) else Path(metadata.loom)
                # Another process may delete it at the same time.
                with contextlib.suppress(OSError):
                    yield -_activity_time(kept.stat()), session_id

    def touch(self, session_id: str) -> None:
        """Update the time of the last activity of a session whose loom is in a database."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / f"{session_id}{_METADATA}")

    def lock(self, session_id: str) -> int:
        """Lock a session whose loom allows several writers. Returns a file descriptor to close. Raises `LoomLocked`."""
        return self._lock_file(paths.private(self.folder) / f"{session_id}.lock", session_id)

    def _lock_file(self, path: Path, session_id: str) -> int:
        """Open and lock the file at ``path``. Creates it if needed. Raises `LoomLocked` if another process has locked it."""
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                    return descriptor
            except FileNotFoundError:
                # The file was deleted between the open and the check.
                pass
            except OSError:
                os.close(descriptor)
                raise LoomLocked(f"session {session_id} is open in another process; close it there first") from None
            os.close(descriptor)

    def _forget_checkpoints(self, path: Path) -> None:
        """Delete the kept files of a session that is being deleted."""
        from cantrip_acp.core.lifecycle.checkpoints import forget_checkpoints
        from cantrip_acp.loom.loom import Loom

        if (self.folder.parent / "checkpoints").is_dir() and path.exists():
            # A record that cannot be read cannot be restored either.
            with contextlib.suppress(CantripError), Loom.open(path, readonly=True) as loom:
                forget_checkpoints(loom, self.folder.parent)

    def delete(self, session_id: str) -> None:
        """Delete a session and its loom file. Does nothing if there is no such session.

        A loom in a database keeps the turns (LOOM-3). Raises `LoomLocked` if another process has the session open.
        """
        if not _ID.match(session_id):
            return
        path = self.folder / f"{session_id}{_LOOM}"
        if not self.folder.is_dir():
            return
        locks: list[int] = []
        try:
            # A process that opens the session now gets `LoomLocked`, or finds that the session does not exist.
            locks.append(self._lock_file(path, session_id))
            if (self.folder / f"{session_id}.lock").exists():
                locks.append(self._lock_file(self.folder / f"{session_id}.lock", session_id))
            self._forget_checkpoints(path)
            self._delete_files(session_id)
            path.unlink(missing_ok=True)
            # A process that lists sessions may have written the metadata file again.
            self._delete_files(session_id)
        except OSError as problem:
            raise DefinitionError(f"cannot be deleted: {problem.strerror}", where=str(path)) from None
        finally:
            for descriptor in locks:
                os.close(descriptor)

    def _delete_files(self, session_id: str) -> None:
        for suffix in _OTHER_SUFFIXES:
            (self.folder / f"{session_id}{suffix}").unlink(missing_ok=True)
        for more in (f"{session_id}{_LOOM}.torn-*", f"{session_id}.session.*.new"):
            for file in self.folder.glob(more):
                file.unlink(missing_ok=True)


def _read_metadata(path: Path) -> SessionMetadata | None:
    """Read a metadata file. None if it is not readable. Unknown fields of a later version are ignored."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_METADATA:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            metadata = codecs.json_decoder(SessionMetadata).decode(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    if not _folder(metadata.cwd):
        # Another program wrote this file. The caller then reads the loom.
        return None
    metadata.directories = [folder for folder in metadata.directories if _folder(folder)]
    if metadata.mode not in modes.NAMES:
        # The mode comes from another version.
        metadata.mode = modes.FALLBACK
    return metadata


def _folder(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path


def _real_path(path: str) -> str:
    """The real path of a folder. An invalid path is returned unchanged."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return path


def _activity_time(status: os.stat_result) -> int:
    """The modification time of a file, limited to the range of `datetime`. File systems allow other times."""
    return min(max(status.st_mtime_ns, 1), _MAX_TIME)


def metadata_from_loom(session_id: str, loom: Loom) -> SessionMetadata | None:
    """Build a session's metadata from its loom: the folder and the intent of the first cast, and later changes of options.
    None for an empty loom."""
    from cantrip_acp.acp.sessions.title import better_title

    metadata: SessionMetadata | None = None
    chosen: list[ConfigRecord] = []
    for record in loom.records():
        if isinstance(record, CastRecord) and record.event == "start" and record.parent_turn_id is None:
            if metadata is None:
                cantrip = loom.cantrip(record.cantrip_id)
                circle = cantrip.circle if cantrip is not None else {}
                workspace = str(circle.get("workspace") or "/")
                metadata = SessionMetadata(
                    id=session_id,
                    cwd=workspace if _folder(workspace) else "/",
                    entity_id=record.entity_id,
                    loom=loom.location or "",
                    directories=[str(folder) for folder in circle.get("folders", ())],
                )
            if not metadata.title_chosen:
                metadata.title = better_title(metadata.title, record.intent or "") or metadata.title
        elif isinstance(record, ConfigRecord):
            chosen.append(record)
    if metadata is not None:
        # Some changes may come before the first prompt.
        for change in chosen:
            apply_record(metadata, change)
            fork_of, turn_id = change.changes.get("fork_of"), change.changes.get("from_turn")
            if isinstance(fork_of, str) and isinstance(turn_id, str):
                metadata.forked_from = ForkedFrom(fork_of, fork_point(loom, turn_id), change.timestamp)
    return metadata


def fork_point(loom: Loom, turn_id: str) -> str | int:
    """The turn of a fork as clients name it: the turn before a message, or 0 if no answer is before the message."""
    return 0 if turn_id in loom and loom.places[turn_id].role == "call" else turn_id


def apply_record(metadata: SessionMetadata, record: ConfigRecord) -> None:
    """Apply a ``config`` record of the loom to a session's metadata."""
    changes = record.changes
    for key in ("mode", "known_mode", "recipe", "crystal", "effort"):
        value = changes.get(key)
        if isinstance(value, str):
            setattr(metadata, key, value)
    title = changes.get("title")
    if isinstance(title, str):
        metadata.title, metadata.title_chosen = title, True
    if isinstance(changes.get("reuse_results"), bool):
        metadata.reuse_results = changes["reuse_results"]
    if "recipe" in changes or "fork_of" in changes:
        # Another entity continues from the last turn of the previous entity.
        metadata.entity_id = record.entity_id
        from_turn = changes.get("from_turn")
        metadata.from_turn = from_turn if isinstance(from_turn, str) else None
    if "fork_of" in changes and metadata.title:
        metadata.title += FORK
    if "system_prompt" in changes:
        with contextlib.suppress(msgspec.ValidationError):
            metadata.system_prompt = codecs.convert(changes["system_prompt"], ClientPrompt)
    granted = changes.get("permission")
    if isinstance(granted, dict):
        with contextlib.suppress(msgspec.ValidationError):
            metadata.granted.append(codecs.convert(granted, Grant))
    if changes.get("permissions") == "forgotten":
        metadata.granted.clear()


def title_record(entity_id: str, title: str) -> ConfigRecord:
    """The record of a title that a user chose."""
    return ConfigRecord(new_id("g"), entity_id, {"title": title}, now())


def _cursor(last: ListedSession) -> str:
    return base64.urlsafe_b64encode(f"{last.updated}:{last.metadata.id}".encode()).decode()


def _after(cursor: str) -> tuple[int, str]:
    try:
        updated, _, session_id = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii").partition(":")
        if not _ID.match(session_id) or not re.fullmatch(r"\d{1,20}", updated):
            raise ValueError
        return (-int(updated), session_id)
    except (ValueError, UnicodeError):
        raise BadCursor("not a cursor from an answer to session/list of this agent") from None
