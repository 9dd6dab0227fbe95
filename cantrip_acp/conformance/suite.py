"""Reads a suite from disk: a YAML list of cases, parsed case by case.

Suites are not always strict YAML, and one broken case must not make the others unreadable. So the file is first cut
into its list items, and each is parsed alone. If that fails, two known deviations are repaired and the item is parsed
again: an unquoted ``turns[0].id`` inside a flow mapping, and a ``length: n`` line before the items of a list.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from cantrip_acp.conformance.case import Case
from cantrip_acp.conformance.grammar import Problem
from cantrip_acp.types.errors import DefinitionError

_SEPARATOR = re.compile(r"(---|\.\.\.)(\s+#.*)?\s*\Z")
_ITEM = re.compile(r"( *)-(?=\s|\Z)")
_BLOCK_SCALAR = re.compile(r"(?:\A|[:\-]\s+)(?:[&!]\S+\s+)*[|>][+\-0-9]*\s*(?:#.*)?\Z")
_LENGTH = re.compile(r"( *)length:\s*([^\s#]+)\s*(?:#.*)?\Z")
_ANCHOR = re.compile(r"(?<!\S)&([\w\-]+)")
_ALIAS = re.compile(r"(?<![^\s\[{,])\*([\w\-]+)")
# The first two groups of alternatives skip quoted texts and comments; the rest matches an unquoted reference.
_REFERENCE = re.compile(
    r"""(?P<skip>(?<![^\s\[{,:])"(?:[^"\\]|\\.)*"|(?<![^\s\[{,:])'(?:[^']|'')*'|(?:\A|(?<=\s))\#.*)"""
    r"""|(?<![^\s\[{,:])(?P<bare>turns\[\d+\]\.\w+)"""
)


@dataclass(frozen=True)
class _Chunk:
    """One list item as text; ``line`` is the number of its first line, from 1."""

    line: int
    lines: tuple[str, ...]

    @property
    def text(self) -> str:
        return "\n".join(self.lines) + "\n"


def read_suite(path: Path) -> list[Case]:
    """All cases of a file, in order. A case that cannot be parsed has a problem and fails alone.

    Raises `DefinitionError` if the file cannot be read or has no list of cases.
    """
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DefinitionError(f"cannot read the suite: {error.strerror or error}", where=str(path)) from error
    except UnicodeDecodeError as error:
        raise DefinitionError(f"a suite is UTF-8 text; byte {error.start} is not", where=str(path)) from error
    return cases_of(path, text)


def cases_of(path: Path, text: str) -> list[Case]:
    """Like `read_suite`, for a given text; ``path`` is its file, for messages."""
    lines = text.splitlines()
    first = next((n for n, line in enumerate(lines) if _significant(line)), None)
    if first is None:
        raise DefinitionError("the suite is empty: it needs a YAML list of cases", where=str(path), rule="syntax")
    if lines[first].lstrip().startswith("["):
        return _read_flow(path, text, first + 1)
    if not _ITEM.match(lines[first]):
        raise DefinitionError(
            f"a suite is a YAML list of cases (lines that begin with '- '), not {lines[first].strip()[:60]!r}",
            where=f"{path}:{first + 1}",
            rule="syntax",
            place=(first + 1, 1),
        )
    chunks = list(_chunks(lines))
    return [_read_chunk(path, chunks, number) for number in range(len(chunks))]


def _significant(line: str) -> bool:
    bare = line.strip()
    return bool(bare) and not bare.startswith(("#", "%")) and not _SEPARATOR.match(line)


def _chunks(lines: list[str]) -> Iterator[_Chunk]:
    """Cut before every line that starts an item at the indentation of the first one; document marks end a chunk."""
    indent: int | None = None
    start, block = 0, list[str]()
    for number, line in enumerate(lines, 1):
        item = _ITEM.match(line)
        opens = item is not None and indent in (None, len(item[1]))
        if (opens or _SEPARATOR.match(line)) and block:
            yield _Chunk(start, tuple(block))
            block = []
        if opens and item is not None:
            indent = len(item[1])
            start, block = number, [line]
        elif block:
            block.append(line)
    if block:
        yield _Chunk(start, tuple(block))


def _read_flow(path: Path, text: str, line: int) -> list[Case]:
    """Parse a whole file in flow style (such as JSON). It cannot be cut, so one error makes the whole file
    unreadable."""
    try:
        items = _plain(_load(text))
    except YAMLError as error:
        raise _fault(error, path, 1) from error
    if not isinstance(items, list):
        raise DefinitionError("a suite is a list of cases", where=f"{path}:{line}", rule="syntax", place=(line, 1))
    return [Case.of(item, path, line) for item in items]


