"""Random commits and random boundaries against a model of plain dicts, which shares no code with the substrate.

`FUZZ=20 pytest tests/substrate/integration/test_fuzz_commits.py` runs twenty times as many.
"""

from __future__ import annotations

import copy
import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import (
    Change,
    CommitRefused,
    NewChunk,
    NewPlacement,
    OutsideBoundary,
    Removal,
    Spec,
    SubstrateError,
    parse_change,
    refuse_secrets,
)
from cantrip_acp.substrate.substrate import Substrate, open_substrate

TIMES = int(os.environ.get("FUZZ", "1"))
SETTINGS = settings(
    deadline=None,
    derandomize=TIMES == 1,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture, HealthCheck.data_too_large],
)
_runs = itertools.count()
IDS = "abcdefgh"
NAMES = ["one", "two", "six"]
Key = tuple[str, str, str]


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Substrate]:
    with open_substrate(tmp_path_factory.mktemp("fuzz") / "substrate.db") as opened:
        opened.put(NewChunk("types", "types"))
        yield opened


# The model


@dataclass
class State:
    """All chunks and placements at one moment."""

    chunks: dict[str, tuple[str, Spec, dict[str, Any]]] = field(default_factory=dict)
    placed: dict[Key, int | None] = field(default_factory=dict)
    highest: dict[str, int] = field(default_factory=dict)

    def parents(self, chunk: str, kind: str) -> set[str]:
        return {s for (c, s, k) in self.placed if c == chunk and k == kind}

    def archetype(self, chunk: str) -> bool:
        return chunk in self.chunks and (self.chunks[chunk][1].propagate or bool(self.chunks[chunk][1].required))

    def kinds(self, chunk: str) -> set[str]:
        return {each for each in self.parents(chunk, "instance") if self.archetype(each)}

    def handing_on(self, scope: str) -> set[str]:
        return {each for each in self.kinds(scope) if self.chunks[each][1].propagate}

    def rules(self, scope: str) -> list[Spec]:
        own = [] if self.chunks[scope][1].propagate else [self.chunks[scope][1]]
        return own + [self.chunks[each][1] for each in self.handing_on(scope)]

    def lacking(self, chunk: str) -> bool:
        return any(
            key not in self.chunks[chunk][2] for each in self.kinds(chunk) for key in self.chunks[each][1].required
        )

    def types(self, scope: str) -> set[str]:
        names = {name for spec in self.rules(scope) for name in spec.accepts}
        return {
            c
            for (c, s, k) in self.placed
            if k == "relates" and s in {scope, *self.handing_on(scope)} and self.chunks[c][0] in names
        }

    def accepted(self, chunk: str, scope: str) -> bool:
        accepts = any(spec.accepts for spec in self.rules(scope))
        return not accepts or bool(self.types(scope) & self.parents(chunk, "instance"))

    def is_type(self, chunk: str) -> bool:
        above = self.parents(chunk, "relates")
        return "types" in above or any(self.chunks[chunk][0] in self.chunks[each][1].accepts for each in above)

    def below(self, scopes: set[str], kinds: tuple[str, ...]) -> set[str]:
        """What is inside these scopes: down by placements, and through an archetype to its instances only if it is named."""
        inside = scopes & self.chunks.keys()
        while True:
            more = {
                c
                for (c, s, k) in self.placed
                if s in inside and k in kinds and not (k == "instance" and self.archetype(s) and s not in scopes)
            }
            if more <= inside:
                return inside
            inside |= more

    def readable(self, boundary: Boundary) -> set[str]:
        inside = set(self.chunks)
        for scopes in boundary.read:
            inside &= self.below(set(scopes), ("instance", "relates"))
        return inside

    def writable(self, boundary: Boundary) -> set[str]:
        inside = self.readable(boundary)
        for scopes in boundary.write:
            inside &= self.below(set(scopes), ("instance",))
        return inside


