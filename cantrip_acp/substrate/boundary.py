"""Boundaries: which part of the substrate a caller may read and write.

A boundary names scopes. What is placed on them, at any depth, is inside. The way down never leads *through* an
archetype to its instances, unless the boundary names that archetype: the type ``prompt`` is part of a session, but the
prompts of all sessions are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from cantrip_acp.substrate.chunks import Placement, SubstrateError

Scopes = frozenset[str]


class Boundary(msgspec.Struct, frozen=True):
    """What a caller may read and write, as sets of scope ids. A chunk is inside if it is inside each of the sets.

    No set at all means everything. An empty set means nothing. ``holder`` is who has the boundary; refusals name it.
    """

    read: tuple[Scopes, ...] = ()
    write: tuple[Scopes, ...] = ()
    holder: str = ""

    @classmethod
    def everything(cls, holder: str = "") -> Boundary:
        """No limits: for the user, and for what runs with the user's authority."""
        return cls(holder=holder)

    @classmethod
    def of(cls, *, read: Iterable[str] = (), write: Iterable[str] = (), holder: str = "") -> Boundary:
        """Inside these scopes only. What may be written may be read too."""
        written = frozenset(write)
        return cls((frozenset(read) | written,), (written,), holder)

    def __and__(self, other: Boundary) -> Boundary:
        """Inside both. Sets that say the same are kept once."""
        return Boundary(
            tuple(dict.fromkeys((*self.read, *other.read))),
            tuple(dict.fromkeys((*self.write, *other.write))),
            other.holder or self.holder,
        )

    def held_by(self, holder: str) -> Boundary:
        """The same boundary for another holder."""
        return Boundary(self.read, self.write, holder)

    @property
    def limited(self) -> bool:
        """Whether anything is outside."""
        return bool(self.read or self.write)

    def to_data(self) -> dict[str, Any]:
        """The boundary as JSON: ``{"read": [[scope, …], …], "write": …}``. `from_data` is the way back."""
        return {"read": [sorted(each) for each in self.read], "write": [sorted(each) for each in self.write]}

    @classmethod
    def from_data(cls, data: Mapping[str, Any], holder: str = "") -> Boundary:
        """Raises `SubstrateError` if the data are not from `to_data`."""
        sets: dict[str, tuple[Scopes, ...]] = {}
        for side in ("read", "write"):
            given = data.get(side)
            if not isinstance(given, list) or not all(
                isinstance(each, list) and all(isinstance(scope, str) for scope in each) for each in given
            ):
                raise SubstrateError(f"a boundary's {side!r} is a list of lists of scope ids")
            sets[side] = tuple(frozenset(each) for each in given)
        return cls(sets["read"], sets["write"], holder)


class Reach:
    """Answers whether chunks are inside sets of scopes, from the placements of one moment. It remembers its answers.

    ``parents`` gives the current placements of a chunk; ``is_archetype`` says whether a chunk is a type.
    """

    def __init__(self, parents: Callable[[str], Iterable[Placement]], is_archetype: Callable[[str], bool]) -> None:
        self._parents = parents
        self._is_archetype = is_archetype
        self._known: dict[tuple[Scopes, bool, str], bool] = {}

    def reads(self, boundary: Boundary, chunk: str) -> bool:
        """Whether the chunk is inside the read boundary."""
        return all(self._inside(scopes, True, chunk) for scopes in boundary.read)

    def writes(self, boundary: Boundary, chunk: str) -> bool:
        """Whether the chunk is inside the write boundary: reached by instances only."""
        return all(self._inside(scopes, False, chunk) for scopes in boundary.write)

    def _inside(self, scopes: Scopes, references: bool, chunk: str) -> bool:
        known = self._known
        answer = known.get((scopes, references, chunk))
        if answer is not None:
            return answer
        seen, waiting = {chunk}, [chunk]
        while waiting:
            here = waiting.pop()
            if here in scopes or known.get((scopes, references, here)):
                known[(scopes, references, chunk)] = True
                return True
            if known.get((scopes, references, here)) is False:
                continue
            for placement in self._parents(here):
                scope = placement.scope
                if scope in seen or (placement.kind == "relates" and not references):
                    continue
                if placement.kind == "instance" and scope not in scopes and self._is_archetype(scope):
                    continue
                seen.add(scope)
                waiting.append(scope)
        # Nothing above the chunk is inside, so none of what was seen is.
        known.update(((scopes, references, each), False) for each in seen)
        return False
