"""Diagnostics of a loom's file: which lines are damaged, and what to do about it."""

from __future__ import annotations

from lsprotocol import types

from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.lsp.looms.document import Book
from cantrip_acp.lsp.recipes import rules
from cantrip_acp.text.sanitize import clean_line

MOST = 250
"""The most diagnostics for one file."""

_WARNING, _INFORMATION = types.DiagnosticSeverity.Warning, types.DiagnosticSeverity.Information

_ADVICE = {
    "torn-line": "the next session that writes this loom sets it aside; nothing before it is lost",
    "empty-line": "nothing is lost; it may stay",
    "damaged-line": "it is passed over; restore the line from a copy, or leave it as it is",
    "changed-line": "`cantrip loom check FILE` tells more",
    "lost-parent": "the turn is shown as a root; restore the line of its parent from a copy",
    "second-turn": "this line is passed over; it may stay",
    "second-header": "two looms were joined in one file; `cantrip loom import` joins them rightly",
}
"""What to do, by the problem's rule."""


def findings(book: Book) -> list[types.Diagnostic]:
    """The damage as the protocol's diagnostics."""
    out = []
    if book.broken is not None:
        out.append(_finding(0, 1, "no-loom", f"{clean_line(book.broken)}", _WARNING))
    for problem in book.problems(MOST) if book.broken is None else ():
        out.append(_told(problem))
    if book.broken is None and book.damage > MOST:
        more = f"{book.damage - MOST:,} more lines are damaged; `cantrip loom check FILE` names them all"
        out.append(_finding(0, 1, "damaged-line", more, _INFORMATION))
    return out


def of_line(book: Book, line: int) -> str:
    """What is wrong with a line, as text; empty if nothing is."""
    found = [_told(problem).message for problem in book.problems(MOST, line)]
    return "\n".join(found)


def _told(problem: Problem) -> types.Diagnostic:
    rule, advice = problem.rule, _ADVICE[problem.rule]
    line = max(0, (problem.line or 1) - 1)
    severity = _INFORMATION if rule in ("empty-line", "torn-line") else _WARNING
    message = f"{clean_line(problem.message)}; {advice}"
    return _finding(line, max(1, min(problem.length or 1, 1 << 30)), rule, message, severity)


def _finding(line: int, length: int, rule: str, message: str, severity: types.DiagnosticSeverity) -> types.Diagnostic:
    return types.Diagnostic(
        types.Range(types.Position(line, 0), types.Position(line, length)),
        message,
        severity=severity,
        code=rule,
        code_description=types.CodeDescription(rules.link(rule)),
        source="cantrip",
    )
