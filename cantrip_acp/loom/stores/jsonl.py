"""JSON lines store: a file with one record per line, each appended with one write, by one writer at a time.

Each line ends with its checksum and that of the line before it (`checksum`). A changed line that can still be read is
reported and kept. `JsonlStore.damaged` finds removed, doubled and swapped lines. On close, the writer saves the number
of lines and the size in an extended attribute of the file, where the file system has those; so missing last lines are
found. A copy without attributes (`cp` without ``--preserve=xattr``) cannot show that.

A crash can only tear the last line. Opening for writing moves a torn line to a file beside the loom and reports it;
everything before it is kept. A damaged line further up is reported and skipped, and is not moved.

A reader follows the writer (`JsonlStore.news`). Lines that were read never change, so only new lines are read.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Container, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.files import guarded
from cantrip_acp.loom.records import record_heads as heads
from cantrip_acp.loom.records.record_heads import Head, LaterHead
from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.loom.stores import cast_locks, checksum, file_locks, index_file, line_file, rows
from cantrip_acp.loom.stores.line_file import CHUNK, Growth
from cantrip_acp.types.errors import LoomDamaged, LoomError, LoomWriteError
from cantrip_acp.types.records import FORMAT, LaterRecord, LoomHeader, Record

if TYPE_CHECKING:
    from cantrip_acp.loom.records.tree import Tree

_AHEAD = 1 << 16
"""The read size in bytes where several records are wanted."""
_BEGINNING = b'{"type":"loom"'
"""The start of a loom's first record. After a crash, the file may hold only a part of it."""
_END = "user.cantrip.loom.end"
"""The attribute with the file's number of lines, its size in bytes, and the checksum of its last line."""


def _decode_line(line: memoryview) -> tuple[Record | LaterRecord, bool]:
    return rows.record_of(line), checksum.is_valid(line) is False


