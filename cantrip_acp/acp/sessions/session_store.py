"""Session store: the sessions on disk, each a loom and a note with what an editor asks about it.

The loom is the truth. The note (``ID.session.json``) only saves reading it: it is rebuilt from the loom where it is
missing or damaged. Deleting a note loses only what was chosen before the first prompt. Session ids from outside are
never used as paths unchecked.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import logging
import os
import re
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path

import msgspec

from cantrip_acp.acp.sessions import modes
from cantrip_acp.core.errors import CantripError, DefinitionError, LoomLocked
from cantrip_acp.files import paths
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn import CastRecord, ConfigRecord
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.text import codecs
from cantrip_acp.text.redaction import shared

log = logging.getLogger(__name__)

PAGE = 50
"""Sessions in one answer to ``session/list``."""

FORK = " (fork)"
"""The end of the title of a forked session."""

_LARGEST = 4_000_000
"""The largest note in bytes; a larger file was written by another program."""

_LAST = 253_402_300_799_000_000_000
"""The end of the year 9999, in nanoseconds."""

_ID = re.compile(r"sess_[A-Za-z0-9_-]{1,100}\Z")
_NOTE = ".session.json"
_LOOM = ".loom.jsonl"
_BESIDE = (".loom.jsonl.index", ".lock", _NOTE)


class Grant(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """An "always" answer of the user: for a gate or a medium's tool, and a pattern (see `permissions`)."""

    tool: str
    pattern: str
    allowed: bool


