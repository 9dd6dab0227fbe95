"""One commit: the rules of a change, and what a limited caller may write.

The rules of a change, by the name that a `CommitRefused` gives:

- ``exists``: a placement's chunk and scope exist, or are in the same commit.
- ``accepts``: an instance on a scope that accepts types is an instance of one of them, and stays one. A type is found by its
  name among what *relates* to the scope or to one of the scope's archetypes.
- ``required``: the body of an instance has the keys that its archetypes require.
- ``ordered``, ``sequence``: only ordered scopes have sequence numbers, and each number is used once.
- ``placement``: only what is placed can be removed.
- ``private``: where several people use the database, a new chunk that is placed on private scopes alone has a private id.

A caller with a limited boundary writes inside it. It may also say that its new chunk is an instance of a *type* that it may
read: an archetype that relates to the scope of all types, or to a scope that accepts it by name. Other archetypes, such as a
scope that the user pinned, are scopes like any other.

A rule is checked when a chunk is placed or changed, or when it stops being an instance of a type. A later change of a type does
not touch what is already there.
"""

from __future__ import annotations

from cantrip_acp.substrate.boundary import Boundary, Reach
from cantrip_acp.substrate.chunks import (
    PROCESS,
    Change,
    Chunk,
    CommitRefused,
    NewPlacement,
    Removal,
    breach,
    encode_body,
)
from cantrip_acp.substrate.owners import PRIVATE, privacy
from cantrip_acp.substrate.stores.base import NOW, Record, View

ALL_TYPES = "types"
"""The scope of the types that every substrate has (`types.TYPES`)."""
_RESERVED = (
    *(
        "type:",
        "project:",
        "session:",
        "culture:",
        "file:",
        "skill:",
        "skills:",
        "program:",
        "engine:",
        "folder:",
        PROCESS,
    ),
    *("prompt:", "answer:", "call:", "result:", "context:", "attachment:"),
)
"""The beginnings of ids that only cantrip makes: of a name, a folder, an entity or its turns, so that they are known before
they exist; or for the runs of programs."""


class Outside(Exception):
    """A chunk that the caller may not write, and the reason."""

    def __init__(self, chunk: str, text: str) -> None:
        self.chunk, self.text = chunk, text