class JsonlStore:
    """Records in a file. With ``fsync`` each append waits for the disk; without it, only for the kernel.

    Raises `LoomLocked` if another writer has the file open, `LoomError` if it cannot be opened or is of a newer
    format.
    """

    def __init__(self, path: Path | str, *, fsync: bool = False, readonly: bool = False) -> None:
        self.path = Path(path)
        self.problems: list[Problem] = []
        self.readonly = readonly
        self.behind = False
        self._fsync = fsync
        self._fd = -1
        self._end = 0
        self._scanned = False
        self._indexed = False
        """Whether the index file describes the whole loom."""
        self._number = 0
        """The number of lines up to ``_end``."""
        self.given = (0, 0)
        """The line number (from 1) and the length in bytes of the last record from `heads` or `news`."""
        self._prev: str | None = None
        """The checksum that the next line names; None until it was looked up."""
        self._torn = False
        """Whether the last line was torn when the file was opened."""
        self._full_path = os.path.abspath(self.path)
        self._growth = Growth(self.path)
        self._held: guarded.Held | None = None
        if not readonly:
            try:
                self._held = guarded.Held(self._full_path, (".index",))
            except OSError as error:
                raise LoomError(f"cannot open loom {self.path}: {error.strerror}") from None
        try:
            self._fd = line_file.open_reading(self.path) if readonly else line_file.open_writing(self.path)
        except BaseException:
            self._release()
            raise
        self._locks = cast_locks.CastLocks(self._full_path, self._fd)
        cast_locks.not_for_children(self)

    @property
    def location(self) -> str | None:
        return str(self.path)

    def append(self, record: Record | LaterRecord, body: bytes | bytearray) -> int:
        if self.readonly or self._fd < 0:
            raise LoomError(f"loom {self.path} is {'open for reading only' if self.readonly else 'closed'}")
        buffer = body if isinstance(body, bytearray) else bytearray(_on_one_line(body))
        if self._prev is None:
            self._prev = self._last_sum()
        own = checksum.close(buffer, self._prev)
        position = self._end
        try:
            written = os.write(self._fd, buffer)
            while written < len(buffer):
                written += os.write(self._fd, memoryview(buffer)[written:])
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, position)
            raise LoomWriteError(
                f"cannot write loom {self.path}: {error.strerror}; earlier records are safe. "
                "Free some disk space (or choose another --state-dir) and try again"
            ) from error
        self._prev = own
        self._end = position + len(buffer)
        self._number += 1
        self._indexed = False
        return position

    def _last_sum(self) -> str:
        """The checksum that the next line names: that of the last line, or of the missing last line where lines were
        lost."""
        lost = self._cut()
        if lost is not None:
            return lost[1]
        size = CHUNK // 16
        while True:
            begin = max(0, self._end - size)
            lines = [line for line in os.pread(self._fd, self._end - begin, begin).split(b"\n") if line.strip()]
            if len(lines) > 1 or begin == 0:
                return checksum.sums(lines[-1])[1] if lines else checksum.START
            size *= 16

    def _cut(self) -> tuple[int, str] | None:
        """The former number of lines and the former last checksum, if the file is now shorter than at its last
        close."""
        try:
            lines, size, own = os.getxattr(self._fd, _END).decode().split()
            # A torn line is already reported.
            lost = os.fstat(self._fd).st_size < int(size) and int(lines) > self._number + self._torn
            return (int(lines), own) if lost else None
        except (OSError, ValueError, AttributeError):
            return None

    def _note_cut(self) -> None:
        lost = self._cut()
        if lost is not None:
            problem = Problem(_missing_lines_text(self._number, lost[0]), offset=self._end)
            if problem not in self.problems:
                self.problems.append(problem)

    def _keep_end(self) -> None:
        """Save the number of lines and the size of the file for the next opening."""
        with contextlib.suppress(OSError, AttributeError):
            os.setxattr(self._fd, _END, f"{self._number} {self._end} {self._prev}".encode())

    def read(self, position: int) -> Record | LaterRecord:
        return self._record(position, self.line_at(position))

    def _record(self, position: int, line: bytes) -> Record | LaterRecord:
        try:
            record = rows.record_of(line)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise LoomDamaged(f"loom {self.path}: no record at byte {position}: {error}") from error
        if checksum.is_valid(line) is False and all(problem.offset != position for problem in self.problems):
            # A loom that opens from its index has not checked its lines.
            self.problems.append(Problem(checksum.CHANGED, None, position, len(line)))
        return record

    def read_all(self, positions: Iterable[int]) -> list[Record | LaterRecord]:
        found, start, held = list[Record | LaterRecord](), 0, b""
        for position in positions:
            end = held.find(b"\n", position - start) if start <= position < start + len(held) else -1
            if end < 0:
                # Records that are read together are mostly close to each other.
                size = _AHEAD if start < position < start + _AHEAD else line_file.LINE
                start, held = position, os.pread(self._fd, size, position)
                end = held.find(b"\n")
            line = held[position - start : end] if end >= 0 else self.line_at(position)
            found.append(self._record(position, line))
        return found

    def line_at(self, position: int) -> bytes:
        """The line that begins at a position, unchanged."""
        return line_file.line_at(self._fd, position)

    def scan(self) -> Iterator[tuple[int, Record | LaterRecord]]:
        """Yield every readable record. The first scan adds problems and, for a writer, moves a torn last line to
        another file."""
        return self._scan(_decode_line)

    def stored(self) -> Iterator[tuple[Record | LaterRecord, bytes | None]]:
        return (each for _, each in self._scan(lambda line: ((rows.record_of(line), checksum.strip(line)), False)))

    def tree(self) -> Tree | None:
        found = index_file.read(self.path, self._fd)
        if found is None:
            return None
        self.problems, self._number, self._end = found.problems, found.lines, found.stamp.size
        self._scanned = self._indexed = True
        self._growth.remember(self._fd, self._end)
        self._note_cut()
        return found.tree

    def heads(self) -> Iterator[tuple[int, Head | LaterHead]]:
        return self._scan(checksum.head)

    def note(self, position: int, message: str, rule: str = "changed-line") -> None:
        self.problems.append(Problem(message, self.given[0], position, self.given[1], rule=rule))

    def news(self) -> Iterator[tuple[int, Head | LaterHead]]:
        """Yield new whole lines as the writer adds them; a torn last line is left until it is whole. Costs two system
        calls if nothing was added. Raises `LoomChanged` if the path no longer names the file that was opened."""
        if not self.readonly:
            return
        if self._fd < 0:
            raise LoomError(f"loom {self.path} is closed")
        size = self._growth.size(self._fd, self._end)
        if size is None or size < self._end:
            return
        # A line that was torn may be whole by now, or the next writer may have moved it away.
        torn = [problem for problem in self.problems if problem.rule == "torn-line"]
        self.problems = [problem for problem in self.problems if problem not in torn]
        for line, whole in line_file.lines(self._fd, self._end, size):
            if not whole:
                self.problems += [problem for problem in torn if problem.offset == self._end]
                break
            start, length = self._end, len(line)
            self._end += length + 1
            self._number += 1
            try:
                head, changed = checksum.head(line)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                self.problems.append(_unread(error, bytes(line), self._number, start))
                continue
            if changed:
                self.problems.append(Problem(checksum.CHANGED, self._number, start, length))
            self._readable(head)
            self.given = (self._number, length)
            yield start, head
        self._growth.remember(self._fd, self._end)

    def damaged(self) -> list[Problem]:
        noted: list[Problem] = []
        for _ in self._scan(_decode_line, noted):
            pass
        known = {problem.line for problem in noted}
        return sorted([*noted, *self._unchained(known)], key=lambda problem: problem.line or 0)

    def _unchained(self, damaged: Container[int | None]) -> Iterator[Problem]:
        """Yield lines that do not follow the line before them, and check the end of the file."""
        chains, number, offset = checksum.Chains(), 0, 0
        try:
            count, size, last = os.getxattr(self._fd, _END).decode().split()
            end = (int(count), int(size), last)
        except (OSError, ValueError, AttributeError):
            end = None
        for line, whole in line_file.lines(self._fd):
            number += 1
            start, offset = offset, offset + len(line) + (1 if whole else 0)
            if bytes(line[:64]).strip() and (whole or checksum.is_valid(line)):
                chained = checksum.sums(line)[0] is not None
                wrong = chains.follow("", f"line {number}", line, ours=chained or _is_ours(line))
                if wrong is not None and number not in damaged:
                    yield Problem(wrong, number, start, len(line))
            if end is not None and number == end[0] and end[2] not in chains.last(""):
                yield Problem(_REPLACED, number, start, len(line))
        if not offset and self.readonly and not self._is_written():
            # A writer that wrote nothing removes its file.
            yield Problem("the file is empty: all that was in it is lost", offset=0, length=0)
        if end is not None and number < end[0] and offset >= end[1]:
            # A shorter file is reported when it is opened.
            yield Problem(_missing_lines_text(number, end[0]), offset=offset)

    def _scan(
        self,
        decode: Callable[[memoryview], tuple[Any, bool]],
        noted: list[Problem] | None = None,
    ) -> Iterator[tuple[int, Any]]:
        """Yield each record; ``decode`` also says whether its line was changed."""
        if noted is None:
            noted = self.problems if not self._scanned else []
        offset, number, good = 0, 0, 0
        for line, whole in line_file.lines(self._fd):
            number += 1
            start, offset = offset, offset + len(line) + (1 if whole else 0)
            try:
                record, changed = decode(line)
            except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
                raw = bytes(line)
                if whole or not raw.strip():
                    noted.append(_unread(error, raw, number, start))
                else:
                    begun = number == 1 and _BEGINNING.startswith(raw[: len(_BEGINNING)])
                    if not (good or begun or self.readonly):
                        raise self._no_loom() from None
                    torn = self._set_aside(number, start, raw)
                    if torn is not None:
                        noted.append(torn)
                    offset, number = start, number - 1
                continue
            good += 1
            if changed:
                noted.append(Problem(checksum.CHANGED, number, start, len(line)))
            if not whole:
                # A record without its newline is still whole. Add the newline, or the next record would join it.
                if not self.readonly:
                    os.write(self._fd, b"\n")
                elif not self._scanned:
                    self._growth.lacks_newline = True
                offset += 1
            if type(record) is LoomHeader:
                self._readable(record)
            self.given = (number, len(line))
            yield start, record
        if offset and not good and not self.readonly and noted and noted[0].length:
            raise self._no_loom()
        if not self._scanned:
            self._scanned, self._end, self._number = True, offset, number
            self._growth.remember(self._fd, self._end)
            self._note_cut()

    def _readable(self, record: Any) -> None:
        if isinstance(record, LoomHeader) and record.format > FORMAT:
            raise LoomError(
                f"loom {self.path} has format {record.format}; this version reads up to {FORMAT}. Upgrade cantrip-acp"
            )

    def _no_loom(self) -> LoomError:
        """The error for a file that is not a loom. It may be somebody's own file, so nothing in it is moved and nothing
        added."""
        return LoomError(f"{self.path} is not a loom: no record can be read in it. Name another file")

    def _set_aside(self, number: int, start: int, line: bytes) -> Problem | None:
        """The problem with a last line that has no newline; None while its writer may still be writing it."""
        self._torn = True
        if self.readonly:
            if self._is_written() or os.fstat(self._fd).st_size > start + len(line):
                return None
            return Problem(
                "last line is torn (a crash while writing); ignored", number, start, len(line), rule="torn-line"
            )
        for n in range(1, 10_000):
            aside = self.path.with_name(f"{self.path.name}.torn-{n}")
            try:
                fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue
            except OSError as error:
                raise self._stuck(aside, error) from error
            try:
                with open(fd, "wb") as file:
                    file.write(line)
            except OSError as error:
                os.unlink(aside)
                raise self._stuck(aside, error) from error
            break
        os.ftruncate(self._fd, start)
        return Problem("last line was torn (a crash while writing)", number, start, len(line), str(aside), "torn-line")

    def _is_written(self) -> bool:
        """Whether another process has the file open for writing."""
        try:
            return file_locks.locked(self._fd)
        except OSError:
            return False

    def _stuck(self, aside: Path, error: OSError) -> LoomWriteError:
        return LoomWriteError(
            f"cannot open loom {self.path} for writing: its last line is torn and cannot be set aside in {aside}: "
            f"{error.strerror}. Make room and try again; nothing was changed"
        )

    def lock_cast(self, cast_id: str) -> bool:
        return self._locks.lock_cast(cast_id)

    def release(self, cast_id: str) -> None:
        self._locks.release(cast_id)

    def running(self, cast_ids: Iterable[str]) -> set[str]:
        return self._locks.running(cast_ids)

    def after_fork(self) -> None:
        """In a forked child: read only, without the parent's lock."""
        if self._fd >= 0 and not self.readonly:
            self.readonly = True
            try:
                cast_locks.replace(self._fd, self._full_path)
            except OSError:
                os.close(self._fd)
                self._fd = -1

    def _release(self) -> None:
        if self._held is not None:
            self._held.release()

    def close(self, tree: Tree | None = None) -> None:
        self._release()
        if self._fd < 0:
            return
        self._locks.close()
        if self._prev is not None and not self.readonly:
            self._keep_end()
        if tree is not None and not self.readonly and not self._indexed:
            index_file.write(self.path, self._fd, tree, self.problems, self._number)
        fd, self._fd = self._fd, -1
        if not self.readonly and self._end == 0:
            # Nothing was written, so remove the empty file. We still hold the lock here.
            with contextlib.suppress(OSError):
                if os.fstat(fd).st_size == 0 and not os.path.islink(self.path):
                    os.unlink(self.path)
        os.close(fd)


_REPLACED = "is not the line that stood here when the file was last closed: this line and others were changed together"


def _unread(error: Exception, line: bytes, number: int, start: int) -> Problem:
    """The problem with a line that holds no record."""
    if not line.strip():
        return Problem("empty line passed over", number, start, len(line), rule="empty-line")
    return Problem(f"not a loom record: {error}", number, start, len(line), rule="damaged-line")


def _missing_lines_text(lines: int, before: int) -> str:
    gone = f"{before - lines:,} of its last lines are" if before > lines else "a part of its last lines is"
    return f"the file is shorter than when it was last closed: {gone} missing"


def _is_ours(line: memoryview) -> bool:
    """Whether this version writes records of this kind."""
    try:
        heads.head_decoder().decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return heads.later(line) is None
    return True


def _on_one_line(data: bytes) -> bytes:
    """Put JSON of any layout on one line."""
    return data if b"\n" not in data and data[-1:] == b"}" else msgspec.json.format(data, indent=-1)