def _read_chunk(path: Path, chunks: list[_Chunk], number: int) -> Case:
    chunk = chunks[number]
    try:
        items = _load_chunk(chunks, number)
        value = _plain(items[-1])
    except YAMLError as error:
        fault = _fault(error, path, chunk.line)
        return Case(
            path,
            chunk.line,
            {"rule": _peek(chunk, "rule"), "name": _peek(chunk, "name")},
            Problem("", str(fault), fault.rule, fault),
        )
    except (TypeError, IndexError, RecursionError) as error:
        unread = f"{path}:{chunk.line}: this case cannot be read: {error}"
        return Case(path, chunk.line, {}, Problem("", unread))
    return Case.of(value, path, chunk.line)


def _load_chunk(chunks: list[_Chunk], number: int) -> Any:
    chunk = chunks[number]
    fault: YAMLError
    try:
        return _load(chunk.text)
    except YAMLError as error:
        fault = error
    mended = _mend(chunk)
    if mended != chunk.lines:
        try:
            return _load("\n".join(mended) + "\n")
        except YAMLError as error:
            fault = error
    if "undefined alias" not in str(fault):
        raise fault
    before = "".join("\n".join(_mend(c)) + "\n" for c in _anchoring(chunks, number))
    return _load(before + "\n".join(mended) + "\n")


def _anchoring(chunks: list[_Chunk], number: int) -> list[_Chunk]:
    """The earlier cases that a case's aliases need, in order. An alias means the nearest anchor of its name above
    it."""
    wanted = set(_ALIAS.findall(chunks[number].text))
    found: list[_Chunk] = []
    for chunk in reversed(chunks[:number]):
        anchors = wanted.intersection(_ANCHOR.findall(chunk.text))
        if anchors:
            wanted = (wanted - anchors) | set(_ALIAS.findall(chunk.text))
            found.insert(0, chunk)
    return found


def _load(text: str) -> Any:
    return YAML(typ="safe", pure=True).load(text)


def _mend(chunk: _Chunk) -> tuple[str, ...]:
    """Quote unquoted references, and turn ``length: n`` before items into an item. Block scalars are not changed."""
    out: list[str] = []
    scalar_indent: int | None = None
    for number, line in enumerate(chunk.lines):
        bare = line.lstrip(" ")
        indent = len(line) - len(bare)
        if scalar_indent is not None:
            if not bare or indent > scalar_indent:
                out.append(line)
                continue
            scalar_indent = None
        if _BLOCK_SCALAR.search(line):
            # The content of `- code: |` is indented deeper than `code`, not only deeper than the dash.
            scalar_indent = indent
            rest = bare
            while rest.startswith("- "):
                scalar_indent += len(rest) - len(rest[2:].lstrip(" "))
                rest = rest[2:].lstrip(" ")
            out.append(line)
            continue
        length = _LENGTH.match(line)
        following = next((_ITEM.match(n) for n in chunk.lines[number + 1 :] if _significant(n)), None)
        if length and following and len(following[1]) >= len(length[1]):
            line = f"{following[1]}- length: {length[2]}"
        out.append(_REFERENCE.sub(lambda m: m["skip"] if m["skip"] is not None else f'"{m["bare"]}"', line))
    return tuple(out)


def _plain(value: Any) -> Any:
    """Convert YAML's data to JSON's: dates become the text that was written, keys become text."""
    if isinstance(value, dict):
        return {_key(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, datetime.date | datetime.datetime):
        return value.isoformat()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not data that a case can hold")


def _key(key: Any) -> str:
    if isinstance(key, bool):
        return "true" if key else "false"
    return "null" if key is None else str(_plain(key))


def _fault(error: YAMLError, path: Path, first_line: int) -> DefinitionError:
    """A YAML error with its position in the line numbers of the file."""
    if isinstance(error, MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        what = " ".join(str(error.problem or error.context or error).split())
        if mark is not None:
            line, column = first_line + mark.line, mark.column + 1
            where = f"{path}:{line}:{column}"
            return DefinitionError(f"not YAML: {what}", where=where, rule="syntax", place=(line, column))
    what = " ".join(str(error).split())[:200]
    where = f"{path}:{first_line}"
    return DefinitionError(f"not YAML: {what}", where=where, rule="syntax", place=(first_line, 1))


def _peek(chunk: _Chunk, key: str) -> str | None:
    """The value of ``rule`` or ``name`` in a case that cannot be parsed, so that the report can name it."""
    for line in chunk.lines:
        found = re.match(rf"[\s\-]*{key}:\s*(.+?)\s*\Z", line)
        if found:
            return found[1].strip("\"'")
    return None
