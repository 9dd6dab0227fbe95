"""Quick fixes that need no question: for each finding, the edit that repairs it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from cantrip_acp.gates.registry import ALIASES
from cantrip_acp.gates.wards import WARDS
from cantrip_acp.lsp.recipes.diagnostics import Finding
from cantrip_acp.lsp.recipes.syntax import schema_lookup
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.recipes.parse.problem_positions import Mend

NO_MEND = Mend("")


@dataclass(frozen=True, slots=True)
class Fix:
    """A fix: the texts to put in place of spans. ``best`` if no better fix exists.
    ``safe`` if it changes only what is wrong, so that it may be applied without review.
    """

    title: str
    edits: tuple[tuple[Span, str], ...]
    best: bool = True
    safe: bool = False


def fixes(document: OpenDocument, finding: Finding) -> Iterator[Fix]:
    mend, node = finding.mend or NO_MEND, document.tree.at(finding.span[0])
    written = document.text.source[finding.span[0] : finding.span[1]]
    if mend.kind == "rename":
        word = _word(document, finding, mend.word)
        new = requoted(document.text.source[slice(*word)], mend.value)
        yield Fix(f"Rename to {mend.value}", ((word, new),), safe=finding.rule == "unknown-key")
    if mend.kind == "keep-done":
        yield from removed(document, node, "Do not remove done")
    elif mend.kind == "add-done":
        yield from added(document, "gates", "done", "Add the done gate")
    elif mend.kind == "add-max-turns":
        yield from added(document, "wards", "{max_turns: 20}", "Add max_turns: 20")
    elif finding.key in ("circle.gates", "circle.wards") and mend.kind == "list" and node.kind == "empty":
        if finding.key == "circle.gates":
            yield from added(document, "gates", "done", "Add the done gate")
        else:
            yield from added(document, "wards", "{max_turns: 20}", "Add max_turns: 20")
    elif finding.rule == "legacy-key":
        for old, new in (*ALIASES.items(), ("require_done", "require_done_tool")):
            if written.strip("\"'") == old:
                yield Fix(f"Rename to {new}", ((finding.span, requoted(written, new)),), safe=True)
    elif finding.rule in ("duplicate-key", "exclusive-keys"):
        if node.key_span is not None and node.key_span[0] <= finding.span[0] < node.key_span[1]:
            yield from removed(document, node, f"Remove this {node.key}")
    elif finding.rule == "duplicate-gate":
        yield from removed(document, _item(node), "Remove the second one")
    elif finding.rule == "idle-gate":
        yield from removed(document, _item(node), f"Remove {written_of(_item(node))}")
    elif finding.rule in ("idle-ward", "wards-cancel") and finding.path[:2] == ("circle", "wards"):
        whole = document.tree.find(finding.path[:3])
        if whole is not None:
            yield from removed(
                document, whole, f"Remove the ward {finding.path[3] if len(finding.path) > 3 else ''}".rstrip()
            )
        for path in finding.removable:
            given = document.tree.find(path)
            if given is not None:
                gate = _item(given)
                yield from removed(document, gate, f"Remove the gate {written_of(gate)}", best=False)
    elif finding.rule == "lethal-trifecta":
        yield from _remove_network_access(document, finding)
    elif mend.kind == "indent":
        line = document.text.line_of(finding.span[0])
        begin = document.text.starts[line]
        indent = re.match(r"[ \t]*", document.text.line(line))
        assert indent is not None
        above = next((a for n in range(line - 1, -1, -1) if (a := document.text.line(n)).strip()), "")
        spaces = indent[0].replace("\t", "  ")
        if not indent[0].strip("\t"):  # only tabs: indent as the line above
            spaces = above[: len(above) - len(above.lstrip(" "))]
        yield Fix("Indent with spaces", (((begin, begin + indent.end()), spaces),), safe=True)
    elif mend.kind == "code-medium":
        medium = document.tree.find(("circle", "medium"))
        if medium is not None and medium.kind == "scalar":
            yield Fix(
                "Make it the code medium", ((medium.span, requoted(document.text.source[slice(*medium.span)], "code")),)
            )
        yield from removed(document, node, f"Remove {node.key}", best=False)


def written_of(node: Node) -> str:
    """A gate's name."""
    named = node.get("name") if node.kind == "mapping" else node
    return named.value if named is not None else ""