def apply(before: State, change: Change) -> tuple[State, set[str], int]:
    """The state after a change, the rules that it breaks, and how much is new."""
    state, broken, changed = copy.deepcopy(before), set[str](), 0
    versions, added = [], []
    for chunk in change.chunks:
        version = (chunk.name, chunk.spec, chunk.body)
        if before.chunks.get(chunk.id) != version:
            versions.append(chunk.id)
        state.chunks[chunk.id] = version
    for each in (*change.placements, *change.removals):
        if each.chunk not in state.chunks or each.scope not in state.chunks:
            return before, {"exists", "placement", "ordered"}, 0
    for removal in change.removals:
        if (removal.chunk, removal.scope, removal.kind) not in state.placed:
            return before, {"exists", "placement"}, 0
        del state.placed[removal.chunk, removal.scope, removal.kind]
    # What a commit makes of a scope holds for all of the commit.
    end = copy.deepcopy(state)
    for each in change.placements:
        end.placed[each.chunk, each.scope, each.kind] = None
    for each in change.placements:
        key = (each.chunk, each.scope, each.kind)
        if key in state.placed and each.sequence in (None, state.placed[key]):
            continue
        ordered = any(spec.ordered for spec in end.rules(each.scope))
        if each.sequence is not None and not ordered:
            broken.add("ordered")
        number = each.sequence
        if number is None and ordered:
            number = state.highest.get(each.scope, -1) + 1
        if number is not None:
            state.highest[each.scope] = max(number, state.highest.get(each.scope, -1))
        state.placed[key] = number
        added.append(key)
    for chunk, scope, kind in added:
        number = state.placed[chunk, scope, kind]
        same = [key for key, other in state.placed.items() if key[1] == scope and other == number]
        if number is not None and len(same) > 1:
            broken.add("sequence")
        if kind == "instance" and not state.accepted(chunk, scope):
            broken.add("accepts")
        if kind == "instance" and state.chunks[scope][1].required and state.lacking(chunk):
            broken.add("required")
    for each in change.removals:
        for scope in state.parents(each.chunk, "instance") if each.kind == "instance" else ():
            if each.scope in state.types(scope) and not state.accepted(each.chunk, scope):
                broken.add("accepts")
    if any(state.lacking(chunk) for chunk in versions):
        broken.add("required")
    changed = len(versions) + len(added) + len(change.removals)
    return (before if broken else state), broken, changed


def attempt(function: Any, *args: Any, **named: Any) -> Any:
    """What a function returns, or the error of the substrate that it raises; every other error fails the test."""
    try:
        return function(*args, **named)
    except SubstrateError as error:
        return error


# Random changes


def specs() -> st.SearchStrategy[Spec]:
    few = st.lists(st.sampled_from(NAMES), max_size=1).map(tuple)
    odd = st.builds(Spec, st.booleans(), st.booleans(), few, st.sampled_from([(), (), ("text",), ("k",)]))
    return st.just(Spec()) | st.just(Spec(ordered=True)) | odd


def bodies() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {}, optional={"text": st.sampled_from(["red", "green", "blue"]), "k": st.integers(0, 1)}
    )


@st.composite
def changes(draw: st.DrawFn, prefix: str, ids: str = IDS) -> Change:
    name = st.sampled_from(ids).map(lambda each: prefix + each)
    chunks = draw(
        st.lists(
            st.builds(NewChunk, name, st.sampled_from(NAMES), specs(), bodies()),
            max_size=4,
            unique_by=lambda each: each.id,
        )
    )
    pairs = st.tuples(name, name).filter(lambda pair: pair[0] != pair[1])
    kinds = st.sampled_from(["instance", "instance", "relates"])
    keys = draw(st.lists(st.tuples(pairs, kinds), max_size=5, unique=True))
    placements: list[NewPlacement] = []
    removals: list[Removal] = []
    for (chunk, scope), kind in keys:
        if draw(st.integers(0, 4)) == 0:
            removals.append(Removal(chunk, scope, kind))  # type: ignore[arg-type]
        else:
            placements.append(NewPlacement(chunk, scope, kind, draw(st.none() | st.integers(0, 3))))  # type: ignore[arg-type]
    return Change(chunks, placements, removals)


def seen(substrate: Substrate, prefix: str, at: int) -> tuple[dict[str, Any], dict[Key, int | None]]:
    """What the substrate has at a commit, read chunk by chunk."""
    chunks: dict[str, Any] = {}
    placed: dict[Key, int | None] = {}
    for each in IDS:
        with_this = substrate.find(prefix + each, at=at)
        if not with_this:
            with pytest.raises(SubstrateError):
                substrate.scope(prefix + each, at=at)
            continue
        scope = substrate.scope(prefix + each, at=at)
        assert scope.chunk == with_this[0] == substrate.chunk(prefix + each, at=at)
        chunks[prefix + each] = (scope.chunk.name, scope.chunk.spec, dict(scope.chunk.body))
        down = {(p.chunk.id, prefix + each, p.kind): p.sequence for p in scope.placed}
        assert len(down) == len(scope.placed)
        placed |= down
    up = {
        (p.chunk, p.scope, p.kind): p.sequence
        for each in chunks
        for p in substrate.placements(each, at=at)
        if p.scope != "types"
    }
    assert up == placed
    return chunks, placed


