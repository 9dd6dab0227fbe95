"""The persistent map: every name is found, nothing changes in place, and equal content has one shape and one hash."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cantrip_acp.tuplespace.catalog.hamt import Difference, Hamt, address, slot

ONE_ADDRESS = [f"agent.test.n{number}" for number in (2667034, 3740118, 4396277)]
"""Three names with the same 30 bits."""
SAME_BUT_LAST_LEVEL = [
    f"agent.test.n{number}" for number in (4574111, 560144, 1226757, 364736, 4761289, 4057741, 1783453)
]
PAIRS = [f"agent.test.n{number}" for number in (83454, 148871, 22264, 149507, 68, 72503)]
PLAIN = [f"agent.test.n{number}" for number in range(40)]
NAMES = ONE_ADDRESS + SAME_BUT_LAST_LEVEL + PAIRS + PLAIN

names = st.sampled_from(NAMES)
values = st.integers(0, 3)
contents = st.dictionaries(names, values)


def content(value: int) -> bytes:
    return b"%d" % value


def made(items: dict[str, int]) -> Hamt[int]:
    return Hamt.of(items.items(), content)


def inserted(items: Any) -> Hamt[int]:
    found: Hamt[int] = Hamt(content)
    for name, value in items:
        found = found.insert(name, value)
    return found


def test_the_names_collide_as_they_should() -> None:
    assert len({address(name) for name in ONE_ADDRESS}) == 1
    places = [address(name) for name in SAME_BUT_LAST_LEVEL[:6]]
    assert len({place >> 5 for place in places}) == 1
    assert len(set(places)) == 6
    assert len({address(name) for name in PAIRS}) == 3


def test_an_address_is_the_low_30_bits_of_blake2b_64_and_the_root_takes_the_highest_five() -> None:
    whole = int(hashlib.blake2b(b"agent.dev.python", digest_size=8).hexdigest(), 16)
    assert address("agent.dev.python") == whole % 2**30
    assert [slot(0b00001_00010_00011_00100_00101_00110, level) for level in range(6)] == [1, 2, 3, 4, 5, 6]


@given(contents)
def test_it_is_a_mapping(items: dict[str, int]) -> None:
    tree = made(items)
    assert dict(tree) == items
    assert len(tree) == len(items)
    for name in NAMES:
        assert (name in tree) == (name in items)
        assert tree.get(name) == items.get(name)


@given(contents, st.randoms())
def test_the_order_of_inserts_changes_nothing(items: dict[str, int], random: Any) -> None:
    shuffled = list(items.items())
    random.shuffle(shuffled)
    one, other = made(items), inserted(shuffled)
    assert one.root_hash == other.root_hash
    assert one.node_count() == other.node_count()
    assert list(one) == list(other)


@given(contents, contents)
def test_equal_hashes_mean_equal_content(one: dict[str, int], other: dict[str, int]) -> None:
    assert (made(one).root_hash == made(other).root_hash) == (one == other)


@given(contents, st.lists(st.tuples(names, values), max_size=8), st.lists(names, max_size=8))
def test_a_diff_has_exactly_what_changed(before: dict[str, int], put: list[tuple[str, int]], gone: list[str]) -> None:
    after = {name: value for name, value in (before | dict(put)).items() if name not in gone}
    old = made(before)
    new = old
    for name, value in put:
        new = new.insert(name, value)
    for name in gone:
        if name in new:
            new = new.remove(name)
    found = old.diff(new)
    assert found.added == tuple(sorted(after.keys() - before.keys()))
    assert found.removed == tuple(sorted(before.keys() - after.keys()))
    assert found.changed == tuple(sorted(k for k in before.keys() & after.keys() if before[k] != after[k]))
    assert found.nodes_read <= old.node_count() + new.node_count()
    # Trees that share nothing in memory are compared by their hashes.
    assert made(before).diff(made(after)) == found
    assert (found.nodes_read == 0) == (before == after)


def test_a_diff_reads_only_the_paths_that_differ() -> None:
    old = made({f"agent.n{number}": number for number in range(5000)})
    new = old.insert("agent.n17", -1).insert("gate.new", 1)
    found = old.diff(new)
    assert found == Difference(("gate.new",), (), ("agent.n17",), found.nodes_read)
    # Two paths of four or five nodes in each of two trees.
    assert found.nodes_read <= 20 < old.node_count() // 100


def test_an_insert_shares_everything_but_one_path() -> None:
    old = made({f"agent.n{number}": number for number in range(5000)})
    new = old.insert("agent.n17", -1)
    assert old["agent.n17"] == 17
    assert len(_nodes(new) - _nodes(old)) <= 6
    assert old.insert("agent.n17", 17) is old


def _nodes(tree: Hamt[int]) -> set[int]:
    found, todo = set(), [tree._root]
    while todo:
        node = todo.pop()
        found.add(id(node))
        todo += getattr(node, "children", ())
    return found


def test_a_collision_leaf_loses_its_names_one_by_one() -> None:
    tree = inserted((name, 1) for name in [*ONE_ADDRESS, *PLAIN])
    for name in ONE_ADDRESS:
        tree = tree.remove(name)
        assert name not in tree
    assert tree.root_hash == made(dict.fromkeys(PLAIN, 1)).root_hash
    with pytest.raises(KeyError):
        tree.remove(ONE_ADDRESS[0])


class Changes(RuleBasedStateMachine):
    """Any sequence of changes, beside a dict. Every earlier map stays as it was."""

    def __init__(self) -> None:
        super().__init__()
        self.tree: Hamt[int] = Hamt(content)
        self.plain: dict[str, int] = {}
        self.earlier: list[tuple[Hamt[int], dict[str, int], str]] = []

    @rule(name=names, value=values)
    def insert(self, name: str, value: int) -> None:
        self._keep()
        self.tree = self.tree.insert(name, value)
        self.plain[name] = value

    @rule(name=names)
    def remove(self, name: str) -> None:
        if name not in self.plain:
            with pytest.raises(KeyError):
                self.tree.remove(name)
            return
        self._keep()
        self.tree = self.tree.remove(name)
        del self.plain[name]

    def _keep(self) -> None:
        self.earlier.append((self.tree, dict(self.plain), self.tree.root_hash))

    @invariant()
    def agrees(self) -> None:
        assert dict(self.tree) == self.plain
        assert len(self.tree) == len(self.plain)
        assert self.tree.root_hash == made(self.plain).root_hash
        assert self.tree.node_count() == made(self.plain).node_count()

    def teardown(self) -> None:
        for tree, plain, root_hash in self.earlier:
            assert dict(tree) == plain
            assert made(plain).root_hash == tree.root_hash == root_hash


TestChanges = Changes.TestCase
