"""The sessions of this machine on disk: a loom each, and beside it a note that says what an editor asks of a session.

The loom is the truth. The note (``ID.session.json``) only saves reading it: it is rebuilt from the loom where it is missing
or damaged, and whoever deletes it loses nothing but what was chosen before the first prompt. Ids that come from outside
are never taken for paths.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from cantrip_acp import folders
from cantrip_acp.errors import CantripError, DefinitionError, LoomLocked
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.loom.turn import CastRecord, ConfigRecord

PAGE = 50
"""Sessions in one answer to ``session/list``."""

FORK = " (fork)"
"""What the title of a forked session ends with."""

_ID = re.compile(r"sess_[A-Za-z0-9_-]{1,100}\Z")
_NOTE = ".session.json"
_LOOM = ".loom.jsonl"
_BESIDE = (".loom.jsonl.index", ".lock", _NOTE)


class Granted(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What the user said for good: of a gate or a medium's tool, for a pattern (see `permissions`)."""

    tool: str
    pattern: str
    allowed: bool


class Note(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known of a session. ``loom`` is where its loom is; ``recipe`` and ``crystal`` what was chosen in its life.

    ``started`` is the recipe that the agent was started with. ``from_turn`` is where its entity went on from, where that is a fork.
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
    granted: list[Granted] = []


class Listed(msgspec.Struct):
    """A session in a list; ``updated`` is its time of last activity, in nanoseconds."""

    note: Note
    updated: int

    @property
    def updated_at(self) -> str:
        when = datetime.fromtimestamp(self.updated / 1e9, UTC)
        return when.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class BadCursor(ValueError):
    """A cursor that no list of ours gave."""


class SessionStore:
    """The sessions below one state folder. Its methods read and write files, so they belong in a thread."""

    def __init__(self, state_dir: Path) -> None:
        self.folder = state_dir / "looms"

    def loom_path(self, session_id: str) -> Path:
        """Where the loom of a session lies that has a file of its own; makes the folder."""
        return folders.private(self.folder) / f"{session_id}{_LOOM}"

    def save(self, note: Note) -> None:
        """Write a session's note in the place of the one before."""
        path = folders.private(self.folder) / f"{note.id}{_NOTE}"
        part = path.with_suffix(f".{os.getpid()}.new")
        descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(msgspec.json.encode(note))
        os.replace(part, path)

    def find(self, session_id: str) -> Note | None:
        """A session's note; None where there is no such session."""
        if not _ID.match(session_id):
            return None
        try:
            note = msgspec.json.decode((self.folder / f"{session_id}{_NOTE}").read_bytes(), type=Note)
            if note.id == session_id:
                return note if note.title is not None else self._titled(note)
        except (OSError, msgspec.DecodeError, UnicodeError):
            pass
        return self._rebuilt(session_id)

    def _titled(self, note: Note) -> Note:
        """A note without a title, with the one that its loom gives: somebody may have spoken in a terminal."""
        try:
            if os.path.getsize(self.folder / f"{note.id}{_LOOM}"):
                with Loom.open(self.folder / f"{note.id}{_LOOM}", readonly=True) as loom:
                    told = noted(note.id, loom)
                note.title = told.title if told is not None else None
                if note.title is not None:
                    self.save(note)
        except (OSError, CantripError):
            pass
        return note

    def _rebuilt(self, session_id: str) -> Note | None:
        """The note as its loom tells it; None where there is no loom, or nobody was asked anything in it."""
        path = self.folder / f"{session_id}{_LOOM}"
        if not path.is_file():
            return None
        try:
            with Loom.open(path, readonly=True) as loom:
                note = noted(session_id, loom)
        except CantripError:
            return None
        if note is not None:
            with contextlib.suppress(OSError):
                self.save(note)
        return note

    def list(self, cwd: str | None, cursor: str | None, *, also: frozenset[str]) -> tuple[list[Listed], str | None]:
        """A page of the sessions, those that were worked in last first, and the cursor of the next page.

        ``also`` are ids of sessions that live in this process: they are listed before anything was said in them.
        Raises `BadCursor`.
        """
        after = _after(cursor) if cursor is not None else None
        wanted = os.path.normpath(cwd) if cwd is not None else None
        found = [s for s in self._all(also) if wanted is None or os.path.normpath(s.note.cwd) == wanted]
        found.sort(key=_order)
        if after is not None:
            found = [s for s in found if _order(s) > after]
        page = found[:PAGE]
        return page, _cursor(page[-1]) if len(found) > PAGE else None

    def _all(self, also: frozenset[str]) -> Iterator[Listed]:
        times: dict[str, int] = {}
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    for suffix in (_NOTE, _LOOM):
                        name = entry.name.removesuffix(suffix)
                        if name != entry.name and _ID.match(name):
                            with contextlib.suppress(OSError):
                                status = entry.stat()
                                # A loom without a word, and a note alone, are no sessions yet.
                                said = status.st_size > 0 if suffix == _LOOM else name in also
                                times[name] = max(times.get(name, 0), status.st_mtime_ns if said else 0)
        except FileNotFoundError:
            return
        for session_id, updated in times.items():
            note = self.find(session_id)
            if note is None:
                continue
            if updated or is_address(note.loom):
                yield Listed(note, updated or (self.folder / f"{session_id}{_NOTE}").stat().st_mtime_ns)

    def touch(self, session_id: str) -> None:
        """Something happened in a session whose loom is not a file of its own."""
        with contextlib.suppress(OSError):
            os.utime(self.folder / f"{session_id}{_NOTE}")

    def lock(self, session_id: str) -> int:
        """Hold a session whose loom has many writers; a descriptor to be closed. Raises `LoomLocked`."""
        path = folders.private(self.folder) / f"{session_id}.lock"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise LoomLocked(f"session {session_id} is open in another process; close it there first") from None
        return descriptor

    def delete(self, session_id: str) -> None:
        """Take a session away, with its loom where that is a file of its own; nothing where there is none.

        Raises `LoomLocked` where another process works in it. A database keeps the turns: it cannot forget (LOOM-3).
        """
        if not _ID.match(session_id):
            return
        path = self.folder / f"{session_id}{_LOOM}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            descriptor = -1
        except OSError as problem:
            raise DefinitionError(f"cannot be deleted: {problem.strerror}", where=str(path)) from None
        try:
            if descriptor >= 0:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise LoomLocked(f"session {session_id} is open in another process; close it there first") from None
                path.unlink(missing_ok=True)
            for suffix in _BESIDE:
                (self.folder / f"{session_id}{suffix}").unlink(missing_ok=True)
            for torn in self.folder.glob(f"{session_id}{_LOOM}.torn-*"):
                torn.unlink(missing_ok=True)
        finally:
            if descriptor >= 0:
                os.close(descriptor)


def noted(session_id: str, loom: Loom) -> Note | None:
    """A session's note from its loom: the first cast's folder and intent, and what was chosen since; None of an empty one."""
    from cantrip_acp.acp.title import renewed

    note: Note | None = None
    chosen: list[ConfigRecord] = []
    for record in loom.records():
        if isinstance(record, CastRecord) and record.event == "start" and record.parent_turn_id is None:
            if note is None:
                cantrip = loom.cantrip(record.cantrip_id)
                circle = cantrip.circle if cantrip is not None else {}
                note = Note(
                    id=session_id,
                    cwd=str(circle.get("workspace") or "/"),
                    entity_id=record.entity_id,
                    loom=loom.location or "",
                    directories=[str(folder) for folder in circle.get("folders", ())],
                )
            note.title = renewed(note.title, record.intent or "") or note.title
        elif isinstance(record, ConfigRecord):
            chosen.append(record)
    if note is not None:
        # Some of it may have been chosen before the first word.
        for change in chosen:
            take_in(note, change)
    return note


def take_in(note: Note, record: ConfigRecord) -> None:
    """A change that the loom tells of."""
    changes = record.changes
    for key in ("mode", "recipe", "crystal", "effort"):
        value = changes.get(key)
        if isinstance(value, str):
            setattr(note, key, value)
    if "recipe" in changes or "fork_of" in changes:
        # Another entity, which goes on from where the one before was.
        note.entity_id = record.entity_id
        from_turn = changes.get("from_turn")
        note.from_turn = from_turn if isinstance(from_turn, str) else None
    if "fork_of" in changes and note.title:
        note.title += FORK
    granted = changes.get("permission")
    if isinstance(granted, dict):
        with contextlib.suppress(msgspec.ValidationError):
            note.granted.append(msgspec.convert(granted, Granted))


def _order(session: Listed) -> tuple[int, str]:
    return (-session.updated, session.note.id)


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