class Note(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The stored facts about a session. ``loom`` is the location of its loom; ``recipe`` and ``crystal`` are what was
    chosen in it.

    ``started`` is the recipe that the agent was started with. ``from_turn`` is the turn that a fork's entity continued
    from.
    """

    id: str
    cwd: str
    entity_id: str
    loom: str
    from_turn: str | None = None
    directories: list[str] = []
    started: str | None = None
    title: str | None = None
    mode: str = "ask"
    recipe: str | None = None
    crystal: str | None = None
    effort: str | None = None
    granted: list[Grant] = []


class Listed(msgspec.Struct):
    """A session in a list; ``updated`` is the time of its last activity, in nanoseconds."""

    note: Note
    updated: int

    @property
    def updated_at(self) -> str:
        when = datetime.fromtimestamp(self.updated / 1e9, UTC)
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class BadCursor(ValueError):
    """A cursor that did not come from this agent's list."""


class NoSession(CantripError):
    """The session no longer exists: another process has deleted it."""

    def __init__(self, session_id: str) -> None:
        super().__init__(f"there is no session {session_id[:100]!r}")
        self.session_id = session_id


class SessionStore:
    """The sessions in one state folder. Its methods read and write files, so call them in a thread."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "looms"
        self.exports = state_dir / "exports"
        self._nothing: dict[str, tuple[int, int]] = {}
        """Looms, by time and size, that hold nothing about their session. They are not read again for each list."""

    def loom_path(self, session_id: str) -> Path:
        """The path of the loom of a session with its own file. Creates the folder."""
        return paths.private(self.folder) / f"{session_id}{_LOOM}"

    def save(self, note: Note) -> None:
        """Save a session's note; it replaces the previous one."""
        path = paths.private(self.folder) / f"{note.id}{_NOTE}"
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}.new")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(msgspec.json.encode(note))
            os.replace(part, path)
        except OSError as problem:
            part.unlink(missing_ok=True)
            raise OSError(problem.errno, problem.strerror, str(path)) from None

    def find(self, session_id: str) -> Note | None:
        """Find a session's note; None where there is no such session."""
        if not _ID.match(session_id):
            return None
        note = _note_in(self.folder / f"{session_id}{_NOTE}")
        if note is None or note.id != session_id:
            return self._rebuilt(session_id)
        return note if note.title is not None else self._titled(note)

    def has(self, session_id: str) -> bool:
        """Whether a session exists on disk. Call it while holding its loom."""
        if (self.folder / f"{session_id}{_NOTE}").is_file():
            return True
        try:
            return (self.folder / f"{session_id}{_LOOM}").stat().st_size > 0
        except OSError:
            return False

    def _titled(self, note: Note) -> Note:
        """Add the title from the loom to a note without one: a prompt may have come from a terminal."""
        told = self._in_loom(note.id, "its title is not known: its loom cannot be read")
        if told is not None and told.title is not None:
            note.title = told.title
            self._save_found(note)
        return note

    def _rebuilt(self, session_id: str) -> Note | None:
        """Rebuild the note from the loom; None where there is no loom, or no prompt in it."""
        note = self._in_loom(session_id, "it is not listed: its note is missing or damaged, and so is its loom")
        if note is not None:
            self._save_found(note)
        return note

    def _in_loom(self, session_id: str, lacking: str) -> Note | None:
        """Read the note from a session's own loom; None where it holds none. ``lacking`` is the consequence, for the log."""
        path = self.folder / f"{session_id}{_LOOM}"
        try:
            status = path.stat()
            stamp = (status.st_mtime_ns, status.st_size)
            if not status.st_size or not stat.S_ISREG(status.st_mode) or self._nothing.get(session_id) == stamp:
                return None
            with Loom.open(path, readonly=True) as loom:
                note = note_from_loom(session_id, loom)
                damage = [str(problem) for problem in loom.problems]
        except FileNotFoundError:
            return None
        except (CantripError, OSError, ValueError, RecursionError) as problem:
            note, damage = None, [shared().diagnostic(str(problem))]
        if note is None or note.title is None:
            self._nothing[session_id] = stamp
            if damage:
                log.warning("session %s: %s: %s", session_id, lacking, damage[0][:300])
        return note

    def _save_found(self, note: Note) -> None:
        """Save a rebuilt note, unless the session is being deleted now: a deletion removes the loom before the note."""
        with contextlib.suppress(OSError):
            self.save(note)
            if not (self.folder / f"{note.id}{_LOOM}").exists():
                (self.folder / f"{note.id}{_NOTE}").unlink(missing_ok=True)

    def list(self, cwd: str | None, cursor: str | None, *, also: frozenset[str]) -> tuple[list[Listed], str | None]:
        """A page of sessions, last active first, and the cursor of the next page.

        ``cwd`` is compared by its real path, however it is spelled. ``also`` are the ids of open sessions in this
        process: they are listed even before their first prompt. Raises `BadCursor`.
        """
        after = _after(cursor) if cursor is not None else None
        real = lru_cache(maxsize=None)(_real)
        wanted = real(cwd) if cwd is not None else None
        page: list[Listed] = []
        # Read only as many notes as the page needs: there may be very many.
        for updated, session_id in sorted(self._by_time(also)):
            if after is not None and (updated, session_id) <= after:
                continue
            note = self.find(session_id)
            if note is None or (wanted is not None and real(note.cwd) != wanted):
                continue
            if len(page) == PAGE:
                return page, _cursor(page[-1])
            page.append(Listed(note, -updated))
        return page, None

    def _by_time(self, also: frozenset[str]) -> Iterator[tuple[int, str]]:
        """Candidates for sessions: the time of last activity, negated, and the id."""
        looms: dict[str, int] = {}
        notes: dict[str, int] = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    for suffix, times in ((_NOTE, notes), (_LOOM, looms)):
                        name = entry.name.removesuffix(suffix)
                        if name != entry.name and _ID.match(name):
                            with contextlib.suppress(OSError):
                                status = entry.stat()
                                if suffix == _NOTE or status.st_size:
                                    times[name] = _worked(status)
        except FileNotFoundError:
            return
        for session_id in looms.keys() | notes.keys():
            # A note is written each time its session is opened, so its time is not the last activity. The loom's time is.
            updated = looms.get(session_id) or (notes[session_id] if session_id in also else 0)
            if updated:
                yield -updated, session_id
                continue
            # An empty loom, or a note alone, is not a session yet.
            note = self.find(session_id)
            if note is not None and is_address(note.loom):
                # Another process may delete it meanwhile.
                with contextlib.suppress(OSError):
                    yield -_worked((self.folder / f"{session_id}{_NOTE}").stat()), session_id

    def touch(self, session_id: str) -> None:
        """Update the time of a session whose loom is not its own file."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / f"{session_id}{_NOTE}")

    def lock(self, session_id: str) -> int:
        """Lock a session whose loom has many writers. Returns a file descriptor to close. Raises `LoomLocked`."""
        return self._held(paths.private(self.folder) / f"{session_id}.lock", session_id)

    def _held(self, path: Path, session_id: str) -> int:
        """Open and lock the file at ``path``, creating it if needed. Raises `LoomLocked` where another process holds it."""
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

    def delete(self, session_id: str) -> None:
        """Delete a session, with its loom where that is its own file. Does nothing where there is no session.

        Raises `LoomLocked` where another process has it open. A database keeps the turns: it cannot forget (LOOM-3).
        """
        if not _ID.match(session_id):
            return
        path = self.folder / f"{session_id}{_LOOM}"
        if not self.folder.is_dir():
            return
        held: list[int] = []
        try:
            # A process that opens it now waits for this lock, or finds that the session does not exist.
            held.append(self._held(path, session_id))
            if (self.folder / f"{session_id}.lock").exists():
                held.append(self._held(self.folder / f"{session_id}.lock", session_id))
            self._delete_files(session_id)
            path.unlink(missing_ok=True)
            # A process that lists sessions may have written the note again.
            self._delete_files(session_id)
        except OSError as problem:
            raise DefinitionError(f"cannot be deleted: {problem.strerror}", where=str(path)) from None
        finally:
            for descriptor in held:
                os.close(descriptor)

    def _delete_files(self, session_id: str) -> None:
        for suffix in _BESIDE:
            (self.folder / f"{session_id}{suffix}").unlink(missing_ok=True)
        for more in (f"{session_id}{_LOOM}.torn-*", f"{session_id}.session.*.new"):
            for left in self.folder.glob(more):
                left.unlink(missing_ok=True)


def _note_in(path: Path) -> Note | None:
    """The note in a file; None where there is no readable note. Unknown fields of a later version are ignored."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
            return None
        with open(descriptor, "rb", closefd=False) as file:
            note = codecs.json_decoder(Note).decode(file.read())
    except (OSError, ValueError, RecursionError):
        return None
    finally:
        os.close(descriptor)
    if not _folder(note.cwd):
        # Another program wrote this file; the loom is more reliable.
        return None
    note.directories = [folder for folder in note.directories if _folder(folder)]
    if note.mode not in modes.NAMES:
        # A mode of another version.
        note.mode = modes.DEFAULT
    return note


