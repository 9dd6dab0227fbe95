"""Quick fixes for valid keys in the wrong place: move them to their section, with their comments."""

from __future__ import annotations

from collections.abc import Iterator

from cantrip_acp.core.definition.wards import WARDS
from cantrip_acp.lsp.recipes.diagnostics import Finding
from cantrip_acp.lsp.recipes.fixes.simple import Fix, added, removal
from cantrip_acp.lsp.recipes.syntax import schema_lookup
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import Held

_SECTIONS = ("call", "circle", "folding", "retry", "loom", "memory")


def fixes(held: Held, finding: Finding) -> Iterator[Fix]:
    """The fix of a finding, if the key can belong to only one place."""
    node = held.tree.at(finding.span[0])
    if finding.rule != "unknown-key" or not isinstance(node.key, str) or node.key_span is None:
        return
    parent, gone = node.parent, removal(held, node)
    if parent is None or parent.quote or gone is None or not node.key_span[0] <= finding.span[0] < node.key_span[1]:
        return
    if parent.parent is not None and len(parent.children) == 1:
        return  # it would leave an empty mapping
    if node.key in WARDS:
        yield from _to_wards(held, node, parent, gone)
        return
    found = [name for name in _SECTIONS if node.key in schema_lookup.keys((name,), held.tree)]
    if len(found) == 1 and parent.path not in ((found[0],), ("circle", "wards")):
        yield from _to_section(held, node, gone, found[0])


def _to_wards(held: Held, node: Node, parent: Node, gone: Span) -> Iterator[Fix]:
    value = held.text.source[slice(*node.span)]
    if parent.path[:2] == ("circle", "wards") or not value or "\n" in value or node.quote in ("|", ">"):
        return
    behind = held.text.source[node.span[1] : gone[1]]
    if "#" in behind:  # keep a comment behind the value
        gone = node.whole[0], node.span[1] + len(behind) - len(behind.lstrip(" \t"))
    for fix in added(held, "wards", f"{{{node.key}: {value}}}", ""):
        yield Fix(f"Move {node.key} to the wards", _both(gone, *fix.edits[0]))


def _to_section(held: Held, node: Node, gone: Span, name: str) -> Iterator[Fix]:
    """Move the key's lines to the beginning of its section."""
    source, section = held.text.source, held.tree.get(name)
    assert node.key_span is not None
    newline = "\r\n" if "\r\n" in source else "\n"
    lines = source[slice(*gone)]
    lines = lines if lines.endswith(("\n", "\r")) else lines + newline
    column = node.key_span[0] - held.text.starts[held.text.line_of(node.key_span[0])]
    title = f"Move {node.key} to {name}"
    if section is None:
        lead = "" if source.endswith(("\n", "\r")) else newline
        text = _indented(lines, column, 2)
        yield Fix(title, _both(gone, (len(source), len(source)), f"{lead}{name}:{newline}{text}"))
        return
    if section.kind != "mapping" or section.quote or section.key_span is None or section.get(str(node.key)) is not None:
        return
    number = held.text.line_of(section.key_span[0])
    first = section.children[0].key_span if section.children else None
    if number + 1 >= len(held.text.starts) or first is None or held.text.line_of(first[0]) == number:
        return
    below = (held.text.starts[number + 1],) * 2
    yield Fix(
        title,
        _both(gone, below, _indented(lines, column, first[0] - held.text.starts[held.text.line_of(first[0])])),
    )


def _indented(lines: str, before: int, after: int) -> str:
    """Indent the lines of a key from one column to another."""
    return "".join(" " * after + line[before:] if line.strip() else line for line in lines.splitlines(keepends=True))


def _both(gone: Span, at: Span, text: str) -> tuple[tuple[Span, str], ...]:
    """The edits that remove and insert; one edit if they touch."""
    if at[0] == at[1] and gone[0] <= at[0] <= gone[1]:
        return ((gone, text),)
    return tuple(sorted((((gone), ""), (at, text))))
