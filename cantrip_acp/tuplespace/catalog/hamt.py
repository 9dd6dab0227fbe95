"""A persistent map from names to values: a hash array mapped trie (Bagwell, *Ideal Hash Trees*) with a Merkle hash per node.

The address of a name is BLAKE2b-64 cut to 30 bits: 5 bits for each of 6 levels. A map never changes. `insert` and `remove`
return a new map that shares all nodes except those on one path. The shape depends only on the content, so equal maps have equal
root hashes, and `diff` skips every part with an equal hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256
from typing import Any, Generic, TypeVar

BITS = 5
LEVELS = 6
_SLOT = (1 << BITS) - 1
_ADDRESS = (1 << BITS * LEVELS) - 1

V = TypeVar("V")


def address(name: str) -> int:
    """The 30 bits that decide where a name is. Different names may have the same address."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "big") & _ADDRESS


def slot(address: int, level: int) -> int:
    """The slot of an address in a node of a level; level 0 is the root."""
    return (address >> BITS * (LEVELS - 1 - level)) & _SLOT


class _Leaf:
    """A name and its value. ``more`` has the other names with the same address: a collision. All are sorted by name."""

    __slots__ = ("address", "digest", "more", "name", "value")

    def __init__(self, address: int, *entries: tuple[str, Any]) -> None:
        self.address = address
        (self.name, self.value), *more = entries
        self.more = tuple(more)
        self.digest: bytes | None = None

    @property
    def entries(self) -> tuple[tuple[str, Any], ...]:
        return ((self.name, self.value), *self.more)


class _Node:
    """One level of the trie. ``bitmap`` has a bit for each slot in use; ``children`` are those slots in order."""

    __slots__ = ("bitmap", "children", "digest")

    def __init__(self, bitmap: int, children: tuple[_Node | _Leaf, ...]) -> None:
        self.bitmap = bitmap
        self.children = children
        self.digest: bytes | None = None


_EMPTY = _Node(0, ())


@dataclass(frozen=True)
class Difference:
    """The differences between two maps: sorted names, and the number of nodes that were read to find them."""

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]
    nodes_read: int


class Hamt(Mapping[str, V], Generic[V]):
    """The map. ``content`` gives the bytes of a value that its hash depends on; all maps that are compared share it."""

    __slots__ = ("_content", "_root", "_size")

    def __init__(self, content: Callable[[V], bytes]) -> None:
        self._content = content
        self._root = _EMPTY
        self._size = 0

    @classmethod
    def of(cls, items: Iterable[tuple[str, V]], content: Callable[[V], bytes]) -> Hamt[V]:
        """A map of many items. The same as inserting each, but faster."""
        values = dict(items)
        leaves: list[_Leaf] = []
        for place, name in sorted((address(name), name) for name in values):
            if leaves and leaves[-1].address == place:
                leaves[-1].more += ((name, values[name]),)
            else:
                leaves.append(_Leaf(place, (name, values[name])))
        return cls(content)._with(_node_of(leaves, 0) if leaves else _EMPTY, len(values))

    def _with(self, root: _Node, size: int) -> Hamt[V]:
        made: Hamt[V] = Hamt(self._content)
        made._root, made._size = root, size
        return made

    def insert(self, name: str, value: V) -> Hamt[V]:
        """A map that has the value under the name, in place of an earlier value."""
        place = address(name)
        before = _found(self._root, place, name)
        if before is not _MISSING and (before is value or self._content(before) == self._content(value)):
            return self
        root = _inserted(self._root, _Leaf(place, (name, value)), 0)
        assert isinstance(root, _Node)
        return self._with(root, self._size + (before is _MISSING))

    def remove(self, name: str) -> Hamt[V]:
        """A map without the name. Raises KeyError if the name is not there."""
        if name not in self:
            raise KeyError(name)
        root = _removed(self._root, address(name), name, 0)
        assert root is None or isinstance(root, _Node)
        return self._with(root or _EMPTY, self._size - 1)

    def __getitem__(self, name: str) -> V:
        value: V = _found(self._root, address(name), name)
        if value is _MISSING:
            raise KeyError(name)
        return value

    def __iter__(self) -> Iterator[str]:
        """The names, by address."""
        return (name for leaf in _leaves(self._root) for name, _ in leaf.entries)

    def __len__(self) -> int:
        return self._size

    @property
    def root_hash(self) -> str:
        """``sha256:`` and the Merkle hash of the root, equal for equal names and values. Hashes of nodes are cached."""
        return "sha256:" + self._digest(self._root).hex()

    def node_count(self) -> int:
        """The number of nodes, leaves included."""
        return _count(self._root)

    def diff(self, newer: Hamt[V]) -> Difference:
        """The differences between this map and a newer one. Nodes with equal hashes are not read."""
        comparison = _Comparison(self._content, self._digest)
        comparison.nodes(self._root, newer._root)
        return comparison.result()

    def _digest(self, node: _Node | _Leaf) -> bytes:
        found = node.digest
        if found is None:
            if isinstance(node, _Node):
                text = b"node%d:" % node.bitmap + b"".join(map(self._digest, node.children))
            else:
                # Each part has its length before it, so that no two leaves have the same bytes.
                parts = [part for name, value in node.entries for part in (name.encode(), self._content(value))]
                text = b"leaf" + b"".join([b"%d:%b" % (len(part), part) for part in parts])
            found = node.digest = sha256(text).digest()
        return found