def history(substrate: Substrate, data: st.DataObject, most: int) -> None:
    prefix = f"r{next(_runs)}."
    state, states = State(), dict[int, State]()
    for _ in range(data.draw(st.integers(1, most))):
        change = data.draw(changes(prefix))
        for each in change.chunks:
            # Words of this run alone.
            each.body.update({"text": f"{each.body['text']}{prefix.strip('.')}x"} if "text" in each.body else {})
        before = substrate.latest()
        after, broken, changed = apply(state, change)
        commit = attempt(substrate.commit, change, author="a", source="s", durable=False)
        if isinstance(commit, CommitRefused):
            assert commit.rule in broken, (commit, broken)
            assert substrate.latest() == before
        else:
            assert not broken, (broken, change)
            assert (commit.changed, commit.number) == (changed, before + bool(changed))
            state = after
        states[substrate.latest()] = state
    for number, then in states.items():
        assert seen(substrate, prefix, number) == (then.chunks, then.placed)
        for word in (f"{color}{prefix.strip('.')}x" for color in ("red", "green", "blue")):
            found = {
                hit.chunk.id
                for hit in substrate.search(word, at=number, limit=100_000)
                if hit.chunk.id.startswith(prefix)
            }
            assert found == {each for each, (_, _, body) in then.chunks.items() if body.get("text") == word}


@settings(SETTINGS, max_examples=40 * TIMES)
@given(st.data())
def test_random_histories_are_what_a_model_says(sqlite: Substrate, data: st.DataObject) -> None:
    history(sqlite, data, 12)


def test_a_few_histories_in_each_database(substrate: Substrate) -> None:
    @settings(SETTINGS, max_examples=6 * TIMES)
    @given(st.data())
    def run(data: st.DataObject) -> None:
        history(substrate, data, 6)

    run()


