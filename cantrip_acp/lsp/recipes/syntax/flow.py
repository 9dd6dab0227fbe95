"""Values in brackets and quotes, for YAML and TOML, also if they are not closed."""

from __future__ import annotations

import json
import re

from cantrip_acp.lsp.recipes.syntax.tree import Node, Span

_BLANK = re.compile(r"(?:[ \t\r\n]|(?:(?<=[ \t\r\n,\[{])|^)#[^\r\n]*)*")
_DEPTH = 60


class Flow:
    """Reads values from ``source`` up to ``limit``. ``separator`` is between key and value (``:`` or ``=``)."""

    def __init__(self, source: str, at: int, limit: int, separator: str) -> None:
        self.source = source
        self.at = at
        self.limit = limit
        self.separator = separator

    def value(self, depth: int = 0) -> Node:
        """The value that begins here."""
        first = self.source[self.at : self.at + 1] if self.at < self.limit else ""
        if first in ("[", "{") and first and depth < _DEPTH:
            return self._brackets(first, depth)
        if first in ('"', "'") and first:
            return self.quoted()
        return self._plain(depth)

    def quoted(self) -> Node:
        """A quoted text; in TOML also with triple quotes."""
        start, quote = self.at, self.source[self.at]
        mark = quote * 3 if self.separator == "=" and self.source.startswith(quote * 3, start) else quote
        at = start + len(mark)
        while at < self.limit:
            if (quote == '"' and self.source[at] == "\\") or (
                self.separator == ":" and quote == "'" and self.source.startswith("''", at)
            ):
                at += 2
            elif self.source.startswith(mark, at):
                inner = self.source[start + len(mark) : at]
                self.at = at + len(mark)
                return Node("scalar", (start, self.at), value=_unquoted(inner, quote, self.separator), quote=mark)
            elif self.separator == "=" and len(mark) == 1 and self.source[at] in "\r\n":
                break
            else:
                at += 1
        self.at = min(at, self.limit)
        line_end = _line_end(self.source, start)
        if self.separator == ":" and line_end < self.at:
            # An unclosed text ends with its line, so that the rest of the file is still read.
            self.at = line_end
        inner = self.source[start + len(mark) : self.at]
        return Node("scalar", (start, self.at), value=inner, quote=mark, closed=False)

    def _brackets(self, first: str, depth: int) -> Node:
        closing = "]" if first == "[" else "}"
        node = Node("list" if first == "[" else "mapping", (self.at, self.at), quote=first)
        start = self.at
        self.at += 1
        while True:
            self._blank()
            if self.at >= self.limit:
                node.closed = False
                break
            here = self.source[self.at]
            if here == closing:
                self.at += 1
                break
            if here in "]}":  # the wrong closing bracket: the user is still typing
                node.closed = False
                break
            if here == ",":
                self.at += 1
                continue
            before = self.at
            if first == "[":
                child = self.value(depth + 1)
                child.key = len(node.children)
                node.add(child)
            else:
                self._pair(node, depth)
            if self.at == before:
                self.at += 1
        node.span = (start, min(self.at, self.limit))
        return node

    def _pair(self, node: Node, depth: int) -> None:
        start = self.at
        if self.source[start] in "\"'":
            named = self.quoted()
            key, span = named.value, named.span
        else:
            found = re.compile(rf"[^\r\n,{{}}\[\]{self.separator}]+").match(self.source, start, self.limit)
            raw = found[0].rstrip() if found else ""
            key, span = raw, (start, start + len(raw))
            self.at = span[1]
        self._blank()
        parts = [key]
        if self.separator == "=" and "." in key and self.source[span[0]] not in "\"'":
            parts = [part.strip() for part in key.split(".")]
        for part in parts[:-1]:
            inner = node.get(part)
            if inner is None:
                inner = node.add(Node("mapping", span, key=part, key_span=span))
            node = inner
        if self.source.startswith(self.separator, self.at) and self.at < self.limit:
            self.at += 1
            self._blank()
            here = self.source[self.at : self.at + 1]
            child = (
                Node("empty", (self.at, self.at))
                if self.at >= self.limit or here in (",", "]", "}")
                else self.value(depth + 1)
            )
        else:
            child = Node("empty", (span[1], span[1]), closed=False)
        child.key, child.key_span = parts[-1], span
        node.add(child)

    def _plain(self, depth: int) -> Node:
        pattern = _PLAIN_INSIDE if depth else _PLAIN
        found = pattern.match(self.source, self.at, self.limit)
        raw = found[0].rstrip() if found else ""
        span: Span = (self.at, self.at + len(raw))
        self.at = span[1]
        return Node("scalar" if raw else "empty", span, value=raw)

    def _blank(self) -> None:
        found = _BLANK.match(self.source, self.at, self.limit)
        if found is not None:
            self.at = found.end()


_PLAIN = re.compile(r"(?:[^\r\n#]|(?<![ \t])#)*")
_PLAIN_INSIDE = re.compile(r"(?:[^\r\n#,\[\]{}]|(?<![ \t])#)*")


def _line_end(source: str, at: int) -> int:
    ends = [found for found in (source.find("\n", at), source.find("\r", at)) if found >= 0]
    return min(ends, default=len(source))


def _unquoted(inner: str, quote: str, separator: str) -> str:
    if quote == "'":
        return inner.replace("''", "'") if separator == ":" else inner
    if "\\" not in inner:
        return inner
    try:
        return str(json.loads(f'"{inner}"', strict=False))
    except ValueError:
        return inner
