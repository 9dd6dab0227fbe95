"""Parses YAML 1.2 (core schema) to plain data with source positions, with ruamel's event parser.

It uses events, because YAML loaders drop what a recipe needs: the position of every key, duplicate keys, and the number
of aliases (a few lines with aliases can become gigabytes of data). As in YAML 1.2, ``on`` and ``off`` are texts here;
boolean fields accept them (`recipes.models.field_types.Flag`).
"""

from __future__ import annotations

import math
import re
from typing import Any

from msgspec import Struct
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)
from ruamel.yaml.reader import ReaderError

from cantrip_acp.recipes.parse.problem_positions import MAX_DEPTH, KeyPath, Mend, Place, Places, broken

MAX_ALIASED = 100_000
"""Maximum nodes that the aliases of a document may add to it."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_TRUE = frozenset({"true", "True", "TRUE"})
_FALSE = frozenset({"false", "False", "FALSE"})
_INT = re.compile(r"[-+]?[0-9]+\Z")
_OCTAL = re.compile(r"0o[0-7]+\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_TAG = "tag:yaml.org,2002:"


class YamlNode(Struct):
    """A parsed node before its conversion to data. ``place`` is its line and column."""

    place: Place
    value: Any
    """A scalar's value, a list of nodes, or a list of (key node, value node)."""
    kind: str
    """scalar, list or mapping."""
    size: int = 1
    """Number of nodes in this subtree, with every alias expanded."""
    depth: int = 1
    """Number of levels in this subtree, with every alias expanded."""
    plain: bool = False
    """A scalar without quotes."""
    empty: bool = False
    """A scalar with no text at all."""


def read(text: str, name: str) -> tuple[Any, Places]:
    """The data and positions of a YAML document. Raises `RecipeError` with ``name``, line and column."""
    root = tree(text, name)
    if root is None:
        raise broken(
            name,
            1,
            1,
            "the file is empty; `cantrip recipe new` writes an example",
            rule="CANTRIP-1",
            mend=Mend("template"),
        )
    places = Places()
    return data_of(root, (), places, name), places


def tree(text: str, name: str) -> YamlNode | None:
    """The root node of a document, or None if it is empty. Raises `RecipeError` with ``name``, line and column."""
    anchors: dict[str, YamlNode | None] = {}
    stack: list[tuple[YamlNode, str | None]] = []
    root: YamlNode | None = None
    aliased = 0

    def add(node: YamlNode) -> None:
        nonlocal root
        if len(stack) + node.depth > MAX_DEPTH:
            raise broken(name, *node.place, f"nested more than {MAX_DEPTH} levels deep")
        if not stack:
            root = node
            return
        parent = stack[-1][0]
        if parent.kind == "list":
            parent.value.append(node)
        elif parent.value and parent.value[-1][1] is None:
            parent.value[-1] = (parent.value[-1][0], node)
        else:
            parent.value.append((node, None))
        parent.size += node.size
        parent.depth = max(parent.depth, node.depth + 1)

    try:
        documents = 0
        for event in YAML(typ="safe", pure=True).parse(text):
            place = (event.start_mark.line + 1, event.start_mark.column + 1)
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise broken(name, *place, "a second document begins here; a recipe file must have only one")
            elif isinstance(event, AliasEvent):
                target = anchors.get(event.anchor)
                if target is None:
                    why = (
                        "is inside the value that it repeats" if event.anchor in anchors else "has no anchor before it"
                    )
                    raise broken(name, *place, f"alias *{event.anchor} {why}")
                aliased += target.size
                if aliased > MAX_ALIASED:
                    raise broken(
                        name,
                        *place,
                        f"aliases repeat more than {MAX_ALIASED:,} values; write the values without aliases",
                    )
                add(YamlNode(place, target.value, target.kind, target.size, target.depth))
            elif isinstance(event, ScalarEvent):
                value, unquoted = _scalar(event, name, place), event.style is None
                node = YamlNode(place, value, "scalar", plain=unquoted, empty=not event.value)
                if event.anchor is not None:
                    anchors[event.anchor] = node
                add(node)
            elif isinstance(event, MappingStartEvent | SequenceStartEvent):
                kind = "mapping" if isinstance(event, MappingStartEvent) else "list"
                if event.tag not in (None, "!", f"{_TAG}map" if kind == "mapping" else f"{_TAG}seq"):
                    raise broken(name, *place, f"the tag {_short_tag(event.tag)} has no meaning in a recipe; remove it")
                if len(stack) >= MAX_DEPTH:  # before the levels below are read
                    raise broken(name, *place, f"nested more than {MAX_DEPTH} levels deep")
                if event.anchor is not None:
                    anchors[event.anchor] = None
                stack.append((YamlNode(place, [], kind), event.anchor))
            elif isinstance(event, MappingEndEvent | SequenceEndEvent):
                node, anchor = stack.pop()
                if anchor is not None:
                    anchors[anchor] = node
                add(node)
    except ReaderError as error:
        before = text[: error.position] if isinstance(error.position, int) else ""
        line, column = before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1
        raise broken(name, line, column, "there is a control character here, which YAML does not allow") from None
    except MarkedYAMLError as error:
        raise _syntax(error, text, name) from None
    except YAMLError as error:
        raise broken(name, 1, 1, f"not YAML: {error}") from None
    return root


