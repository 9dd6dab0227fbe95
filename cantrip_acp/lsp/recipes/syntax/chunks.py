"""Incremental reading of YAML with the loader's parser: only changed pieces are parsed again.
The YAML parser needs a third of a second for 2,000 lines, and a keystroke changes one line. The text is cut where a key or an
item begins at one indentation. Each piece is parsed alone and kept by its text. Texts that cannot be cut (anchors, several
documents) are read as a whole. A value that crosses a cut is misread, so the caller lets the loader read the whole text
when the typing pauses (`diagnostics`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from cantrip_acp.core.errors import RecipeError
from cantrip_acp.lsp.recipes.syntax.cuts import OPENING, SMALL, cuts
from cantrip_acp.recipes.parse import yaml_text
from cantrip_acp.recipes.parse.source_map import Places
from cantrip_acp.recipes.parse.yaml_text import YamlNode

_UNCUT = re.compile(
    r"(?m)^(?:---|\.\.\.|%|\ufeff)|(?:^[ \t]*|[:\-,\[{?][ \t]+)[&*][^\s*]|[\x0b\x0c\x85\u2028\u2029]|\r(?!\n)"
)
_RARE = ("&", "*", "---", "...", "%", "\r", *"\ufeff\x0b\x0c\x85\u2028\u2029")


class Chunks:
    """Pieces of one document, kept from one reading to the next."""

    def __init__(self) -> None:
        # The same text may occur in several places, but a piece has one place: keep one piece for each.
        self._held: dict[str, list[tuple[int, YamlNode]]] = {}
        self._used: dict[str, list[tuple[int, YamlNode]]] = {}

    def read(self, text: str, name: str) -> tuple[Any, Places] | None:
        """As `yaml_text.read`; None if the text must be read as a whole."""
        # This search is fast, and most texts contain none of these characters.
        if any(part in text for part in _RARE) and _UNCUT.search(text):
            return None
        lines = text.splitlines(keepends=True)
        self._used = {}
        try:
            root = self._block(lines, 0, len(lines), name)
        except RecipeError:
            # Put the used pieces back, so that the next reading can use both these and the pieces that this one did not reach.
            for piece, nodes in self._used.items():
                self._held.setdefault(piece, []).extend(nodes)
            raise
        self._held = self._used
        if root is None:
            return None
        places = Places()
        return yaml_text.data_of(root, (), places, name), places

    def _block(self, lines: list[str], begin: int, end: int, name: str) -> YamlNode | None:
        """The mapping or list on these lines, built from its pieces; None if they cannot be cut."""
        found = cuts(lines, begin, end)
        if found is None:
            return None
        kind, starts = found
        node: YamlNode | None = None
        for index, start in enumerate(starts):
            stop = starts[index + 1] if index + 1 < len(starts) else end
            piece = self._long(lines, start, stop, name) if stop - start > SMALL else None
            if piece is None:
                piece = self._piece(lines, start, stop, name)
            if piece is None or piece.kind != kind:
                return None
            if node is None:
                node = YamlNode(piece.place, list(piece.value), kind, piece.size, piece.depth)
            else:
                node.value.extend(piece.value)
                node.size += piece.size
                node.depth = max(node.depth, piece.depth)
        return node

    def _long(self, lines: list[str], begin: int, end: int, name: str) -> YamlNode | None:
        """A key with a long block as its value: read the key alone and the value in pieces."""
        first = lines[begin]
        if first.lstrip().startswith("- ") or OPENING.match(first) is None:
            return None
        inner = self._block(lines, begin + 1, end, name)
        if inner is None:
            return None
        alone = self._piece(lines, begin, begin + 1, name)
        if alone is None or alone.kind != "mapping" or len(alone.value) != 1:
            return None
        return YamlNode(alone.place, [(alone.value[0][0], inner)], "mapping", inner.size + 2, inner.depth + 1)

    def _piece(self, lines: list[str], begin: int, end: int, name: str) -> YamlNode | None:
        text = "".join(lines[begin:end])
        known = self._held.get(text)
        held = known.pop(0) if known else None
        if held is None:
            try:
                node = yaml_text.tree(text, name)
            except RecipeError as error:
                raise _moved(error, begin) from None
            if node is None:
                return None
            held = (0, node)
        base, node = held
        if base != begin:
            _shift(node, begin - base)
        self._used.setdefault(text, []).append((begin, node))
        return node


def _shift(node: YamlNode, lines: int) -> None:
    """Move a piece by some lines."""
    stack = [node]
    while stack:
        current = stack.pop()
        current.place = (current.place[0] + lines, current.place[1])
        if current.kind == "list":
            stack.extend(current.value)
        elif current.kind == "mapping":
            for pair in current.value:
                stack.extend(pair)


def _moved(error: RecipeError, lines: int) -> RecipeError:
    return RecipeError(problems=[replace(each, line=each.line + lines) for each in error.problems])
