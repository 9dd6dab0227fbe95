"""Writing an export: a row a line, to a stream or to a file that is there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import msgspec

from cantrip_acp.errors import LoomError
from cantrip_acp.loom.export.contract import Format, Report
from cantrip_acp.loom.export.source import Source
from cantrip_acp.redaction import shared

_encoder = msgspec.json.Encoder()


def write(format_: Format, source: Source, out: BinaryIO) -> Report:
    """Write the rows as they are made; what became of it. Raises what the stream raises, and `LoomError`.

    Secrets that this process knows are masked once more: an imported loom, or one of another machine, may hold them.
    """
    redactor = shared()
    for row in format_.rows(source):
        out.write(_encoder.encode(redactor.data(row)) + b"\n")
        source.report.rows += 1
    for cantrip_id in sorted(source.seen.rebuilt):
        source.note(
            f"the loom does not say what {cantrip_id} was shown of its circle; it is told in this version's words"
        )
    return source.report


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file that takes its name when everything is written; where that fails, what stood there before stays.

    Raises `LoomError` where it cannot be made.
    """
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:
        raise LoomError(f"cannot write {path}: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(name, (path.stat().st_mode & 0o777) if path.exists() else 0o666 & ~mask)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
