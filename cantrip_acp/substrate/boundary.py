"""Boundaries: which part of the substrate a caller may read and write.

A boundary names scopes. What is placed on them, at any depth, is inside. The way down never leads *through* an
archetype to its instances, unless the boundary names that archetype: the type ``prompt`` is part of a session, but the
prompts of all sessions are not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

import msgspec

from cantrip_acp.substrate.chunks import Kind

Scopes = frozenset[str]


class Boundary(msgspec.Struct, frozen=True):
    """The scopes that a caller may read and write, as sets of scope ids. A chunk is inside if it is inside each of the sets.

    Without any set, everything is inside. With an empty set, nothing is. ``holder`` is the owner of the boundary; refusals
    name it.
    """

    read: tuple[Scopes, ...] = ()
    write: tuple[Scopes, ...] = ()
    holder: str = ""

    @classmethod
    def of(cls, *, read: Iterable[str] = (), write: Iterable[str] = (), holder: str = "") -> Boundary:
        """A boundary that allows only these scopes. Writable scopes can also be read."""
        written = frozenset(write)
        return cls((frozenset(read) | written,), (written,), holder)

    def __and__(self, other: Boundary) -> Boundary:
        """A boundary that allows only what both allow. Equal sets are kept once."""
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
        """Whether the boundary excludes anything."""
        return bool(self.read or self.write)

    def to_data(self) -> dict[str, Any]:
        """The boundary as JSON: ``{"read": [[scope, …], …], "write": …}``."""
        return {"read": [sorted(each) for each in self.read], "write": [sorted(each) for each in self.write]}


class Reach:
    """Answers which chunks are inside sets of scopes, from the placements at one moment. It caches its answers.

    ``above`` gives the placements of some kinds for many chunks: chunk, scope, and whether the placement makes the chunk an
    instance of a type.
    """

    def __init__(self, above: Callable[[Collection[str], Collection[Kind]], Iterable[tuple[str, str, bool]]]) -> None:
        self._above = above
        self._known: dict[tuple[Scopes, tuple[Kind, ...]], dict[str, bool]] = {}

    def readable(self, boundary: Boundary, chunks: Iterable[str]) -> set[str]:
        """The chunks, out of those given, that are inside the read boundary."""
        inside = set(chunks)
        for scopes in boundary.read:
            # Most are reached by instances; a scope that many sessions read has a reference from each of them.
            found = self._inside(scopes, ("instance",), inside)
            inside = found | self._inside(scopes, ("instance", "relates"), inside - found)
        return inside

    def reads(self, boundary: Boundary, chunk: str) -> bool:
        """Whether the chunk is inside the read boundary."""
        return bool(self.readable(boundary, [chunk]))

    def writes(self, boundary: Boundary, chunk: str) -> bool:
        """Whether the chunk can be read, and reached inside the write boundary by instance placements alone."""
        return all(self._inside(scopes, ("instance",), {chunk}) for scopes in boundary.write) and self.reads(
            boundary, chunk
        )

    def _inside(self, scopes: Scopes, kinds: tuple[Kind, ...], chunks: set[str]) -> set[str]:
        """The chunks that such placements connect upwards to one of the scopes."""
        known = self._known.setdefault((scopes, kinds), {})
        level = {chunk for chunk in chunks if chunk not in known}
        seen, below = set(level), dict[str, list[str]]()
        while level := level - scopes:
            reached: set[str] = set()
            # One question for each level: over a network, questions cost more than their answers.
            for chunk, scope, of_type in self._above(level, kinds):
                if not of_type or scope in scopes:
                    below.setdefault(scope, []).append(chunk)
                    reached.add(scope)
            level = reached - seen - known.keys()
            seen |= level
        # Down again from where the ways ended inside.
        inside = [each for each in seen | below.keys() if each in scopes or known.get(each)]
        known.update(dict.fromkeys(seen, False))
        known.update(dict.fromkeys(inside, True))
        for each in inside:
            for chunk in below.get(each, ()):
                if not known[chunk]:
                    known[chunk] = True
                    inside.append(chunk)
        return {chunk for chunk in chunks if known[chunk]}