_MISSING: Any = object()


def _found(node: _Node | _Leaf, place: int, name: str) -> Any:
    """The value of a name, or _MISSING."""
    shift = BITS * (LEVELS - 1)
    while isinstance(node, _Node):
        bit = 1 << ((place >> shift) & _SLOT)
        if not node.bitmap & bit:
            return _MISSING
        node = node.children[(node.bitmap & (bit - 1)).bit_count()]
        shift -= BITS
    if node.name == name:
        return node.value
    return dict(node.more).get(name, _MISSING)


def _node_of(leaves: Sequence[_Leaf], level: int) -> _Node:
    """The node of a level with leaves of different addresses, sorted by address. One pass; nodes are closed from below."""
    bitmaps = [0] * LEVELS
    children: list[list[_Node | _Leaf]] = [[] for _ in range(LEVELS)]
    depth = level
    for leaf, following in zip(leaves, [*leaves[1:], None], strict=True):
        place = leaf.address
        # The level of the node in which this leaf and the next are in different slots.
        parts = level if following is None else LEVELS - 1 - ((place ^ following.address).bit_length() - 1) // BITS
        if parts > depth:
            depth = parts
        bitmaps[depth] |= 1 << slot(place, depth)
        children[depth].append(leaf)
        while depth > parts:
            node = _Node(bitmaps[depth], tuple(children[depth]))
            bitmaps[depth], children[depth] = 0, []
            depth -= 1
            bitmaps[depth] |= 1 << slot(place, depth)
            children[depth].append(node)
    return _Node(bitmaps[level], tuple(children[level]))


def _inserted(node: _Node | _Leaf, leaf: _Leaf, level: int) -> _Node | _Leaf:
    """The node with one more leaf, or with another value for its name."""
    if isinstance(node, _Leaf):
        if node.address != leaf.address:
            return _node_of(sorted((node, leaf), key=lambda each: each.address), level)
        # A name is there once, so values are not compared.
        return _Leaf(leaf.address, *sorted((dict(node.entries) | dict(leaf.entries)).items()))
    bit = 1 << slot(leaf.address, level)
    at = (node.bitmap & (bit - 1)).bit_count()
    before, after = node.children[:at], node.children[at:]
    if not node.bitmap & bit:
        return _Node(node.bitmap | bit, (*before, leaf, *after))
    return _Node(node.bitmap, (*before, _inserted(after[0], leaf, level + 1), *after[1:]))


def _removed(node: _Node | _Leaf, place: int, name: str, level: int) -> _Node | _Leaf | None:
    """The node without a name that it has. A node with one leaf becomes that leaf, as if the name had never been there."""
    if isinstance(node, _Leaf):
        left = tuple(entry for entry in node.entries if entry[0] != name)
        return _Leaf(place, *left) if left else None
    bit = 1 << slot(place, level)
    at = (node.bitmap & (bit - 1)).bit_count()
    before, after = node.children[:at], node.children[at + 1 :]
    child = _removed(node.children[at], place, name, level + 1)
    bitmap, children = (node.bitmap, (*before, child, *after)) if child else (node.bitmap ^ bit, (*before, *after))
    if level and len(children) == 1 and isinstance(children[0], _Leaf):
        return children[0]
    return _Node(bitmap, children)


def _leaves(node: _Node | _Leaf) -> Iterator[_Leaf]:
    if isinstance(node, _Leaf):
        yield node
    else:
        for child in node.children:
            yield from _leaves(child)


def _count(node: _Node | _Leaf) -> int:
    return 1 + (sum(map(_count, node.children)) if isinstance(node, _Node) else 0)


class _Comparison:
    """One run of `Hamt.diff`. Counts every node whose children or entries it looks at."""

    def __init__(self, content: Callable[[Any], bytes], digest: Callable[[_Node | _Leaf], bytes]) -> None:
        self._content = content
        self._digest = digest
        self._read = 0
        self._old: dict[str, Any] = {}
        self._new: dict[str, Any] = {}

    def nodes(self, old: _Node | _Leaf | None, new: _Node | _Leaf | None) -> None:
        if old is new or (old is not None and new is not None and self._digest(old) == self._digest(new)):
            return
        if isinstance(old, _Node) and isinstance(new, _Node):
            self._read += 2
            left, right = _by_slot(old), _by_slot(new)
            for each in left.keys() | right.keys():
                self.nodes(left.get(each), right.get(each))
            return
        # A leaf beside a node, two leaves or nothing: at most the names of one leaf are in both.
        for node, found in ((old, self._old), (new, self._new)):
            if node is not None:
                self._read += _count(node)
                found.update(entry for leaf in _leaves(node) for entry in leaf.entries)

    def result(self) -> Difference:
        old, new = self._old, self._new
        both = old.keys() & new.keys()
        changed = (name for name in both if self._content(old[name]) != self._content(new[name]))
        return Difference(
            tuple(sorted(new.keys() - both)), tuple(sorted(old.keys() - both)), tuple(sorted(changed)), self._read
        )


def _by_slot(node: _Node) -> dict[int, _Node | _Leaf]:
    used = (each for each in range(1 << BITS) if node.bitmap >> each & 1)
    return dict(zip(used, node.children, strict=True))
