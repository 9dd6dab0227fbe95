"""A state folder with looms of any age."""

from __future__ import annotations

import os
import time
from pathlib import Path

from cantrip_acp import Loom, Turn
from cantrip_acp.retention.rules import DAY
from cantrip_acp.types.records import CastRecord, ForkRecord, Utterance


def keep(state: Path, name: str, *, days: float = 0, size: int = 0, after: str | None = None, by: str = "fork") -> Path:
    """A loom of two turns named after it, that many days old, with about so many bytes more; ``after``: a turn of another
    loom that it goes on from."""
    path = state / "looms" / f"{name}.loom.jsonl"
    with Loom.open(path) as loom:
        loom.append(Turn(f"t_{name}_0", None, "c", "e", None, role="call"))
        loom.append(Turn(f"t_{name}_1", f"t_{name}_0", "c", "e", None, utterance=Utterance("x" * size)))
        if after is not None and by == "fork":
            loom.append(ForkRecord("k", after, "e"))
        elif after is not None:
            loom.append(CastRecord("k", "start", "e", "c", parent_turn_id=after))
    age(path, days)
    return path


def age(path: Path, days: float) -> Path:
    """The file as if nobody had written to it for so long."""
    then = time.time() - days * DAY
    os.utime(path, (then, then), follow_symlinks=False)
    return path


def names(state: Path) -> list[str]:
    """The looms that are there."""
    return sorted(p.name.partition(".")[0] for p in (state / "looms").glob("*.loom.jsonl"))