def _remove_network_access(document: OpenDocument, finding: Finding) -> Iterator[Fix]:
    """Break the lethal trifecta: remove every access to the network."""
    places = [finding.path, *finding.removable]
    edits: list[tuple[Span, str]] = []
    names: list[str] = []
    for path in places:
        node = document.tree.find(path)
        if node is None:
            return
        if path[-1:] == ("bash_network",):
            edits.append((node.span, "false"))
            names.append("switch bash_network off")
        elif path[:2] == ("circle", "wards"):  # an entry of the list of hosts
            inner = document.tree.find((*path[:3], "bash_network"))
            if inner is None:
                return
            edits.append((inner.span, "false"))
            names.append("switch bash_network off")
        elif path[:1] == ("mcp_servers",) and path[-1:] == ("sandbox",):
            edits.append((node.span, "true"))
            names.append("run the server in the sandbox")
        else:
            item = _item(node)
            span = removal(document, item)
            if span is None:
                return
            edits.append((span, ""))
            names.append("remove the server" if path[0] == "mcp_servers" else f"remove {written_of(item)}")
    title = " and ".join(dict.fromkeys(names))
    yield Fix(title[:1].upper() + title[1:], _without_overlaps(edits))


def _without_overlaps(edits: list[tuple[Span, str]]) -> tuple[tuple[Span, str], ...]:
    """Resolve overlaps: two removed neighbours of a list share one comma."""
    out: list[tuple[Span, str]] = []
    for (start, end), text in sorted(edits):
        if out and start < out[-1][0][1] and not text and not out[-1][1]:
            before = out.pop()[0]
            start, end = before[0], max(before[1], end)
        out.append(((start, end), text))
    return tuple(out)


def _word(document: OpenDocument, finding: Finding, word: str) -> Span:
    """The part of a value that holds the name, if the value holds more: the provider of ``provider:model``."""
    source = document.text.source[finding.span[0] : finding.span[1]]
    if word and word in source:
        start = finding.span[0] + source.index(word)
        return start, start + len(word)
    node = document.tree.at(finding.span[0])
    if finding.rule == "unknown-model" and node.kind == "scalar":
        colon = document.text.source.find(":", *node.span) if node.key != "model" else -1
        quote = 1 if node.quote in ("'", '"') else 0
        return (colon + 1 if colon >= 0 else node.span[0] + quote), node.span[1] - quote
    return finding.span


def requoted(written: str, new: str) -> str:
    """A new word, in the quotes of the old one."""
    quote = written[:1] if written[:1] in ("'", '"') and written[-1:] == written[:1] and len(written) > 1 else ""
    return f"{quote}{new}{quote}"


def _item(node: Node) -> Node:
    """The list item that contains a node, or the top node if there is none."""
    while node.parent is not None and not isinstance(node.key, int):
        node = node.parent
    return node


def added(document: OpenDocument, name: str, item: str, title: str) -> Iterator[Fix]:
    """Insert an item at the head of a list of the circle; create the list if there is none."""
    circle = document.tree.find(("circle",))
    if circle is None or circle.kind not in ("mapping", "empty"):
        return
    source, node = document.text.source, circle.get(name)
    newline = "\r\n" if "\r\n" in source else "\n"
    if node is not None and node.kind == "list" and node.quote == "[":
        at = node.span[0] + 1
        yield Fix(title, (((at, at), f"{item}, " if node.children else item),), safe=True)
    elif node is not None and node.kind == "list" and node.children:
        first = document.text.starts[document.text.line_of(node.span[0])]
        line = document.text.line(document.text.line_of(first))
        indent = line[: len(line) - len(line.lstrip(" "))]
        yield Fix(title, (((first, first), f"{indent}- {item.strip('{}')}{newline}"),), safe=True)
    elif node is not None and node.key_span is not None and node.kind in ("empty", "scalar"):
        after = node.span if node.kind == "scalar" else (node.span[0], node.span[0])
        space = " " if source[after[0] - 1 : after[0]] == ":" else ""
        yield Fix(title, ((after, f"{space}[{item}]"),), safe=True)
    elif circle.key_span is not None and circle.quote == "{":
        at = circle.span[0] + 1
        yield Fix(title, (((at, at), f"{name}: [{item}]{', ' if circle.children else ''}"),), safe=True)
    elif circle.key_span is not None:
        number = document.text.line_of(circle.key_span[0])
        at = document.text.starts[number + 1] if number + 1 < len(document.text.starts) else len(source)
        lead = "" if source[:at].endswith(("\n", "\r")) else newline
        inner = circle.children[0].key_span if circle.children else None
        column = inner[0] - document.text.starts[document.text.line_of(inner[0])] if inner is not None else 2
        yield Fix(title, (((at, at), f"{lead}{' ' * column}{name}: [{item}]{newline}"),), safe=True)


def removed(document: OpenDocument, node: Node, title: str, *, best: bool = True) -> Iterator[Fix]:
    span = removal(document, node)
    if span is not None:
        yield Fix(title, ((span, ""),), best)