def _folder(path: str) -> bool:
    return os.path.isabs(path) and "\0" not in path


def _real(path: str) -> str:
    """The real path of a folder; an impossible path stays as it is."""
    try:
        return os.path.realpath(path)
    except ValueError:
        return path


def _worked(status: os.stat_result) -> int:
    """A file's time, limited to what a date can hold: file systems have times outside that range."""
    return min(max(status.st_mtime_ns, 1), _LAST)


def note_from_loom(session_id: str, loom: Loom) -> Note | None:
    """Build a session's note from its loom: folder and intent of the first cast, and the later choices; None for an
    empty loom."""
    from cantrip_acp.acp.sessions.title import renewed

    note: Note | None = None
    chosen: list[ConfigRecord] = []
    for record in loom.records():
        if isinstance(record, CastRecord) and record.event == "start" and record.parent_turn_id is None:
            if note is None:
                cantrip = loom.cantrip(record.cantrip_id)
                circle = cantrip.circle if cantrip is not None else {}
                workspace = str(circle.get("workspace") or "/")
                note = Note(
                    id=session_id,
                    cwd=workspace if _folder(workspace) else "/",
                    entity_id=record.entity_id,
                    loom=loom.location or "",
                    directories=[str(folder) for folder in circle.get("folders", ())],
                )
            note.title = renewed(note.title, record.intent or "") or note.title
        elif isinstance(record, ConfigRecord):
            chosen.append(record)
    if note is not None:
        # Some of them may come before the first prompt.
        for change in chosen:
            apply_record(note, change)
    return note


def apply_record(note: Note, record: ConfigRecord) -> None:
    """Apply a ``config`` record of the loom to a note."""
    changes = record.changes
    for key in ("mode", "recipe", "crystal", "effort"):
        value = changes.get(key)
        if isinstance(value, str):
            setattr(note, key, value)
    if "recipe" in changes or "fork_of" in changes:
        # Another entity, which continues where the previous one was.
        note.entity_id = record.entity_id
        from_turn = changes.get("from_turn")
        note.from_turn = from_turn if isinstance(from_turn, str) else None
    if "fork_of" in changes and note.title:
        note.title += FORK
    granted = changes.get("permission")
    if isinstance(granted, dict):
        with contextlib.suppress(msgspec.ValidationError):
            note.granted.append(codecs.convert(granted, Grant))
    if changes.get("permissions") == "forgotten":
        note.granted.clear()


def _cursor(last: Listed) -> str:
    return base64.urlsafe_b64encode(f"{last.updated}:{last.note.id}".encode()).decode()


def _after(cursor: str) -> tuple[int, str]:
    try:
        updated, _, session_id = base64.b64decode(cursor, altchars=b"-_", validate=True).decode("ascii").partition(":")
        if not _ID.match(session_id) or not re.fullmatch(r"\d{1,20}", updated):
            raise ValueError
        return (-int(updated), session_id)
    except (ValueError, UnicodeError):
        raise BadCursor("no cursor of a list of this agent") from None
