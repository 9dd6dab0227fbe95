"""The log of a project's tuples in a folder ``.catalog/``, for projects that keep it beside their code.

``tuples.jsonl`` has a line for each tuple, and one for each receipt: ``{"receipt_id", "tuple_id", "step"}``, where ``step`` is
null for the receipt that ends the tuple. The receipts themselves are in ``receipts/<2 hex digits>/<the others>.json``. Lines
are only added. Lines of earlier days are in ``tuples-<day>.jsonl.gz``. A line is on the disk after its receipt is, so a process
that is killed leaves nothing that names a missing receipt, and at most one torn last line.

The folder lies in a workspace, whose commands may write there, so nothing in it is opened by a link.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import gzip
import json
import os
import re
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from cantrip_acp.files.folder import Folder
from cantrip_acp.tuplespace.canonical_json import canonical_json
from cantrip_acp.tuplespace.errors import NewerSchema, SpaceError, TupleError
from cantrip_acp.tuplespace.receipts import as_ours, is_genuine, is_genuine_elsewhere
from cantrip_acp.tuplespace.stores.base import StoredReceipt, is_stand_in
from cantrip_acp.tuplespace.stores.sql import TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, adopt_tuple

LOG = "tuples.jsonl"
_LOCK = "tuples.lock"
_RECEIPT_ID = re.compile("sha256:[0-9a-f]{64}")
_LONGEST_LINE = 4 * 1024 * 1024
"""Bytes of a line. A tuple has at most a quarter of that."""
_MOST_UNPACKED, _LARGEST_RATIO = 64 << 20, 100
"""The limits for unpacking a packed day: bytes, and the ratio to its size, whichever is larger. Each line has hashes, which
hardly shrink: real days unpack to about ten times their size."""


class Changes(msgspec.Struct, kw_only=True):
    """The additions of an import or export, and the lines that a killed writer left unfinished."""

    tuples: int = 0
    receipts: int = 0
    torn: tuple[str, ...] = ()
    newer: tuple[str, ...] = ()
    """Lines with tuples of a schema that this version does not know, which were left out."""
    renamed: dict[str, str] = {}
    """The ids here of tuples whose id was made in another way, by the id that they had."""


class ProjectLog:
    """The log in a folder. The folder is made by the first export."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing during a block."""
        with self._opened(make=True) as folder, self._failures("write"):
            lock = folder.open_file(_LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX)
                yield
            finally:
                os.close(lock)

    @contextlib.contextmanager
    def _opened(self, *, make: bool = False) -> Iterator[Folder]:
        with self._failures("write" if make else "read"):
            folder = Folder.of(self.folder, make=make)
        with folder:
            yield folder

    @contextlib.contextmanager
    def _failures(self, doing: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise SpaceError(f"cannot {doing} {error.filename or self.folder}: {error.strerror or error}") from None
        except EOFError as error:
            raise SpaceError(f"cannot {doing} {self.folder}: {error}") from None

    def version(self) -> tuple[int, int]:
        """The version of the log, from its time and size. It changes with each write."""
        try:
            found = (self.folder / LOG).lstat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def export(self, store: TupleStore, pattern: Pattern | None = None) -> Changes:
        """Add the tuples of a store, with their receipts, that the log lacks."""
        with self.locked(), self._opened() as folder, self._failures("write"):
            self._rotate(folder)
            known, changes, cursor = self._known(folder), Changes(), ""
            with os.fdopen(folder.open_file(LOG, os.O_RDWR | os.O_CREAT | os.O_APPEND), "ab") as log:
                if log.tell() and os.pread(log.fileno(), 1, log.tell() - 1) != b"\n":
                    log.write(b"\n")
                while True:
                    found, next_cursor = store.after(cursor, pattern or Pattern())
                    for stored in found:
                        receipts = (
                            store.receipts(stored.work.id) if stored.state != "waiting" or stored.attempts else []
                        )
                        self._add(folder, log, stored.work, receipts, known, changes)
                    if next_cursor == cursor:
                        break
                    cursor = next_cursor
                log.flush()
                os.fsync(log.fileno())
            return changes

    def _add(
        self,
        folder: Folder,
        log: Any,
        work: WorkTuple,
        receipts: list[StoredReceipt],
        known: set[str],
        changes: Changes,
    ) -> None:
        if work.id not in known:
            known.add(work.id)
            changes.tuples += 1
            log.write(canonical_json(work.document) + b"\n")
        for each in receipts:
            identity = each.document["id"]
            if identity in known:
                continue
            known.add(identity)
            changes.receipts += 1
            above, _, name = _receipt_file(identity).rpartition("/")
            with folder.beneath(above, make=True) as place:
                place.replace(name, canonical_json(dict(each.document)) + b"\n")
            line = {"receipt_id": identity, "tuple_id": work.id, "step": each.step}
            log.write(canonical_json(line) + b"\n")
            if each.step is None:
                log.flush()
                os.fsync(log.fileno())

    def load(self, store: TupleStore, pattern: Pattern | None = None) -> Changes:
        """Put the log's tuples into a store, ended ones with their receipts. Tuples that the store knows stay unchanged.

        Raises `TupleError` with file and line for a line that is not genuine. Then nothing is put.
        """
        works: dict[str, WorkTuple] = {}
        receipts: dict[str, dict[str, StoredReceipt]] = {}
        changes, torn, newer = Changes(), list[str](), list[str]()
        if not os.path.lexists(self.folder):
            return changes
        with self._opened() as folder:
            for where, document in self._lines(folder, torn):
                if "receipt_id" in document:
                    identity, of_tuple = document["receipt_id"], document.get("tuple_id")
                    is_id = isinstance(identity, str) and _RECEIPT_ID.fullmatch(identity)
                    if not is_id or not isinstance(of_tuple, str):
                        raise TupleError(f"{where}: a line of a receipt has receipt_id (sha256:…), tuple_id and step")
                    if identity not in (known := receipts.setdefault(of_tuple, {})):
                        known[identity] = self._receipt(folder, where, document)
                    continue
                if is_stand_in(document):
                    continue
                try:
                    work, before = adopt_tuple(document)
                except NewerSchema as error:
                    newer.append(f"{where}: {error}")
                    continue
                except TupleError as error:
                    raise TupleError(f"{where}: {error}") from None
                if pattern is None or pattern.matches(work.document):
                    works[work.id] = work
                    if before is not None:
                        changes.renamed[before] = work.id
        for before, identity in changes.renamed.items():
            ours, ids = receipts.setdefault(identity, {}), dict[str, str]()
            for each in sorted(receipts.pop(before, {}).values(), key=lambda each: each.step is None):
                made = as_ours(each.document, identity, ids)
                ids[each.document["id"]] = made["id"]
                ours.setdefault(made["id"], StoredReceipt(document=made, step=each.step))
        changes.torn, changes.newer = tuple(torn), tuple(newer)
        waiting = []
        for identity, work in works.items():
            found = [*receipts.get(identity, {}).values()]
            if any(each.step is None for each in found):
                if store.put_ended(work, found):
                    changes.tuples += 1
                    changes.receipts += len(found)
            else:
                waiting.append(work)
        for first in range(0, len(waiting), 500):
            changes.tuples += sum(store.put(waiting[first : first + 500]))
        return changes

    def _receipt(self, folder: Folder, where: str, line: Mapping[str, Any]) -> StoredReceipt:
        identity, step = line["receipt_id"], line.get("step")
        if not (step is None or isinstance(step, int)):
            raise TupleError(f"{where}: the step of a receipt must be a number or null")
        path = self.folder / _receipt_file(identity)
        try:
            with folder.file(_receipt_file(identity)) as file:
                document = json.loads(file.read())
        except (OSError, ValueError) as error:
            raise TupleError(f"{where}: the receipt cannot be read from {path}: {error}") from None
        if (
            not isinstance(document, dict)
            or document.get("id") != identity
            or not (is_genuine(document) or is_genuine_elsewhere(document))
        ):
            raise TupleError(f"{where}: {path} is not the receipt {identity}: its content has another hash")
        if document.get("tuple_id") != line.get("tuple_id"):
            raise TupleError(f"{where}: {path} is a receipt of another tuple")
        return StoredReceipt(document=document, step=step)

    def _known(self, folder: Folder) -> set[str]:
        documents = (document for _, document in self._lines(folder, []) if not is_stand_in(document))
        return {str(document.get("receipt_id") or document.get("id")) for document in documents}

    def _lines(self, folder: Folder, torn: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield each line with its file and number. Lines that a writer left unfinished are skipped and reported."""
        with self._failures("read"):
            names = [each.name for each in folder.entries()]
            packed = [name for name in names if name.startswith("tuples-") and name.endswith(".jsonl.gz")]
            for name in (*packed, *(each for each in names if each == LOG)):
                path = self.folder / name
                with folder.file(name) as file:
                    read = (file if name == LOG else _Unpacked(path, file)).readline
                    for number, line in enumerate(iter(partial(read, _LONGEST_LINE + 1), b""), 1):
                        if len(line) > _LONGEST_LINE:
                            raise TupleError(
                                f"{path}:{number}: the line has more than {_LONGEST_LINE:,} bytes, which no tuple has. If you "
                                "do not know where the file is from, remove it"
                            )
                        if not line.strip():
                            continue
                        try:
                            document = json.loads(line)
                        except ValueError:
                            torn.append(f"{path}:{number}")
                            continue
                        if not isinstance(document, dict):
                            raise TupleError(f"{path}:{number}: each line must be a JSON object")
                        yield f"{path}:{number}", document

    def _rotate(self, folder: Folder) -> None:
        """Compress the log if its last line is of an earlier day."""
        entry = folder.entry(LOG)
        if entry is None or not entry.size:
            return
        day = datetime.datetime.fromtimestamp(entry.status.st_mtime, datetime.UTC).date()
        if day >= datetime.datetime.now(datetime.UTC).date():
            return
        packed = f"tuples-{day.isoformat()}.jsonl.gz"
        with folder.file(LOG) as file:
            content = file.read()
        before, last = b"", bytearray()
        if folder.entry(packed) is not None:
            with folder.file(packed) as file:
                unpacked = _Unpacked(self.folder / packed, file)
                while line := unpacked.readline(_LONGEST_LINE):
                    last += line
                    if len(last) > 2 * len(content):
                        del last[: -len(content)]
                file.seek(0)
                before = file.read()
        # What an interrupted rotation left is complete, or is made again. Parts of a gzip file may follow each other.
        if not last.endswith(content):
            folder.replace(packed, before + gzip.compress(content, mtime=0))
        folder.unlink(LOG)


class _Unpacked:
    """The lines of a compressed day, read within limits: a small file may unpack to gigabytes, or to so many empty lines that
    they take hours."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._lines = gzip.GzipFile(fileobj=file, mode="rb")
        self._left = max(_MOST_UNPACKED, _LARGEST_RATIO * os.fstat(file.fileno()).st_size)

    def readline(self, most: int) -> bytes:
        line: bytes = self._lines.readline(most)
        self._left -= max(len(line), 100)
        if self._left < 0:
            raise TupleError(
                f"{self._path}: it unpacks to more than {_LARGEST_RATIO} times its size, which no log does. If you do not know "
                "where the file is from, remove it"
            )
        return line


def _receipt_file(receipt_id: str) -> str:
    """The file of a receipt, below the folder."""
    digits = receipt_id.removeprefix("sha256:")
    return f"receipts/{digits[:2]}/{digits[2:]}.json"
