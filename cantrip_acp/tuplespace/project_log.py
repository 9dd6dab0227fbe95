"""The log of a project's tuples in a folder ``.catalog/``, for projects that keep it beside their code.

``tuples.jsonl`` has a line for each tuple, and one for each receipt: ``{"receipt_id", "tuple_id", "step"}``, where ``step`` is
null for the receipt that ends the tuple. The receipts themselves are in ``receipts/<2 hex digits>/<the others>.json``. Lines
are only added. Lines of earlier days are in ``tuples-<day>.jsonl.gz``. A line is on the disk after its receipt is, so a process
that is killed leaves nothing that names a missing receipt, and at most one torn last line.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import gzip
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.tuplespace.canonical import canonical_json
from cantrip_acp.tuplespace.errors import SpaceError, TupleError
from cantrip_acp.tuplespace.receipts import is_genuine
from cantrip_acp.tuplespace.stores.base import StoredReceipt, TupleStore
from cantrip_acp.tuplespace.tuples import Pattern, WorkTuple, parse_tuple

LOG = "tuples.jsonl"
_LOCK = "tuples.lock"


class Changes(msgspec.Struct, kw_only=True):
    """What an import or export has added, and lines that a killed writer left unfinished."""

    tuples: int = 0
    receipts: int = 0
    torn: tuple[str, ...] = ()


class ProjectLog:
    """The log in a folder. The folder is made by the first export."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from writing meanwhile."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise SpaceError(f"cannot write {self.folder}: {error.strerror}") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def version(self) -> tuple[int, int]:
        """Another one after each change of the log: its time and its size."""
        try:
            found = (self.folder / LOG).stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def export(self, store: TupleStore, pattern: Pattern | None = None) -> Changes:
        """Add the tuples of a store, with their receipts, that the log does not have yet."""
        with self.locked():
            self._rotate()
            known, changes, cursor = self._known(), Changes(), ""
            with open(self.folder / LOG, "ab") as log:
                if log.tell() and self._last_byte() != b"\n":
                    log.write(b"\n")
                while True:
                    found, next_cursor = store.after(cursor, pattern or Pattern())
                    for stored in found:
                        receipts = (
                            store.receipts(stored.work.id) if stored.state != "waiting" or stored.attempts else []
                        )
                        self._add(log, stored.work, receipts, known, changes)
                    if next_cursor == cursor:
                        break
                    cursor = next_cursor
                log.flush()
                os.fsync(log.fileno())
            return changes

    def _add(self, log: Any, work: WorkTuple, receipts: list[StoredReceipt], known: set[str], changes: Changes) -> None:
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
            self._write_receipt(each.document)
            line = {"receipt_id": identity, "tuple_id": work.id, "step": each.step}
            log.write(canonical_json(line) + b"\n")
            if each.step is None:
                log.flush()
                os.fsync(log.fileno())

    def receipt_path(self, receipt_id: str) -> Path:
        """The file of a receipt."""
        digits = receipt_id.removeprefix("sha256:")
        return self.folder / "receipts" / digits[:2] / f"{digits[2:]}.json"

    def _write_receipt(self, receipt: Mapping[str, Any]) -> None:
        path = self.receipt_path(receipt["id"])
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        with open(new, "wb") as file:
            file.write(canonical_json(dict(receipt)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)

    def load(self, store: TupleStore, pattern: Pattern | None = None) -> Changes:
        """Put the log's tuples into a store, those that ended with their receipts. What the store knows stays as it is.

        Raises `TupleError` with file and line for what is not genuine. Then nothing is put.
        """
        works: dict[str, WorkTuple] = {}
        receipts: dict[str, list[StoredReceipt]] = {}
        changes, torn = Changes(), list[str]()
        for where, document in self._lines(torn):
            if "receipt_id" in document:
                receipts.setdefault(document.get("tuple_id", ""), []).append(self._receipt(where, document))
                continue
            try:
                work = parse_tuple(document)
            except TupleError as error:
                raise TupleError(f"{where}: {error}") from None
            if pattern is None or pattern.matches(work.document):
                works[work.id] = work
        changes.torn = tuple(torn)
        waiting = []
        for identity, work in works.items():
            of_tuple = receipts.get(identity, [])
            if any(each.step is None for each in of_tuple):
                if store.put_ended(work, of_tuple):
                    changes.tuples += 1
                    changes.receipts += len(of_tuple)
            else:
                waiting.append(work)
        for first in range(0, len(waiting), 500):
            changes.tuples += sum(store.put(waiting[first : first + 500]))
        return changes

    def _receipt(self, where: str, line: Mapping[str, Any]) -> StoredReceipt:
        identity, step = line.get("receipt_id"), line.get("step")
        if not isinstance(identity, str) or not (step is None or isinstance(step, int)):
            raise TupleError(f"{where}: a line of a receipt has receipt_id, tuple_id and step")
        path = self.receipt_path(identity)
        try:
            document = json.loads(path.read_bytes())
        except (OSError, ValueError) as error:
            raise TupleError(f"{where}: the receipt cannot be read from {path}: {error}") from None
        if not isinstance(document, dict) or document.get("id") != identity or not is_genuine(document):
            raise TupleError(f"{where}: {path} is not the receipt {identity}: its content has another hash")
        if document.get("tuple_id") != line.get("tuple_id"):
            raise TupleError(f"{where}: {path} is a receipt of another tuple")
        return StoredReceipt(document=document, step=step)

    def _known(self) -> set[str]:
        return {str(document.get("receipt_id") or document.get("id")) for _, document in self._lines([])}

    def _lines(self, torn: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each line with its file and number. Lines that were cut while they were written are left out and named."""
        try:
            files = [*sorted(self.folder.glob("tuples-*.jsonl.gz")), self.folder / LOG]
        except OSError as error:
            raise SpaceError(f"cannot read {self.folder}: {error.strerror}") from None
        for path in files:
            if not path.exists():
                continue
            try:
                with gzip.open(path, "rb") if path.suffix == ".gz" else open(path, "rb") as lines:
                    for number, line in enumerate(lines, 1):
                        if not line.strip():
                            continue
                        try:
                            document = json.loads(line)
                        except ValueError:
                            torn.append(f"{path}:{number}")
                            continue
                        if not isinstance(document, dict):
                            raise TupleError(f"{path}:{number}: a line is a JSON object")
                        yield f"{path}:{number}", document
            except (OSError, EOFError) as error:
                raise SpaceError(f"cannot read {path}: {error}") from None

    def _last_byte(self) -> bytes:
        with open(self.folder / LOG, "rb") as log:
            log.seek(-1, os.SEEK_END)
            return log.read()

    def _rotate(self) -> None:
        """Compress the log if its last line is of an earlier day."""
        log = self.folder / LOG
        if not log.exists() or not log.stat().st_size:
            return
        day = datetime.datetime.fromtimestamp(log.stat().st_mtime, datetime.UTC).date()
        if day >= datetime.datetime.now(datetime.UTC).date():
            return
        packed = self.folder / f"tuples-{day.isoformat()}.jsonl.gz"
        new = packed.with_suffix(".new")
        # What an interrupted rotation left is complete, or is made again.
        before = gzip.decompress(packed.read_bytes()) if packed.exists() else b""
        content = log.read_bytes()
        if not before.endswith(content):
            with open(new, "wb") as file:
                file.write(gzip.compress(before + content, mtime=0))
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, packed)
        log.unlink()