def _syntax(error: MarkedYAMLError, text: str, name: str) -> Exception:
    mark = error.problem_mark or error.context_mark
    line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
    start = error.context_mark
    if start is not None and start.line + 1 < line and str(error.context or "").startswith("while parsing a flow"):
        # The mistake is at the bracket that was not closed, not where the reader noticed it.
        bracket = "{" if "mapping" in str(error.context) else "["
        closing = "}" if bracket == "{" else "]"
        text_of = f"not YAML: this {bracket} has no {closing} (noticed on line {line})"
        return broken(name, start.line + 1, start.column + 1, text_of)
    lines = text.splitlines()
    here = lines[line - 1] if line <= len(lines) else ""
    indent = here[: len(here) - len(here.lstrip())]
    if "\t" in indent or here[column - 1 : column] == "\t":
        column = here.index("\t") + 1
        return broken(name, line, column, "a tab is used for indentation; YAML allows only spaces", mend=Mend("indent"))
    # ruamel writes token names as ('<scalar>',).
    problem = re.sub(
        r"\('?(<[^']+>)'?,?\)|'(<[^']+>)'", r"\1\2", str(error.problem or "the text cannot be read").strip()
    )
    where = ""
    if error.context and error.context_mark is not None and error.context_mark.line + 1 != line:
        where = f" ({error.context}, which began on line {error.context_mark.line + 1})"
    return broken(name, line, column, f"not YAML: {problem}{where}")


def _scalar(event: ScalarEvent, name: str, place: Place) -> Any:
    text = _paired(event.value, name, place)
    if event.tag in ("!", f"{_TAG}str"):
        return text
    if event.tag is not None:
        raise broken(name, *place, f"the tag {_short_tag(event.tag)} has no meaning in a recipe; remove it")
    if event.style is not None:
        return text
    if text in _NULL:
        return None
    if text in _TRUE:
        return True
    if text in _FALSE:
        return False
    if _INT.match(text) or _OCTAL.match(text) or _HEX.match(text):
        if len(text) > 300:
            raise broken(
                name, *place, f"a number with {len(text)} digits is too long; put it in quotes if it is a text"
            )
        if text.startswith(("0o", "0x")):
            return int(text, 0)
        return int(text)
    if _FLOAT.match(text):
        value = float(text)
        if math.isfinite(value):
            return value
    elif not _NOT_FINITE.match(text):
        return text
    raise broken(name, *place, f"{text} is not a finite number; put it in quotes if it is a text")


def _paired(text: str, name: str, place: Place) -> str:
    """Join escaped surrogate pairs.

    JSON writes a character beyond the basic plane as two escapes, and YAML reads the two escapes separately.
    """
    if not any("\ud800" <= character <= "\udfff" for character in text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise broken(
            name, *place, "this text contains an escape for half of a surrogate pair, which is not a character"
        ) from None


def _short_tag(tag: Any) -> str:
    text = str(tag)
    return "!!" + text.removeprefix(_TAG) if text.startswith(_TAG) else text


def data_of(node: YamlNode, path: KeyPath, places: Places, name: str) -> Any:
    """Convert a node to data. Adds the positions of all its keys and values to ``places``.

    Raises `RecipeError` for a duplicate key and for a key that is not a text.
    """
    if node.kind == "scalar":
        # An empty value has no position, so the position of its key is used.
        if not (node.plain and node.empty):
            places.values[path] = node.place
        return node.value
    places.values[path] = node.place
    if node.kind == "list":
        return [data_of(item, (*path, index), places, name) for index, item in enumerate(node.value)]
    out: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key, (line, column) = key_node.value, key_node.place
        if key_node.kind != "scalar" or not isinstance(key, str):
            what = "a list or mapping" if key_node.kind != "scalar" else f"{key!r}" if key is not None else "empty"
            raise broken(name, line, column, f"this key is {what}; a key must be a text (put it in quotes)")
        if key == "<<" and key_node.plain and value_node.kind != "scalar":
            raise broken(name, line, column, "merge keys (<<) are not part of YAML 1.2; write every key")
        inner = (*path, key)
        if key in out:
            first = places.keys[inner]
            raise broken(
                name, line, column, f"duplicate key {key!r}: it is already on line {first[0]}", rule="duplicate-key"
            )
        places.keys[inner] = key_node.place
        out[key] = data_of(value_node, inner, places, name)
    return out
