"""Quick fixes for values of the wrong type and for missing parts, if only one correction is possible."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from cantrip_acp.lsp.recipes.diagnostics import Finding
from cantrip_acp.lsp.recipes.fixes.quick_fixes import NO_MEND, Fix, removed, requoted
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.recipes.parse.problem_positions import Mend

_NUMBER = re.compile(r"-?\d+(?:\.\d+)?\Z")
_BOOLEANS = {"yes": "true", "no": "false", "y": "true", "n": "false", "true": "true", "false": "false"}
_MEDIUMS = {
    "python": "code",
    "py": "code",
    "shell": "bash",
    "sh": "bash",
    "terminal": "bash",
    "chat": "conversation",
    "tools": "conversation",
}


def fixes(document: OpenDocument, finding: Finding) -> Iterator[Fix]:
    mend, node = finding.mend or NO_MEND, document.tree.at(finding.span[0])
    written = document.text.source[slice(*finding.span)]
    if mend.kind == "list":
        yield from _listed(document, node)
    elif mend.kind == "split":
        yield from _split(document, node)
    elif mend.kind == "number":
        yield from _number(finding, written, mend.value)
    elif mend.kind == "boolean":
        word = _BOOLEANS.get(written.strip("\"'").lower())
        if word is not None:
            yield Fix(f"Make it {word}", ((finding.span, word),), safe=True)
    elif finding.rule == "unknown-name" and node.path == ("circle", "medium"):
        yield from _medium(document, finding, written)
    elif finding.rule == "CANTRIP-1":
        yield from _part(document, mend, node)
    elif mend.kind == "model-of":
        provider = mend.value
        model = _default(provider)
        if model:
            yield Fix(f"Make it {provider}:{model}", ((finding.span, requoted(written, f"{provider}:{model}")),))
    elif mend.kind == "add-model":
        yield from _model(document, finding)
    elif finding.rule == "unknown-key" and not mend.kind:
        yield from removed(document, node, f"Remove {node.key}", best=False)


def _listed(document: OpenDocument, node: Node) -> Iterator[Fix]:
    """A single value if a list is expected: put it into a list."""
    while node.parent is not None and node.path[:2] == node.parent.path[:2] and len(node.path) > 2:
        node = node.parent
    source = document.text.source
    if (node.kind == "scalar" and not node.quote.strip("'\"")) or (node.kind == "mapping" and node.quote == "{"):
        yield Fix("Make it a list", ((node.span, f"[{source[slice(*node.span)]}]"),), safe=True)
    elif node.kind == "mapping" and node.children:
        edits: list[tuple[Span, str]] = []
        for child in node.children:
            if child.key_span is None:
                return
            edits.append(((child.key_span[0], child.key_span[0]), "- "))
            first, last = document.text.line_of(child.key_span[0]), document.text.line_of(max(child.whole[1] - 1, 0))
            edits += [((at, at), "  ") for at in document.text.starts[first + 1 : last + 1]]
        yield Fix("Make it a list", tuple(edits), safe=True)


def _split(document: OpenDocument, node: Node) -> Iterator[Fix]:
    """A ward with several keys: one ward for each key."""
    while node.parent is not None and not isinstance(node.key, int):
        node = node.parent
    if node.kind != "mapping" or len(node.children) < 2:
        return
    source = document.text.source
    edits: list[tuple[Span, str]] = []
    for before, child in zip(node.children, node.children[1:], strict=False):
        if child.key_span is None:
            return
        start = child.key_span[0]
        if node.quote == "{":
            comma = source.find(",", before.whole[1], start)
            if comma < 0:
                return
            edits.append(((comma, start), "}, {"))
        else:
            begin = document.text.starts[document.text.line_of(start)]
            if source[begin:start].strip() or start - begin < 2:
                return
            edits.append(((start - 2, start), "- "))
    yield Fix("Make each a ward of its own", tuple(edits), safe=True)


def _number(finding: Finding, written: str, least: str) -> Iterator[Fix]:
    plain = written.strip("\"'")
    if plain != written and _NUMBER.match(plain) and (not least or float(plain) >= float(least)):
        yield Fix(f"Make it {plain}", ((finding.span, plain),), safe=True)
    elif least and _NUMBER.match(plain):
        yield Fix(f"Make it {least}", ((finding.span, least),))


def _medium(document: OpenDocument, finding: Finding, written: str) -> Iterator[Fix]:
    from cantrip_acp.lsp.recipes.hover import MEDIUMS

    known = {**_MEDIUMS, **{name: name for name in MEDIUMS}}
    near = difflib.get_close_matches(written.strip("\"'").lower(), known, 1, 0.6)
    if near:
        medium = known[near[0]]
        yield Fix(f"Make it {medium}", ((finding.span, requoted(written, medium)),))


def _part(document: OpenDocument, mend: Mend, node: Node) -> Iterator[Fix]:
    source = document.text.source
    newline = "\r\n" if "\r\n" in source else "\n"
    if mend.kind == "template":
        from pathlib import Path

        from cantrip_acp import recipes

        template = (Path(recipes.__file__).parent / "templates" / "recipe.cantrip.yaml").read_text(encoding="utf-8")
        own = document.path.name.partition(".cantrip.")[0] or "recipe"
        yield Fix("Begin with a template", (((0, len(source)), template.replace("NAME", own, 1)),))
    elif mend.kind == "circle":
        text = newline.join(["circle:", "  gates: [done]", "  wards: [{max_turns: 20}]", ""])
        circle = document.tree.get("circle")
        if circle is not None and circle.key_span is not None:
            if circle.children:
                return
            value = text.partition(newline)[2].rstrip("\r\n")
            end = circle.whole[1] + (source[circle.whole[1] : circle.whole[1] + 1] == ":")
            yield Fix("Write a circle", (((circle.key_span[1], end), f":{newline}{value}"),))
            return
        lead = "" if not source or source.endswith(("\n", "\r")) else newline
        yield Fix("Add a circle", (((len(source), len(source)), lead + text),), safe=True)
    elif mend.kind == "call":
        call = document.tree.get("call")
        if call is not None and call.kind == "scalar" and call.value not in ("null", "~") and len(call.value) > 1:
            text = source[slice(*call.span)]
            if "\n" not in text and (call.quote or not set(text) & set("{}[],#")):
                yield Fix("Make it the system prompt", ((call.span, f"{{system_prompt: {text}}}"),))
        elif call is not None:
            yield from removed(document, call, "Remove call")


def _model(document: OpenDocument, finding: Finding) -> Iterator[Fix]:
    """A crystal with a provider but no model: add the provider's default model."""
    crystal = document.tree.at(finding.span[0])
    given = crystal.get("provider") if crystal.kind == "mapping" else None
    if given is None or crystal.parent is None:
        return
    model = _default(given.value)
    if not model:
        return
    name = f"model: {model}"
    end = given.whole[1]
    if crystal.quote == "{":
        yield Fix(f"Add {name}", (((end, end), f", {name}"),))
    elif given.key_span is not None:
        begin = document.text.starts[document.text.line_of(given.key_span[0])]
        indent = " " * (given.key_span[0] - begin)
        newline = "\r\n" if "\r\n" in document.text.source else "\n"
        yield Fix(f"Add {name}", (((end, end), f"{newline}{indent}{name}"),))


def _default(provider: str) -> str | None:
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.types.errors import DefinitionError

    try:
        return lookup.default(provider)
    except DefinitionError:
        return None
