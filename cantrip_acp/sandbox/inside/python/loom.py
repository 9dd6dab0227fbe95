"""Loom view in a cell: the entity's own history, read-only (LOOM-11): ``loom[0]``, ``len(loom)``, ``for turn in
loom``.
"""

from __future__ import annotations

import builtins

from .wire import Wire

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

globals()["__builtins__"] = dict(vars(builtins))

_PAGE = 50


class LoomView:
    """Turns of this entity, oldest first, each a dict as it stands in the loom. What is read is a copy.

    With ``upto``, only so many of the first.
    """

    def __init__(self, wire: Wire, upto: int | None = None) -> None:
        self._wire = wire
        self._upto = upto

    def _page(self, start: int, count: int) -> dict[str, Any]:
        if self._upto is not None:
            count = max(0, min(count, self._upto - start))
        found = self._asked(start, count)
        if self._upto is not None:
            found["length"] = min(found["length"], self._upto)
        return found

    def _asked(self, start: int, count: int) -> dict[str, Any]:
        while True:
            reply = self._wire.ask({"t": "loom", "start": start, "count": count})
            found: dict[str, Any] | str = reply["result"]
            if isinstance(found, dict) and not reply.get("error"):
                return found
            if count <= 1:
                raise RuntimeError(f"turn {start} of the loom cannot be read: {found}")
            # Turns may be large, and the size of an answer is limited.
            count //= 2

    def __len__(self) -> int:
        return int(self._page(0, 0)["length"])

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = index if index >= 0 else index + len(self)
        turns = self._page(place, 1)["turns"] if place >= 0 else []
        if not turns:
            raise IndexError(f"the loom has {len(self)} turns; there is no turn {index}")
        return turns[0]

    def __iter__(self) -> Iterator[Any]:
        start = 0
        while turns := self._page(start, _PAGE)["turns"]:
            yield from turns
            start += len(turns)

    def turns(self) -> list[Any]:
        """All of them."""
        return list(self)

    def __repr__(self) -> str:
        name = "loom" if self._upto is None else "folded_turns"
        return f"<{name}: {len(self)} turns; {name}[i] and iteration give each turn as a dict>"