def removal(document: OpenDocument, node: Node) -> Span | None:
    """The span to remove with a key or an item: its comma inside brackets, else its lines."""
    source, parent = document.text.source, node.parent
    if parent is None:
        return None
    start, end = node.whole
    if parent.quote in ("[", "{"):
        after = re.compile(r"[ \t]*,[ \t]*").match(source, end)
        if after is not None:
            return start, after.end()
        before = re.compile(r",[ \t\r\n]*\Z").search(source, 0, start)
        return (before.start() if before is not None else start), end
    first, last = document.text.line_of(start), document.text.line_of(max(start, end - 1))
    line = document.text.line(first)
    column = start - document.text.starts[first]
    dashes = line[:column].strip()
    if dashes and not (dashes == "-" and isinstance(node.key, int)):
        if len(parent.children) > 1 or not isinstance(parent.key, int):
            return None  # the first key after a dash: the next key would lose its dash
        return removal(document, parent)
    stop = document.text.starts[last + 1] if last + 1 < len(document.text.starts) else len(source)
    return document.text.starts[first], stop


_SECTIONS = ("call", "circle", "folding", "retry", "loom", "memory")


def misplaced_key_fixes(document: OpenDocument, finding: Finding) -> Iterator[Fix]:
    """The fix of a finding, if the key can belong to only one place."""
    node = document.tree.at(finding.span[0])
    if finding.rule != "unknown-key" or not isinstance(node.key, str) or node.key_span is None:
        return
    parent, gone = node.parent, removal(document, node)
    if parent is None or parent.quote or gone is None or not node.key_span[0] <= finding.span[0] < node.key_span[1]:
        return
    if parent.parent is not None and len(parent.children) == 1:
        return  # it would leave an empty mapping
    if node.key in WARDS:
        yield from _to_wards(document, node, parent, gone)
        return
    found = [name for name in _SECTIONS if node.key in schema_lookup.keys((name,), document.tree)]
    if len(found) == 1 and parent.path not in ((found[0],), ("circle", "wards")):
        yield from _to_section(document, node, gone, found[0])


def _to_wards(document: OpenDocument, node: Node, parent: Node, gone: Span) -> Iterator[Fix]:
    value = document.text.source[slice(*node.span)]
    if parent.path[:2] == ("circle", "wards") or not value or "\n" in value or node.quote in ("|", ">"):
        return
    behind = document.text.source[node.span[1] : gone[1]]
    if "#" in behind:  # keep a comment behind the value
        gone = node.whole[0], node.span[1] + len(behind) - len(behind.lstrip(" \t"))
    for fix in added(document, "wards", f"{{{node.key}: {value}}}", ""):
        yield Fix(f"Move {node.key} to the wards", _both(gone, *fix.edits[0]))


def _to_section(document: OpenDocument, node: Node, gone: Span, name: str) -> Iterator[Fix]:
    """Move the key's lines to the beginning of its section."""
    source, section = document.text.source, document.tree.get(name)
    assert node.key_span is not None
    newline = "\r\n" if "\r\n" in source else "\n"
    lines = source[slice(*gone)]
    lines = lines if lines.endswith(("\n", "\r")) else lines + newline
    column = node.key_span[0] - document.text.starts[document.text.line_of(node.key_span[0])]
    title = f"Move {node.key} to {name}"
    if section is None:
        lead = "" if source.endswith(("\n", "\r")) else newline
        text = _indented(lines, column, 2)
        yield Fix(title, _both(gone, (len(source), len(source)), f"{lead}{name}:{newline}{text}"))
        return
    if section.kind != "mapping" or section.quote or section.key_span is None or section.get(str(node.key)) is not None:
        return
    number = document.text.line_of(section.key_span[0])
    first = section.children[0].key_span if section.children else None
    if number + 1 >= len(document.text.starts) or first is None or document.text.line_of(first[0]) == number:
        return
    below = (document.text.starts[number + 1],) * 2
    yield Fix(
        title,
        _both(gone, below, _indented(lines, column, first[0] - document.text.starts[document.text.line_of(first[0])])),
    )


def _indented(lines: str, before: int, after: int) -> str:
    return "".join(" " * after + line[before:] if line.strip() else line for line in lines.splitlines(keepends=True))


def _both(gone: Span, at: Span, text: str) -> tuple[tuple[Span, str], ...]:
    """The edits that remove and insert; one edit if they touch."""
    if at[0] == at[1] and gone[0] <= at[0] <= gone[1]:
        return ((gone, text),)
    return tuple(sorted((((gone), ""), (at, text))))
