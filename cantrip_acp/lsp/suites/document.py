"""The cases of a suite's text, and their diagnostics with spans. Cases that did not change are not read again."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cantrip_acp.conformance import suite
from cantrip_acp.conformance.case import Case
from cantrip_acp.conformance.grammar import Problem
from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.lsp.recipes import rules as explained
from cantrip_acp.lsp.recipes.syntax.tree import Node, Span
from cantrip_acp.lsp.server.positions import Text
from cantrip_acp.lsp.suites import schema_lookup
from cantrip_acp.recipes.models.field_types import nearest
from cantrip_acp.text.sanitize import clean_line

MOST = 250
"""The most diagnostics for one file."""
_PART = re.compile(r"([^.\[\]]+)|\[(\d+)\]")
_SUITE = re.compile(r"(?m)^[ \t]*(?:-[ \t]+)?[\"']?(?:rule|setup|expect|action)[\"']?[ \t]*:")


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnostic. ``severity`` is the protocol's number."""

    span: Span
    rule: str
    message: str
    severity: int = 1


class Cases:
    """The cases of one document, kept from one reading to the next."""

    def __init__(self) -> None:
        self._held: dict[tuple[str, ...], Case] = {}

    def read(self, path: Path, source: str) -> list[Case]:
        """The cases in order. Raises `DefinitionError` if the text is not a list of cases."""
        lines = source.splitlines()
        first = next((n for n, line in enumerate(lines) if suite._significant(line)), None)
        if first is None or lines[first].lstrip().startswith("[") or not suite._ITEM.match(lines[first]):
            return suite.cases_of(path, source)
        chunks = list(suite._chunks(lines))
        used: dict[tuple[str, ...], Case] = {}
        found = []
        for number, chunk in enumerate(chunks):
            case = self._held.get(chunk.lines)
            if case is None:
                case = suite._read_chunk(path, chunks, number)
            if case.problem is None and not suite._ALIAS.search(chunk.text):
                used[chunk.lines] = case
            found.append(replace(case, line=chunk.line) if case.line != chunk.line else case)
        self._held = used
        return found


def is_suite(source: str) -> bool:
    """Whether the text looks like a suite. Other tools also have files with this name."""
    return not source.strip() or _SUITE.search(source) is not None


def findings(text: Text, path: Path, root: Node, cases: Cases) -> tuple[list[Case], list[Finding]]:
    """The cases and their diagnostics."""
    if not is_suite(text.source):
        return [], []
    try:
        read = cases.read(path, text.source)
    except DefinitionError as error:
        return [], [Finding(_line(text, text.place(*error.place) if error.place else 0), error.rule, error.reason)]
    out: list[Finding] = []
    for case in read:
        node = node_of(text, root, case)
        for problem in case.problems():
            out.append(_told(text, case, node, problem))
        named = node.get("rule") if node is not None else None
        if named is not None and named.kind == "scalar":
            out += _rule(named)
    out.sort(key=lambda finding: finding.span)
    return read, out[:MOST]


def node_of(text: Text, root: Node, case: Case) -> Node | None:
    """The case's node in the syntax tree."""
    line = case.line - 1
    return next((node for node in root.children if text.line_of(node.whole[0]) == line), None)


def place(text: Text, case: Case, node: Node | None, path: str) -> Span:
    """The span of a case's path (``expect.loom.turns[0].id``), or of the nearest existing node."""
    if node is None:
        return _line(text, text.place(case.line, 1))
    keys: list[str | int] = [part[1] or int(part[2]) for part in _PART.finditer(path)]
    found = node.nearest(tuple(keys))
    if found.key_span is not None:
        return found.key_span
    start, end = found.span if found is not node else node.whole
    return start, min(
        end, start + max(1, len(text.line(text.line_of(start))) - (start - text.starts[text.line_of(start)]))
    )


def _told(text: Text, case: Case, node: Node | None, problem: Problem) -> Finding:
    error = problem.error
    if error is not None and error.place is not None:
        return Finding(_line(text, text.place(*error.place)), problem.rule, clean_line(error.reason, 600))
    return Finding(place(text, case, node, problem.path), problem.rule, clean_line(str(problem), 600))


def _rule(node: Node) -> list[Finding]:
    name = node.value.strip()
    known = schema_lookup.rules()
    if not name or name.upper() in known or re.fullmatch(r"D-\d+", name):
        return []
    near = nearest(name.upper(), tuple(known))
    family = name.upper().rpartition("-")[0] in {rule.rpartition("-")[0] for rule in known}
    message = f"the specification has no rule {clean_line(name, 60)!r}{near}"
    return [Finding(node.span, "unknown-rule", message, 2 if family or near else 3)]


def _line(text: Text, offset: int) -> Span:
    """The span from an offset to its line's end; at a line's end, the last character."""
    number = text.line_of(offset)
    end = text.starts[number] + len(text.line(number))
    return (offset, end) if offset < end else (max(text.starts[number], end - 1), end)


def diagnostic(text: Text, finding: Finding, encoded: Any) -> dict[str, Any]:
    """A finding as the protocol's diagnostic; ``encoded`` turns a span into a range."""
    link = schema_lookup.link(finding.rule) if finding.rule in schema_lookup.rules() else explained.link(finding.rule)
    return {
        "range": encoded(finding.span),
        "severity": finding.severity,
        "code": finding.rule,
        "codeDescription": {"href": link},
        "source": "cantrip",
        "message": finding.message,
    }