# Junk

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**60, 2**80)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=4)
    | st.sampled_from(
        [
            "\ud800",
            "a\0b",
            "\udfff\u2028",
            "x" * 300,
            "a" * 201,
            "type:session",
            "types",
            "",
            " ",
            "\n",
            10**4000,
            -1,
            2**53,
        ]
    )
)
junk = st.recursive(
    scalars,
    lambda v: (
        st.lists(v, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.sampled_from(["\ud800", "text"]) | st.integers(), v, max_size=3)
    ),
    max_leaves=8,
)
deep = st.integers(30, 3000).map(lambda levels: _nested(levels))


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def field_of(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return good | good | good | junk


ids = field_of(st.sampled_from(["j.a", "j.b", "types"]))
data_specs = st.fixed_dictionaries(
    {},
    optional={
        "propagate": field_of(st.booleans()),
        "ordered": field_of(st.booleans()),
        "accepts": field_of(st.lists(st.text(max_size=3) | scalars, max_size=2)),
        "required": junk,
    },
)
data_chunks = st.fixed_dictionaries(
    {"id": ids, "name": field_of(st.text(min_size=1, max_size=5))},
    optional={
        "spec": field_of(data_specs),
        "body": st.dictionaries(st.text(max_size=3), junk | deep, max_size=2) | junk,
        "source": junk,
    },
)
data_places = st.fixed_dictionaries(
    {"chunk": ids, "scope": ids},
    optional={"kind": field_of(st.sampled_from(["instance", "relates"])), "sequence": junk},
)
data_changes = st.fixed_dictionaries(
    {},
    optional={
        "chunks": field_of(st.lists(data_chunks, max_size=3)),
        "placements": field_of(st.lists(data_places, max_size=3)),
        "removals": field_of(st.lists(data_places, max_size=2)),
        "author": junk,
    },
)


def try_junk(substrate: Substrate, data: Any, texts: list[Any], moment: int) -> None:
    before, refusals = substrate.latest(), len(substrate.refusals(10**9))
    said = [each if isinstance(each, str) else repr(each)[:50] for each in texts]
    try:
        change = parse_change(data)
        refuse_secrets(change)
        commit = substrate.commit(change, author=said[0], source=said[1], message=said[2])
        assert commit.number == substrate.latest()
        for each in change.chunks:
            assert substrate.chunk(each.id).name == each.name
        for difference in (substrate.changes(commit.number), substrate.changes(moment, since=moment)):
            assert len(difference.chunks) <= len(change.chunks) + 1_000
    except SubstrateError:
        assert substrate.latest() == before
    # Strange questions have answers too.
    narrow = Boundary.of(read=[said[0]], holder=said[1])
    for boundary in (Boundary(), narrow):
        for ask in (
            substrate.chunk,
            substrate.scope,
            substrate.find,
            substrate.one,
            substrate.placements,
            substrate.search,
        ):
            attempt(ask, said[2], at=moment, boundary=boundary)
    assert not substrate.readable(said[2], Boundary.of())
    substrate.exists(said[0])
    substrate.log(said[0], limit=moment, before=moment)
    substrate.newest(said[0], moment)
    substrate.changed(said, moment)
    assert len(substrate.refusals(10**9)) >= refusals


moments = st.none() | st.integers(-(2**70), 2**70) | st.integers(0, 9)


@settings(SETTINGS, max_examples=120 * TIMES)
@given(data_changes | junk, st.lists(scalars, min_size=3, max_size=3), moments.map(lambda at: at or 0))
def test_junk_is_stored_as_a_whole_or_refused(sqlite: Substrate, data: Any, texts: list[Any], moment: int) -> None:
    try_junk(sqlite, data, texts, moment)


def test_a_little_junk_in_each_database(substrate: Substrate) -> None:
    @settings(SETTINGS, max_examples=20 * TIMES)
    @given(data_changes, st.lists(scalars, min_size=3, max_size=3), moments.map(lambda at: at or 0))
    def run(data: Any, texts: list[Any], moment: int) -> None:
        try_junk(substrate, data, texts, moment)

    run()


# Boundaries: each chunk has words that nobody else has, so that an answer shows what it is from


def marked(prefix: str, chunk: NewChunk) -> NewChunk:
    """The chunk with a name and a text that tell which one it is."""
    mark = f"{prefix.strip('.')}{chunk.id.removeprefix(prefix)}"
    return NewChunk(chunk.id, f"N{mark}N", chunk.spec, {"text": f"W{mark}W common"})


def marks(prefix: str, answer: object) -> set[str]:
    """The chunks of which something is in an answer."""
    run = prefix.strip(".")
    return {prefix + each for each in re.findall(rf"(?:\b{run}\.|[NW]{run})([a-h])", str(answer))}


def graph(substrate: Substrate, data: st.DataObject, prefix: str) -> State:
    state = State({"types": ("types", Spec(), {})})
    accepts = st.lists(st.sampled_from(IDS).map(lambda each: f"N{prefix.strip('.')}{each}N"), max_size=1).map(tuple)
    for each in IDS[:6]:
        rules = data.draw(
            st.sampled_from(
                [
                    Spec(),
                    Spec(),
                    Spec(ordered=True),
                    Spec(True),
                    Spec(required=("text",)),
                    Spec(ordered=True, required=("text",)),
                ]
            )
        )
        rules = Spec(rules.propagate, rules.ordered, data.draw(accepts), rules.required)
        change = Change([marked(prefix, NewChunk(prefix + each, "x", rules))])
        state = apply(state, change)[0]
        substrate.commit(change, author="user", durable=False)
    pairs = st.tuples(
        st.sampled_from(IDS[:6]), st.sampled_from([*IDS[:6], "types"]), st.sampled_from(["instance", "relates"])
    )
    for chunk, scope, kind in data.draw(st.lists(pairs, max_size=12)):
        if chunk == scope or (scope == "types" and kind == "instance"):
            continue
        change = Change(placements=[NewPlacement(prefix + chunk, scope if scope == "types" else prefix + scope, kind)])  # type: ignore[arg-type]
        after, broken, _ = apply(state, change)
        if not broken:
            substrate.commit(change, author="user", durable=False)
            state = after
    return state


def ask_all(
    substrate: Substrate, data: st.DataObject, prefix: str, boundary: Boundary, inside: set[str], at: int | None
) -> None:
    """Ask everything that a limited caller can ask; no answer says anything of what is outside."""
    run = prefix.strip(".")
    for each in IDS:
        chunk, name, word = prefix + each, f"N{run}{each}N", f"W{run}{each}W"
        for asked in (chunk, name):
            for ask in (substrate.chunk, substrate.scope, substrate.one, substrate.find, substrate.placements):
                refusals = substrate.refusals(1)
                answer = attempt(ask, asked, at=at, boundary=boundary)
                if isinstance(answer, SubstrateError):
                    assert substrate.refusals(1) != refusals
                    # It says of its question alone, whether that exists or not.
                    assert marks(prefix, answer) <= {chunk}
                    continue
                assert marks(prefix, answer) - {chunk} <= inside | accepted_names(answer, prefix), (ask, asked, answer)
                if chunk not in inside:
                    assert not answer, (ask, asked)
        assert {hit.chunk.id for hit in substrate.search(word, boundary=boundary, at=at)} <= inside & {chunk}
        assert substrate.readable(chunk, boundary) == (chunk in inside) or at is not None
    found = substrate.search("common", boundary=boundary, at=at, limit=1_000)
    assert {hit.chunk.id for hit in found} <= inside
    assert marks(prefix, [(hit.chunk.text, hit.snippet) for hit in found]) <= inside


def accepted_names(answer: object, prefix: str) -> set[str]:
    """A spec names types, which are then known by name alone."""
    return marks(prefix, re.findall(r"accepts=\([^)]*\)", str(answer)))


@settings(SETTINGS, max_examples=40 * TIMES)
@given(st.data())
def test_nothing_outside_a_boundary_is_read_or_changed(sqlite: Substrate, data: st.DataObject) -> None:
    substrate, prefix = sqlite, f"b{next(_runs)}."
    state = graph(substrate, data, prefix)
    some = st.lists(st.sampled_from(IDS).map(lambda each: prefix + each), max_size=2)
    first = Boundary.of(read=data.draw(some), write=data.draw(some), holder="first")
    boundary = first
    if data.draw(st.booleans()):
        second = Boundary.of(read=data.draw(some), write=data.draw(some), holder="second")
        boundary = first & second
        assert state.readable(boundary) == state.readable(first) & state.readable(second)
        assert state.writable(boundary) <= state.writable(first) & state.writable(second)
    start = substrate.latest()
    for _ in range(data.draw(st.integers(1, 6))):
        change = data.draw(changes(prefix))
        change = Change([marked(prefix, each) for each in change.chunks], change.placements, change.removals)
        readable, writable = state.readable(boundary), state.writable(boundary)
        after, broken, changed = apply(state, change)
        before, refusals = substrate.latest(), substrate.refusals(1)
        named = {each.id for each in change.chunks} | {i for each in change.touched() for i in (each.chunk, each.scope)}
        commit = attempt(
            substrate.commit, change, author="program", source="program:p", boundary=boundary, durable=False
        )
        if isinstance(commit, SubstrateError):
            assert substrate.latest() == before
            shown = named | readable | accepted_by(state, readable)
            assert marks(prefix, commit) <= shown, commit
            if isinstance(commit, CommitRefused):
                assert commit.rule in broken
            else:
                assert isinstance(commit, OutsideBoundary)
                assert substrate.refusals(1) != refusals
        else:
            assert not broken
            new = after.chunks.keys() - state.chunks.keys()
            for each in change.chunks:
                assert each.id in new | writable
                assert substrate.chunk(each.id).source in ("program:p", "user")
            for each in change.touched():
                types = (
                    each.kind == "instance"
                    and each.scope in readable
                    and state.archetype(each.scope)
                    and state.is_type(each.scope)
                )
                assert each.scope in new | writable or types, (change, boundary)
                assert each.chunk in new | writable or (each.kind == "relates" and each.chunk in readable)
            assert new <= after.writable(boundary)
            # Nothing that was outside is inside now.
            assert after.readable(boundary) & state.chunks.keys() <= readable
            assert after.writable(boundary) & state.chunks.keys() <= writable
            for each in state.chunks.keys() - writable:
                assert after.archetype(each) == state.archetype(each)
                assert after.is_type(each) == state.is_type(each) or state.is_type(each), (each, change)
            state = after
            assert commit.changed == changed
        chunks, placed = seen(substrate, prefix, substrate.latest())
        assert chunks == {key: value for key, value in state.chunks.items() if key != "types"}
        assert placed == {key: value for key, value in state.placed.items() if key[1] != "types"}
    ask_all(substrate, data, prefix, boundary, state.readable(boundary), None)
    ask_all(substrate, data, prefix, boundary, state.readable(boundary), start)


def accepted_by(state: State, readable: set[str]) -> set[str]:
    """The types that scopes inside name."""
    return {
        c for c, (name, _, _) in state.chunks.items() if any(name in state.chunks[each][1].accepts for each in readable)
    }
