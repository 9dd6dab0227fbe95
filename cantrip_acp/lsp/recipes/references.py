"""References in a recipe: where crystals, gates, anchors and files are defined and used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from lsprotocol import types

import cantrip_acp
from cantrip_acp.gates.registry import ALIASES, BUILT_IN
from cantrip_acp.lsp.recipes.file_references import path_beside
from cantrip_acp.lsp.recipes.hover import is_crystal, is_gate
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.recipes.parse.problem_positions import KeyPath

_ANCHOR = re.compile(r"[&*]([^\s,\[\]{}]+)")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")


def definition(document: OpenDocument, position: types.Position) -> list[types.Location]:
    """Where the name at a position is defined: in this file, or in the file that it names."""
    offset = document.text.offset(position)
    anchor = _anchor(document, offset)
    if anchor is not None:
        return [_here(document, span) for span, sign in _anchors(document, anchor) if sign == "&"]
    node = document.tree.at(offset)
    file = _file(document, node)
    if file is not None:
        return [types.Location(file.as_uri(), _TOP)] if file.is_file() else []
    path = node.path
    if node.kind == "scalar" and is_gate(path):
        given = [span for span, defines in gate_places(document, node.value) if defines]
        if given and path[:2] != ("circle", "gates"):
            return [_here(document, span) for span in given]
        return _in_python(document, node.value) or _built_in(node.value)
    crystal = _crystal(node, offset)
    if crystal is not None:
        return [_here(document, span) for span, defines in crystal_places(document, crystal) if defines]
    return []


def references(document: OpenDocument, position: types.Position, declared: bool) -> list[types.Location]:
    """Every use of the name at a position in this file; with ``declared`` also its definition."""
    offset = document.text.offset(position)
    return [_here(document, span) for span, defines in places(document, offset) if declared or not defines]


def file_at(document: OpenDocument, position: types.Position) -> Path | None:
    return _file(document, document.tree.at(document.text.offset(position)))


def users(recipes: list[OpenDocument], file: Path) -> list[types.Location]:
    """Every place in these recipes that names the file."""
    return [
        types.Location(document.uri, document.text.range(*_inner(node)))
        for document in recipes
        for node in document.tree.walk()
        if _file(document, node) == file
    ]


def renaming(document: OpenDocument, position: types.Position) -> Span | None:
    """The span of the name at a position if the recipe defines it and it can be renamed; else None."""
    offset = document.text.offset(position)
    if _anchor(document, offset) is None and _crystal(document.tree.at(offset), offset) is None:
        return None
    return next((span for span, _ in places(document, offset) if span[0] <= offset <= span[1]), None)


def rename(document: OpenDocument, position: types.Position, new: str) -> types.WorkspaceEdit | None:
    """The edit that renames a crystal or an anchor everywhere. Raises `ValueError` for an invalid or a used name."""
    if renaming(document, position) is None:
        return None
    if not _NAME.match(new):
        raise ValueError(f"{new!r} cannot be a name here: letters, digits, _, - and ., beginning with a letter")
    taken = document.tree.find(("crystals", new))
    offset = document.text.offset(position)
    found = places(document, offset)
    anchor = _anchor(document, offset)
    if anchor is None and taken is not None:
        raise ValueError(f"there is a crystal {new!r} already")
    if anchor not in (None, new) and _anchors(document, new):
        raise ValueError(f"there is an anchor {new!r} already")
    return types.WorkspaceEdit(
        changes={document.uri: [types.TextEdit(document.text.range(*span), new) for span, _ in found]}
    )


def links(document: OpenDocument) -> list[types.DocumentLink]:
    """A link for every existing file that the recipe names."""
    out: list[types.DocumentLink] = []
    for node in document.tree.walk():
        file = _file(document, node)
        if file is not None and file.is_file():
            out.append(types.DocumentLink(document.text.range(*_inner(node)), file.as_uri()))
    return out


def crystal_places(document: OpenDocument, name: str) -> list[tuple[Span, bool]]:
    """Where one of the recipe's crystals is named, and whether it is defined there."""
    given = document.tree.find(("crystals", name))
    out: list[tuple[Span, bool]] = []
    if given is not None and given.key_span is not None:
        out.append((_without_quotes(document, given.key_span), True))
    used = document.tree.find(("folding", "summarizer"))
    if used is not None and used.kind == "scalar" and used.value == name:
        out.append((_inner(used), False))
    return out


