"""Files that a recipe needs, each read once: what was judged is what is used."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.recipes.document import MAX_BYTES


class Files:
    """Reads files and remembers their bytes for as long as it lives."""

    def __init__(self) -> None:
        self._held: dict[Path, bytes] = {}

    def read(self, path: Path, shown: str | None = None) -> bytes:
        """The content of a regular file. Raises `DefinitionError` that says why it cannot be had."""
        key = Path(os.path.realpath(path))
        if key not in self._held:
            self._held[key] = _read(path, shown if shown is not None else str(path))
        return self._held[key]

    def hold(self, path: Path, raw: bytes) -> None:
        """Take this for a file's content: what an editor has open, saved or not."""
        self._held[Path(os.path.realpath(path))] = raw


def _read(path: Path, shown: str) -> bytes:
    try:
        # Not blocking: a pipe that somebody put in a recipe's place would wait for a writer for ever.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DefinitionError("not a regular file", where=shown)
            raw = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise DefinitionError("no such file", where=shown) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DefinitionError(f"cannot be read: {reason}", where=shown) from None
    if len(raw) > MAX_BYTES:
        raise DefinitionError(f"too large: a recipe and what it names have at most {MAX_BYTES:,} bytes", where=shown)
    return raw
