"""Where the looms of the stores' suite are kept."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cantrip_acp import Loom

STORES = ("memory", "jsonl", "sqlite", "postgres")
"""Every kind of store of a loom."""
KEPT = STORES[1:]
"""Those that outlive a process."""
DATABASES = STORES[2:]
"""Those that many may write at once; the tuple-space and the substrate have no others."""
FILES = STORES[1:3]
"""Those that need no server."""

_names = itertools.count()


@dataclass
class Place:
    """A loom's place in one kind of store. ``where`` is what `Loom.open` takes; empty in memory."""

    kind: str
    where: str
    base: Any = None
    opened: list[Loom] = field(default_factory=list)

    @classmethod
    def at(cls, kind: str, base: Any, name: str = "loom") -> Place:
        """A new place: ``base`` is a folder, or a running PostgreSQL."""
        if kind == "memory":
            return cls(kind, "")
        if kind == "jsonl":
            return cls(kind, str(Path(base) / f"{name}.loom.jsonl"), base)
        if kind == "postgres":
            return cls(kind, base.url(f"{name}-{next(_names)}-{os.getpid()}"), base)
        return cls(kind, f"sqlite:{base}/{name}.db", base)

    @classmethod
    def like(cls, other: Place, name: str) -> Place:
        """Another place beside."""
        return cls.at(other.kind, other.base, f"{name}-{next(_names)}")

    def open(self, *, readonly: bool = False) -> Loom:
        """The loom there."""
        loom = Loom.memory() if self.kind == "memory" else Loom.open(self.where, readonly=readonly)
        self.opened.append(loom)
        return loom

    def again(self, loom: Loom) -> Loom:
        """The loom closed and opened again; in memory, itself."""
        if self.kind == "memory":
            return loom
        loom.close()
        return self.open()

    def close(self) -> None:
        """Close whatever is still open."""
        for loom in self.opened:
            loom.close()
