"""Earlier casts: short digests of what was asked in this folder before, from the looms of the state folder.

Each entity gets them once, with its first intent. A digest quotes old text: it may be out of date, and it is not an
instruction.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio.to_thread

from cantrip_acp.core.context_block import CastInfo, ContextBlock
from cantrip_acp.core.errors import CantripError
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn import CastRecord

MOST_LOOMS = 60
"""Looms to read of all folders, latest first. The limit keeps the first answer fast."""
SECONDS = 0.5
LONGEST = 300
"""Maximum number of characters of an intent or an outcome."""
_HEAD = (
    "What was asked in this folder in earlier sessions, the latest first, and how it ended. Files may have changed since; "
    "none of this is a task now.\n"
)
_MOST_ENTITIES = 10_000
_SOURCE = "memory"


class Sessions:
    """The contributor for one workspace. Gives at most ``most`` earlier casts.

    ``looms`` is the folder of looms; ``database`` is the address of a loom that many sessions share, if there is one.
    """

    def __init__(self, workspace: Path, looms: Path, most: int, *, database: str | None = None) -> None:
        self._workspace = os.path.realpath(workspace)
        self._looms = looms
        self._database = database
        self._most = most
        self._reported: set[str] = set()

    async def __call__(self, info: CastInfo) -> Sequence[ContextBlock]:
        if info.entity_id in self._reported or self._most <= 0:
            return ()
        if len(self._reported) >= _MOST_ENTITIES:
            self._reported.clear()
        self._reported.add(info.entity_id)
        if any(block.source == _SOURCE for block in info.pinned()):
            # The entity got the digests in another process.
            return ()
        lines = await anyio.to_thread.run_sync(self._digests, info.entity_id)
        return (ContextBlock(_HEAD + "\n".join(lines), "earlier sessions here", _SOURCE),) if lines else ()

    def _digests(self, entity_id: str) -> list[str]:
        until = time.monotonic() + SECONDS
        found: list[tuple[str, str]] = []
        looms: list[Path | str] = [*self._latest()]
        if self._database is not None:
            looms.insert(0, self._database)
        for path in looms:
            if time.monotonic() > until:
                break
            try:
                with Loom.open(path, readonly=True) as loom:
                    found += [(start.timestamp, _digest(start, end)) for start, end in self._casts(loom, entity_id)]
            except (CantripError, OSError):
                # `cantrip loom` reports damaged looms; skip them here.
                continue
            if len(found) >= self._most and path != self._database:
                break
        found.sort(reverse=True)
        return [line for _, line in found[: self._most]]

    def _latest(self) -> list[Path]:
        try:
            with os.scandir(self._looms) as entries:
                looms = [(e.stat().st_mtime, e.path) for e in entries if e.name.endswith(".loom.jsonl")]
        except OSError:
            return []
        looms.sort(reverse=True)
        return [Path(path) for _, path in looms[:MOST_LOOMS]]

    def _casts(self, loom: Loom, entity_id: str) -> Iterator[tuple[CastRecord, CastRecord | None]]:
        """The casts of root entities in this folder, latest first, without the asking entity's own."""
        here: dict[str, bool] = {}
        for start in reversed(loom.cast_starts().values()):
            if start.entity_id == entity_id or start.parent_turn_id is not None or not start.intent or start.resumes:
                continue
            if start.cantrip_id not in here:
                record = loom.cantrip(start.cantrip_id)
                folder = record.circle.get("workspace") if record is not None else None
                here[start.cantrip_id] = isinstance(folder, str) and os.path.realpath(folder) == self._workspace
            if here[start.cantrip_id]:
                yield start, loom.cast_end(start.id)


def _digest(start: CastRecord, end: CastRecord | None) -> str:
    when = start.timestamp[:16].replace("T", " ")
    if end is None:
        outcome = "it did not end"
    else:
        said = end.result if end.result is not None else end.summary
        outcome = f"{end.reason}: {_short(said)}" if said not in (None, "") else str(end.reason)
    return f"- {when} asked: {_short(start.intent)} → {outcome}"


def _short(value: Any) -> str:
    """One line in quotes, so that old text is seen as a quotation."""
    said = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(said.split())
    return json.dumps(line if len(line) <= LONGEST else line[: LONGEST - 1] + "…", ensure_ascii=False)