class Writer:
    """One commit in its transaction."""

    def __init__(self, view: View, boundary: Boundary, source: str) -> None:
        self._view, self._boundary, self._source = view, boundary, source
        self._chunks: dict[str, Chunk | None] = {}
        self._archetypes: dict[str, list[Chunk]] = {}
        self._types: dict[tuple[str, str], set[str]] = {}
        self._coming: dict[str, list[str]] = {}
        """By chunk, the scopes of which it becomes an instance by this commit."""
        self._new: set[str] = set()
        """The chunks that a limited writer makes."""
        self._foreign: set[str] = set()
        """Chunks on scopes that a limited writer changes, which it may not change itself, and which were no types before."""
        self._made: set[str] = set()
        """The chunks that this commit makes. The database has no placement of them before, so it is not asked."""
        self._private: set[str] = set()
        """New chunks that are the user's own, although their ids do not say it."""
        self._highest: dict[str, int] = {}
        """The highest sequence number of each ordered scope that this commit adds to."""

    def _chunk(self, chunk_id: str) -> Chunk | None:
        if chunk_id not in self._chunks:
            self._chunks[chunk_id] = self._view.chunk(chunk_id)
        return self._chunks[chunk_id]

    def check_boundary(self, change: Change) -> None:
        """Raise `Outside` for parts of the change that the caller may not write, judged before this commit."""
        boundary = self._boundary
        if not boundary.limited:
            return
        reach = reach_at(self._view)
        for chunk in change.chunks:
            before = self._chunk(chunk.id)
            if before is None:
                self._new.add(chunk.id)
                if chunk.id.startswith(_RESERVED):
                    # Such an id is fixed: the scope that gets it later would be inside this boundary from then on.
                    raise Outside(chunk.id, _not_writable(chunk.id))
            elif not reach.writes(boundary, chunk.id):
                raise Outside(chunk.id, _not_writable(chunk.id))
            elif (before.spec.propagate, before.spec.required) != (chunk.spec.propagate, chunk.spec.required):
                # A change of an archetype would change the chunks that others can reach.
                raise Outside(chunk.id, f"chunk {chunk.id!r}: only the user may change 'propagate' and 'required'")
        for each in change.touched():
            scope = self._chunk(each.scope)
            archetype = scope is not None and scope.spec.archetype and each.kind == "instance"
            if not (
                each.scope in self._new
                or (scope is not None and reach.writes(boundary, each.scope))
                or (archetype and reach.reads(boundary, each.scope) and self._is_type(each.scope))
            ):
                raise Outside(each.scope, f"scope {each.scope!r} is not inside the write boundary")
            if each.chunk not in self._new and not (
                reach.writes(boundary, each.chunk)
                or (
                    each.kind == "relates" and self._chunk(each.chunk) is not None and reach.reads(boundary, each.chunk)
                )
            ):
                raise Outside(each.chunk, f"chunk {each.chunk!r} is not inside the boundary")
        placed = [each.chunk for each in change.placements if each.kind == "relates"]
        placed += [each.chunk for chunk in change.chunks for each in self._view.references(chunk.id)]
        self._foreign = {
            each
            for each in placed
            if each not in self._new and not reach.writes(boundary, each) and not self._is_type(each)
        }

    def check_new(self) -> None:
        """Raise `Outside` if this commit leaves a new chunk outside the boundary, or makes a foreign chunk a type."""
        for chunk_id in sorted(self._foreign):
            # The writer would make a type of a scope that it can only read, and could then write there.
            if self._is_type(chunk_id):
                raise Outside(
                    chunk_id, f"chunk {chunk_id!r} is outside the write boundary, so this commit may not make it a type"
                )
        reach = reach_at(self._view)
        for chunk_id in sorted(self._new):
            if not reach.writes(self._boundary, chunk_id):
                why = "being an instance of a type is not enough"
                for each in self._kinds(chunk_id):
                    if reach.writes(self._boundary, each.id):
                        rule = "propagate" if each.spec.propagate else "required"
                        why = f"{each.id!r} is inside it, but {rule!r} in its spec makes it a type, and that is not enough"
                raise Outside(
                    chunk_id, f"new chunk {chunk_id!r} must be placed on a scope inside the write boundary; {why}"
                )

    def _is_type(self, archetype: str) -> bool:
        """Whether an archetype defines a type, and is not a scope with contents of its own."""
        name = chunk.name if (chunk := self._chunk(archetype)) is not None else ""
        above = [each.scope for each in self._view.parents(archetype, NOW) if each.kind == "relates"]
        return any(
            each == ALL_TYPES or ((scope := self._chunk(each)) is not None and name in scope.spec.accepts)
            for each in above
        )

    def write(self, change: Change, number: int) -> int:
        """Add new versions and placement records, then check the rules. Returns the number added."""
        view, changed = self._view, 0
        versions: list[str] = []
        for chunk in change.chunks:
            before, body = self._chunk(chunk.id), encode_body(chunk.body)
            if (
                before is not None
                and (before.name, before.spec) == (chunk.name, chunk.spec)
                and encode_body(before.body) == body
            ):
                continue
            if before is None:
                self._made.add(chunk.id)
            view.add_chunk(chunk, body, self._source, number, private=chunk.id in self._private)
            self._chunks[chunk.id] = Chunk(chunk.id, chunk.name, chunk.spec, chunk.body, self._source, number)
            versions.append(chunk.id)
        changed += len(versions)
        for removal in change.removals:
            self._check_exists(removal)
            before_placement = view.placement(removal.scope, removal.chunk, removal.kind)
            if before_placement is None:
                raise CommitRefused(
                    "placement", f"there is no such {removal.kind} to remove", chunk=removal.chunk, scope=removal.scope
                )
            view.add_record(Record(removal.chunk, removal.scope, removal.kind, before_placement.sequence, number, True))
            changed += 1
        # The types of a chunk decide its rules, in whatever order the commit lists the placements.
        for placement in change.placements:
            if placement.kind == "instance":
                self._coming.setdefault(placement.chunk, []).append(placement.scope)
        added = [each for each in change.placements if self._add_if_new(each, number)]
        changed += len(added)
        for placement in added:
            self._check_sequence(placement)
        for chunk_id in versions:
            self._check_body(chunk_id)
        for placement in added:
            if placement.kind == "instance":
                self._check_accepts(placement)
                scope = self._chunk(placement.scope)
                if scope is not None and (scope.spec.required or "schema" in scope.body):
                    self._check_body(placement.chunk)
        for removal in change.removals:
            if removal.kind == "instance":
                for each in view.parents(removal.chunk):
                    if each.kind == "instance" and removal.scope in self._accepted(each.scope):
                        self._check_accepts(NewPlacement(removal.chunk, each.scope))
        return changed

    def check_private(self, change: Change) -> None:
        """Find the new chunks that belong to the user alone, because all their scopes do.

        Raise `CommitRefused` for one on a scope that everybody knows by name, because its id has to show the owner. A program
        may use any id on its own run.
        """
        places: dict[str, list[str]] = {}
        for each in change.placements:
            if each.kind == "instance" and not each.scope.startswith("type:"):
                places.setdefault(each.chunk, []).append(each.scope)
        own = self._view.own({scope for scopes in places.values() for scope in scopes})
        waiting = [
            each.id
            for each in change.chunks
            if each.id in places and privacy(each.id) == "shared" and self._chunk(each.id) is None
        ]
        # Chunks that are placed on them belong to their owner, too.
        while found := [each for each in waiting if all(privacy(at) != "shared" or at in own for at in places[each])]:
            for chunk_id in found:
                for scope in places[chunk_id]:
                    if privacy(scope) != "shared" and not scope.startswith(PROCESS):
                        raise CommitRefused(
                            "private",
                            "everybody who uses this database could read it. If only you should, begin its id with "
                            f"{PRIVATE!r}",
                            chunk=chunk_id,
                            scope=scope,
                        )
            own |= set(found)
            self._private |= set(found)
            waiting = [each for each in waiting if each not in own]

    def _check_exists(self, each: NewPlacement | Removal) -> None:
        for what, chunk_id in (("chunk", each.chunk), ("scope", each.scope)):
            if self._chunk(chunk_id) is None:
                raise CommitRefused("exists", f"no {what} has this id", chunk=each.chunk, scope=each.scope)

    def _add_if_new(self, placement: NewPlacement, number: int) -> bool:
        self._check_exists(placement)
        view, sequence = self._view, placement.sequence
        before = None
        if placement.chunk not in self._made:
            before = view.placement(placement.scope, placement.chunk, placement.kind)
        if before is not None and sequence in (None, before.sequence):
            return False
        ordered = any(each.spec.ordered for each in self._rules(placement.scope))
        if sequence is not None and not ordered:
            scope = self._chunk(placement.scope)
            why = "the scope is not ordered, so it takes no sequence"
            if scope is not None and scope.spec.ordered and self._shown(placement.scope):
                why = (
                    "the scope has 'propagate', so it is a type: its rule 'ordered' holds for its instances, and not for itself. "
                    "Leave out 'propagate', or make the scope an instance of an ordered type"
                )
            raise CommitRefused("ordered", why, chunk=placement.chunk, scope=placement.scope)
        if ordered:
            highest = self._highest.get(placement.scope)
            if highest is None:
                highest = view.highest_sequence(placement.scope) if placement.scope not in self._made else -1
            sequence = highest + 1 if sequence is None else sequence
            self._highest[placement.scope] = max(highest, sequence)
        view.add_record(Record(placement.chunk, placement.scope, placement.kind, sequence, number))
        return True

    def _check_sequence(self, placement: NewPlacement) -> None:
        """Check that no other placement on the scope has the same number, after all of the commit."""
        if placement.sequence is None:
            return
        for other in self._view.at_sequence(placement.scope, placement.sequence):
            if (other.chunk, other.kind) != (placement.chunk, placement.kind):
                raise CommitRefused(
                    "sequence",
                    f"sequence {placement.sequence} is the place of "
                    + (repr(other.chunk) if self._shown(other.chunk) else "another"),
                    chunk=placement.chunk,
                    scope=placement.scope,
                )

    def _kinds(self, chunk_id: str) -> list[Chunk]:
        """The archetypes of which the chunk is an instance."""
        if chunk_id not in self._archetypes:
            scopes = map(self._chunk, dict.fromkeys((*self._stored_kinds(chunk_id), *self._coming.get(chunk_id, ()))))
            self._archetypes[chunk_id] = [each for each in scopes if each is not None and each.spec.archetype]
        return self._archetypes[chunk_id]

    def _shown(self, chunk_id: str) -> bool:
        """Whether an error may name the chunk. Rules also apply to callers that cannot read where the rules are."""
        return not self._boundary.limited or reach_at(self._view).reads(self._boundary, chunk_id)

    def _stored_kinds(self, chunk_id: str) -> list[str]:
        """The scopes of which the stored chunk is an instance."""
        parents = self._view.parents(chunk_id) if chunk_id not in self._made else ()
        return [each.scope for each in parents if each.kind == "instance"]

    def _rules(self, scope_id: str) -> list[Chunk]:
        """The chunks whose specs apply to the chunks on a scope: the scope itself, unless it propagates its rules, and its
        archetypes."""
        scope = self._chunk(scope_id)
        own = [scope] if scope is not None and not scope.spec.propagate else []
        return own + [each for each in self._kinds(scope_id) if each.spec.propagate]

    def _accepted(self, scope_id: str) -> set[str]:
        """The existing types that a scope accepts."""
        names = {name for each in self._rules(scope_id) for name in each.spec.accepts}
        return set[str]().union(*(self._type_ids(scope_id, name) for name in names))

    def _check_accepts(self, placement: NewPlacement) -> None:
        rules = self._rules(placement.scope)
        if not any(each.spec.accepts for each in rules):
            return
        types = self._accepted(placement.scope)
        if types.isdisjoint((*self._stored_kinds(placement.chunk), *self._coming.get(placement.chunk, ()))):
            hint = "" if types else "; no type with such a name relates to the scope or its archetypes"
            told = dict.fromkeys(name for each in rules for name in each.spec.accepts if self._shown(each.id))
            raise CommitRefused(
                "accepts",
                f"the scope accepts {', '.join(told) or 'certain types'}, and the chunk has none of these types{hint}",
                chunk=placement.chunk,
                scope=placement.scope if self._shown(placement.scope) else None,
            )

    def _type_ids(self, scope_id: str, name: str) -> set[str]:
        key = (scope_id, name)
        if key not in self._types:
            found: set[str] = set()
            for each in (scope_id, *(kind.id for kind in self._kinds(scope_id) if kind.spec.propagate)):
                found |= self._definitions(each, name)
            self._types[key] = found
        return self._types[key]

    def _definitions(self, scope_id: str, name: str) -> set[str]:
        return {
            each.chunk
            for each in self._view.references(scope_id)
            if (chunk := self._chunk(each.chunk)) is not None and chunk.name == name
        }

    def _check_body(self, chunk_id: str) -> None:
        chunk = self._chunk(chunk_id)
        assert chunk is not None
        for archetype in self._kinds(chunk_id):
            missing = [key for key in archetype.spec.required if key not in chunk.body]
            if missing and not self._shown(archetype.id):
                raise CommitRefused("required", "its body lacks a key that one of its types requires", chunk=chunk_id)
            if missing:
                raise CommitRefused(
                    "required",
                    f"its body lacks {', '.join(map(repr, missing))}, which {archetype.name!r} requires",
                    chunk=chunk_id,
                    scope=archetype.id,
                )
            problem = breach(chunk.body, archetype.body.get("schema"))
            if problem is not None and not self._shown(archetype.id):
                raise CommitRefused(
                    "schema", "a value of its body does not fit the schema of one of its types", chunk=chunk_id
                )
            if problem is not None:
                raise CommitRefused(
                    "schema", f"{problem}, by the schema of {archetype.name!r}", chunk=chunk_id, scope=archetype.id
                )


def _not_writable(chunk_id: str) -> str:
    # The same for a chunk that exists and for one that does not.
    why = "; only cantrip makes chunks with such an id" if chunk_id.startswith(_RESERVED) else ""
    return f"chunk {chunk_id!r} is not inside the write boundary{why}"


def reach_at(view: View, at: int = NOW) -> Reach:
    """A `Reach` for the placements at one moment."""
    return Reach(lambda chunks, kinds: view.above(chunks, kinds, at))