def gate_places(document: OpenDocument, name: str) -> list[tuple[Span, bool]]:
    """Where a gate is named, and whether that gives it to the circle."""
    wanted = ALIASES.get(name, name)
    out: list[tuple[Span, bool]] = []
    circle = document.tree.find(("circle",))
    for node in circle.walk() if circle is not None else ():
        if node.kind == "scalar" and is_gate(node.path) and ALIASES.get(node.value, node.value) == wanted:
            out.append((_inner(node), node.path[:2] == ("circle", "gates")))
    return out


def places(document: OpenDocument, offset: int) -> list[tuple[Span, bool]]:
    """Every place of the name at an offset, and whether it is defined there."""
    anchor = _anchor(document, offset)
    if anchor is not None:
        return [((span[0] + 1, span[1]), sign == "&") for span, sign in _anchors(document, anchor)]
    node = document.tree.at(offset)
    if node.kind == "scalar" and is_gate(node.path):
        return gate_places(document, node.value)
    crystal = _crystal(node, offset)
    return crystal_places(document, crystal) if crystal is not None else []


def _crystal(node: Node, offset: int) -> str | None:
    """The name of the recipe's own crystal at an offset."""
    path: KeyPath = node.path
    if is_crystal(path) and len(path) == 2 and node.key_span is not None:
        return str(path[1]) if node.key_span[0] <= offset <= node.key_span[1] else None
    return node.value if path == ("folding", "summarizer") and node.kind == "scalar" else None


def _anchor(document: OpenDocument, offset: int) -> str | None:
    return next((n for span, n, _ in anchors(document) if span[0] <= offset <= span[1]), None)


def _anchors(document: OpenDocument, name: str) -> list[tuple[Span, str]]:
    return [(span, sign) for span, found, sign in anchors(document) if found == name]


def anchors(document: OpenDocument) -> list[tuple[Span, str, str]]:
    """Every anchor and alias, where a value begins; never inside texts."""
    out: list[tuple[Span, str, str]] = []
    for found in _ANCHOR.finditer(document.text.source):
        begin = document.text.starts[document.text.line_of(found.start())]
        before = document.text.source[begin : found.start()]
        if not re.search(r"(?:^[ \t]*|[:\-,\[{][ \t]*)\Z", before) or "#" in before:
            continue
        node = document.tree.at(found.start())
        if node.kind == "scalar" and node.quote and node.span[0] < found.start() < node.span[1]:
            continue
        out.append((found.span(), found[1], found[0][0]))
    return out


def _file(document: OpenDocument, node: Node) -> Path | None:
    path = node.path
    if node.kind != "scalar" or not path or not node.value.strip() or "\0" in node.value:
        return None
    named = path in (("call", "system_prompt_file"), ("result_schema",)) or (
        path[-1] == "python" and path[0] == "circle"
    )
    if named or (path[-1] == "script" and path[0] in ("crystal", "crystals")):
        return path_beside(document.path.parent, node.value)
    if is_crystal(path) and node.value.startswith("scripted:"):
        return path_beside(document.path.parent, node.value.removeprefix("scripted:"))
    return None


def _in_python(document: OpenDocument, name: str) -> list[types.Location]:
    """A gate in the recipe's own Python files. The files are parsed, not executed."""
    for node in document.tree.walk():
        file = _file(document, node) if node.key == "python" else None
        if file is None:
            continue
        try:
            module = ast.parse(file.read_bytes())
        except (OSError, SyntaxError, ValueError):
            continue
        for each in module.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == name:
                line = types.Position(each.lineno - 1, 0)
                return [types.Location(file.as_uri(), types.Range(line, line))]
    return []


def _built_in(name: str) -> list[types.Location]:
    """A built-in gate, in the module that makes it. Nothing is imported."""
    module, _, made = BUILT_IN.get(ALIASES.get(name, name), "").partition(":")
    if not made:
        return []
    file = Path(cantrip_acp.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    number = next((n for n, line in enumerate(lines) if re.match(rf"(?:def )?{made}\b", line)), 0)
    line = types.Position(number, 0)
    return [types.Location(file.as_uri(), types.Range(line, line))]


def _inner(node: Node) -> Span:
    """A scalar's span without its quotes."""
    return (node.span[0] + 1, node.span[1] - 1) if node.quote in ('"', "'") and node.closed else node.span


def _without_quotes(document: OpenDocument, span: Span) -> Span:
    return (span[0] + 1, span[1] - 1) if document.text.source[span[0]] in "\"'" else span


def _here(document: OpenDocument, span: Span) -> types.Location:
    return types.Location(document.uri, document.text.range(*span))


_TOP = types.Range(types.Position(0, 0), types.Position(0, 0))
