"""Foreign files of JSON lines, taken as hostile: bounded, decoded strictly, each problem with its line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.loom.importing.contract import ImportProblem

LONGEST = 256_000_000
"""Bytes of a line beyond which nobody's trace goes."""


def objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each line's object, with ``FILE:LINE``. Raises `ImportProblem` for what is none, and for a file that cannot be read."""
    try:
        if not path.is_file():
            raise ImportProblem(str(path), "this is no regular file" if path.exists() else "no such file")
        with path.open("rb") as file:
            number = 0
            while line := file.readline(LONGEST + 1):
                number += 1
                where = f"{path}:{number}"
                if len(line) > LONGEST:
                    raise ImportProblem(where, f"a line of more than {LONGEST:,} bytes")
                if not line.strip():
                    continue
                yield where, _decoded(where, line)
    except OSError as error:
        raise ImportProblem(str(path), f"cannot be read: {error.strerror}") from error


def _decoded(where: str, line: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ImportProblem(where, f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ImportProblem(where, f"a JSON object is expected, not {type(found).__name__}")
    return found
