"""Capabilities, and the catalog that finds them by name, kind and lane. A catalog is one JSON file that belongs into git."""

from __future__ import annotations

import difflib
import re
from bisect import bisect
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from cantrip_acp.text.codecs import convert, json_decoder
from cantrip_acp.text.json_data import freeze_record
from cantrip_acp.tuplespace.catalog.hamt import Hamt
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.tuples import AgentTerms, Name, YoolName

FILE = Path(".catalog", "capabilities.json")
"""The path of a project's catalog."""
SCHEMA = "cantrip-catalog/v1"
_MAX_COMPARED = 2000
"""The most names with which an unknown name is compared."""

T = TypeVar("T")
Kind = Literal["agent", "gate", "medium", "provider", "recipe"]
KINDS: tuple[Kind, ...] = ("agent", "gate", "medium", "provider", "recipe")


class UnknownCapability(TupleError):
    """No capability has this name. ``similar`` has up to three names that resemble it."""

    def __init__(self, name: str, similar: tuple[str, ...]) -> None:
        self.name = name
        self.similar = similar
        near = f"; did you mean {' or '.join(map(repr, similar))}?" if similar else ""
        super().__init__(f"no capability of the catalog is named {name[:200]!r}{near}", rule="unknown-name")


class Capability(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Something that a step of a tuple, a recipe or a circle can name. Make one with `capability`, which checks it."""

    name: YoolName
    """The name of the yool. It does not change; another meaning gets another name."""
    version: Annotated[str, Meta(min_length=1)]
    """Of a recipe: the hash of its text, which a tuple's ``args.recipe`` repeats. Of an agent: ``v2``. Else: of its package."""
    kind: Kind
    source: str
    """Where it comes from: a file of the project and perhaps a heading in it, or a package."""
    lane: Name | None = None
    """The lane for its tuples if nothing else is said."""
    authority: tuple[str, ...] = ()
    """Who may order it, such as ``user`` and ``ci``. Empty if it is not declared."""
    agent_terms: AgentTerms | None = None
    """The budget of its tuples if nothing else is said."""
    description: str = ""
    input_schema: dict[str, Any] | None = None
    """The JSON Schema of its arguments."""
    run: str | None = None
    """Of an agent: the command that a worker runs for it in the sandbox."""
    recipe: str | None = None
    """Of an agent: the recipe that a worker casts for it."""
    inputs: tuple[str, ...] | None = None
    """The files that the command reads. None: it does not say, so its results are not used again."""
    env: tuple[str, ...] = ()
    """The variables of the worker that the command gets."""
    network: tuple[str, ...] = ()
    """The hosts that the command can reach, if the worker's user allows them."""


def capability(**fields: Any) -> Capability:
    """A checked capability. Raises `TupleError` with the name, the field and the rule."""
    given = {key: value for key, value in fields.items() if value is not None}
    try:
        return freeze_record(convert(given, Capability))
    except msgspec.ValidationError as error:
        raise TupleError(f"{fields.get('name')!r} is not a valid capability: {error}") from None


@dataclass(frozen=True)
class CatalogDiff:
    """The differences between two catalogs, by name; ``changed`` has the old and the new capability."""

    added: tuple[Capability, ...]
    removed: tuple[Capability, ...]
    changed: tuple[tuple[Capability, Capability], ...]
    nodes_read: int
    nodes: int
    """The number of nodes of the newer catalog."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed)


class Catalog:
    """Capabilities by name. It never changes.

    A dict finds the names, because it is faster. The persistent map beside it gives the hash of the whole and the
    differences to other catalogs; it is made when one of them is asked for.
    """

    def __init__(self, capabilities: Iterable[Capability]) -> None:
        self._by_name: dict[str, Capability] = {}
        for each in sorted(capabilities, key=lambda capability: capability.name):
            other = self._by_name.setdefault(each.name, each)
            if other is not each:
                raise TupleError(
                    f"{each.source} and {other.source} both have the name {each.name!r}; each name may be used once"
                )

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Capability]:
        """All capabilities, sorted by name."""
        return iter(self._by_name.values())

    def lookup(self, name: str) -> Capability:
        """The capability with a name. A name without its version (``agent.dev.python``) finds the highest (``….v2``).

        Raises `UnknownCapability`.
        """
        found = self._by_name.get(name) or self._newest.get(name)
        if found is None:
            raise UnknownCapability(name, self._similar(name))
        return found

    def list(self, lane: str | None = None, kind: str | None = None) -> tuple[Capability, ...]:
        """The capabilities of a lane, of a kind, of both, or all of them; sorted by name."""
        return tuple(each for each in self if lane in (None, each.lane) and kind in (None, each.kind))

    @cached_property
    def catalog_id(self) -> str:
        """``sha256:…``: the same for catalogs with the same content, and only for them."""
        return self._tree.root_hash

    def diff(self, newer: Catalog) -> CatalogDiff:
        """The differences between this catalog and a newer one."""
        found = self._tree.diff(newer._tree)
        old, new = self._by_name, newer._by_name
        return CatalogDiff(
            tuple(new[name] for name in found.added),
            tuple(old[name] for name in found.removed),
            tuple((old[name], new[name]) for name in found.changed),
            found.nodes_read,
            newer._tree.node_count(),
        )

    @cached_property
    def _tree(self) -> Hamt[Capability]:
        return Hamt.of(self._by_name.items(), _content)

    @cached_property
    def _newest(self) -> dict[str, Capability]:
        newest: dict[str, tuple[int, Capability]] = {}
        for each in self:
            base, number = split_version(each.name)
            if number is not None:
                newest[base] = max(newest.get(base, (-1, each)), (number, each), key=lambda pair: pair[0])
        return {base: each for base, (_, each) in newest.items()}

    def _similar(self, name: str) -> tuple[str, ...]:
        names = [*self._by_name]
        if len(names) > _MAX_COMPARED:
            # To compare with all of a large catalog takes seconds. Names that begin alike are neighbours.
            at, half = bisect(names, name), _MAX_COMPARED // 2
            names = names[max(0, at - half) : at + half]
        return tuple(difflib.get_close_matches(name, names, n=3))

    def to_json(self) -> bytes:
        """The text of the catalog's file. The same capabilities have the same text."""
        file = {"schema": SCHEMA, "catalog_id": self.catalog_id, "capabilities": [*self]}
        return msgspec.json.format(msgspec.json.encode(file), indent=2) + b"\n"


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    schema: Literal["cantrip-catalog/v1"]
    catalog_id: str
    capabilities: tuple[Capability, ...]


def parse_catalog(text: bytes, file: str) -> Catalog:
    """Read and check the text of a catalog's file. Raises `TupleError` with the file, the field and the rule."""
    try:
        data = json_decoder(_File).decode(text)
        catalog = Catalog(freeze_record(each) for each in data.capabilities)
    except (msgspec.DecodeError, UnicodeError, RecursionError, TupleError) as error:
        raise TupleError(f"this is not a valid catalog: {error}. {_HOW}", where=file) from None
    if catalog.catalog_id != data.catalog_id:
        raise TupleError(
            f"the catalog_id is {data.catalog_id}, but the capabilities have the id {catalog.catalog_id}: the file was "
            f"edited or merged by hand. {_HOW}",
            where=file,
        )
    return catalog


def read_catalog(path: Path | str) -> Catalog:
    """Read a catalog's file. Raises `TupleError` if it cannot be read, is not valid or was edited by hand."""
    try:
        text = Path(path).read_bytes()
    except OSError as error:
        raise TupleError(f"the catalog cannot be read: {error.strerror}. {_HOW}", where=str(path)) from None
    return parse_catalog(text, str(path))


def split_version(name: str) -> tuple[str, int | None]:
    """A name without its version, and the version: ``("agent.dev.python", 2)`` for ``agent.dev.python.v2``."""
    found = _VERSION.search(name)
    return (name[: found.start()], int(found[1])) if found else (name, None)


def with_newest(named: Mapping[str, T]) -> dict[str, T]:
    """The same mapping, with each newest version also under its name without version, if nothing else has that name."""
    newest: dict[str, tuple[int, T]] = {}
    for name, each in named.items():
        base, number = split_version(name)
        if number is not None and number >= newest.get(base, (-1, each))[0]:
            newest[base] = (number, each)
    return {**{base: each for base, (_, each) in newest.items()}, **named}


_VERSION = re.compile(r"\.v(\d{1,9})$")
_HOW = "To write it again, run `cantrip catalog build` in the folder of the project"


def _content(capability: Capability) -> bytes:
    return msgspec.json.encode(capability)
