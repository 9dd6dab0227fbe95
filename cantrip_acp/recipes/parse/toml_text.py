"""TOML to plain data with source positions: tomllib reads the values, and a scanner of the same text finds the
positions.

tomllib keeps no positions. The scanner runs only on text that tomllib accepted, so it need not check the grammar.
"""

from __future__ import annotations

import contextlib
import math
import re
import tomllib
from typing import Any

from cantrip_acp.recipes.parse.document import MAX_DEPTH, broken
from cantrip_acp.recipes.parse.source_map import KeyPath, Mend, Places

_AT = re.compile(r"\(at line (\d+), column (\d+)\)|\(at end of document\)")
_BLANK = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_ATOM = re.compile(r"[^,\]}\r\n#]+")
_STRINGS = (
    re.compile(r'"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}', re.DOTALL),
    re.compile(r"'''(?:[^']|'{1,2}(?!'))*'{3,5}", re.DOTALL),
    re.compile(r'"(?:[^"\\\n]|\\.)*"'),
    re.compile(r"'[^'\n]*'"),
)


def read(text: str, name: str) -> tuple[Any, Places]:
    """Data and positions of a TOML document. Raises `RecipeError` that names ``name``, line and column."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        message = str(error)
        at = _AT.search(message)
        end = (text.count("\n") + 1, len(text) - text.rfind("\n"))
        line, column = (int(at[1]), int(at[2])) if at and at[1] else end
        if message.startswith(_TWICE):
            _duplicate(text, name, line, column)
        raise broken(name, line, column, f"not TOML: {_AT.sub('', message).strip().rstrip('(').strip()}") from None
    except RecursionError:
        raise broken(name, 1, 1, "nested too deep for a recipe") from None
    if not data:
        raise broken(
            name,
            1,
            1,
            "the file is empty; `cantrip recipe new` writes one to start from",
            rule="CANTRIP-1",
            mend=Mend("template"),
        )
    places = _Scanner(text).run()
    return _plain(data, (), places, name), places


_TWICE = ("Cannot overwrite", "Cannot declare", "Duplicate inline")


def _duplicate(text: str, name: str, line: int, column: int) -> None:
    """Raise the `RecipeError` of a duplicate key, if tomllib stopped because of one here."""
    scanner = _Scanner(text)
    # The text is valid up to here, and its last key is the duplicate.
    scanner.text = scanner.text[: scanner.starts[line - 1] + column - 1]
    with contextlib.suppress(IndexError, AssertionError):
        scanner.run()
    key, place, first = scanner.last
    if first is not None:
        raise broken(name, *place, f"duplicate key {key!r}: it stands on line {first[0]} already", rule="duplicate-key")


def _plain(value: Any, path: KeyPath, places: Places, name: str) -> Any:
    if len(path) > MAX_DEPTH:
        raise broken(name, *places.value(path), f"nested more than {MAX_DEPTH} levels deep")
    if isinstance(value, dict):
        return {key: _plain(inner, (*path, key), places, name) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner, (*path, index), places, name) for index, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise broken(name, *places.value(path), f"{value} is no finite number")
    if isinstance(value, str | bool | int | float):
        return value
    raise broken(name, *places.value(path), f"a date or time ({value}) has no meaning in a recipe; put it in quotes")


class _Scanner:
    def __init__(self, text: str) -> None:
        # tomllib counts CRLF as one line end, and so must the positions.
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.places = Places()
        self.counts: dict[KeyPath, int] = {}
        self.last: tuple[str, tuple[int, int], tuple[int, int] | None] = ("", (1, 1), None)
        """The last key with its position, and the position of its first occurrence."""
        starts, found = [0], self.text.find("\n")
        while found >= 0:
            starts.append(found + 1)
            found = self.text.find("\n", found + 1)
        self.starts = starts

    def run(self) -> Places:
        prefix: KeyPath = ()
        self.places.values[()] = (1, 1)
        while True:
            self._skip(_BLANK)
            if self.at >= len(self.text):
                return self.places
            if self.text.startswith("[[", self.at):
                self.at += 2
                prefix = self._header(self._keys(), array=True)
                self.at += 2
            elif self.text[self.at] == "[":
                self.at += 1
                prefix = self._header(self._keys(), array=False)
                self.at += 1
            else:
                self._pair(prefix)

    def _place(self, at: int) -> tuple[int, int]:
        from bisect import bisect_right

        line = bisect_right(self.starts, at)
        return line, at - self.starts[line - 1] + 1

    def _skip(self, pattern: re.Pattern[str]) -> None:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()

    def _keys(self) -> list[tuple[str, int]]:
        """A dotted key: each part with its start."""
        out: list[tuple[str, int]] = []
        while True:
            self._skip(_SPACE)
            begin = self.at
            if self.text[begin] in "\"'":
                raw = self._string()
                out.append((tomllib.loads(f"k = {raw}")["k"], begin))
            else:
                self._skip(_BARE)
                if self.at == begin:  # cannot be, after tomllib; never turn in a circle
                    raise AssertionError(f"no key at {self._place(begin)}")
                out.append((self.text[begin : self.at], begin))
            self._skip(_SPACE)
            if self.text[self.at : self.at + 1] != ".":
                return out
            self.at += 1

    def _header(self, keys: list[tuple[str, int]], *, array: bool) -> KeyPath:
        path: KeyPath = ()
        for index, (key, begin) in enumerate(keys):
            path = (*path, key)
            self._seen(path, begin)
            if array and index == len(keys) - 1:
                self.counts[path] = self.counts.get(path, -1) + 1
            if path in self.counts:
                path = (*path, self.counts[path])
                self.places.values.setdefault(path, self._place(begin))
        return path

    def _seen(self, path: KeyPath, begin: int) -> None:
        place = self._place(begin)
        self.last = str(path[-1]), place, self.places.keys.get(path)
        self.places.keys.setdefault(path, place)
        self.places.values.setdefault(path, place)

    def _pair(self, prefix: KeyPath) -> None:
        path = prefix
        for key, begin in self._keys():
            path = (*path, key)
            self._seen(path, begin)
        self.at += 1  # the equals sign
        self._skip(_SPACE)
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self.places.values[path] = self._place(self.at)
        first = self.text[self.at]
        if first in "\"'":
            self._string()
        elif first == "[":
            self.at += 1
            index = 0
            while True:
                self._skip(_BLANK)
                if self.text[self.at] == "]":
                    break
                self._value((*path, index))
                index += 1
                self._skip(_BLANK)
                if self.text[self.at] == ",":
                    self.at += 1
            self.at += 1
        elif first == "{":
            self.at += 1
            while True:
                self._skip(_BLANK)
                if self.text[self.at] == "}":
                    break
                self._pair(path)
                self._skip(_BLANK)
                if self.text[self.at] == ",":
                    self.at += 1
            self.at += 1
        else:
            self._skip(_ATOM)

    def _string(self) -> str:
        begin = self.at
        for pattern in _STRINGS:
            found = pattern.match(self.text, begin)
            if found is not None:
                self.at = found.end()
                return found[0]
        raise AssertionError(f"no text at {self._place(begin)}")
