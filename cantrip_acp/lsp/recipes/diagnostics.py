"""Diagnostics of a recipe: the loader's errors and the lint rules, each with its span and its rule."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from cantrip_acp.lsp.recipes import file_references, lint
from cantrip_acp.lsp.recipes.lint import Severity
from cantrip_acp.lsp.recipes.syntax.tree import Span
from cantrip_acp.lsp.server.positions import TextDocument
from cantrip_acp.recipes.parse import document, validation
from cantrip_acp.recipes.parse.document import Document
from cantrip_acp.recipes.parse.problem_positions import KeyPath, Mend, Problem
from cantrip_acp.types.errors import RecipeError

_TOKEN = re.compile(r"""["'](?:[^"'\r\n\\]|\\.)*["']|[^\s,:=\[\]{}#]+|[\[{]""")
_VALUE = re.compile(r"""["'](?:[^"'\r\n\\]|\\.)*["']|[^\s,\[\]{}#]+|[\[{]""")
MOST = 250
"""The most diagnostics for one file."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One diagnostic. ``key`` is the key path as people write it; empty if there is none."""

    span: Span
    rule: str
    message: str
    severity: Severity = "error"
    key: str = ""
    path: KeyPath = ()
    related: tuple[tuple[Span, str], ...] = ()
    mend: Mend | None = None
    removable: tuple[KeyPath, ...] = ()


@dataclass(frozen=True, slots=True)
class Analysis:
    findings: tuple[Finding, ...]
    data: Any = None


def read(text: TextDocument, path: Path, workspace: Path) -> Analysis:
    """Read a text and find all diagnostics. For a text that is too large, the only one says so."""
    if text.too_large is not None and len(text.source) <= document.MAX_BYTES:
        return Analysis((Finding((0, len(text.line(0))), "schema", text.too_large, "information"),))
    try:
        held = document.parse(text.readable.encode(), path, file=path.name)
    except RecipeError as error:
        return Analysis(tuple(_of(text, problem) for problem in error.problems))
    said = [_of(text, problem) for problem in validation.problems(held)]
    advised = (
        lint.all_of(held.data),
        lint.advice(held.data),
        file_references.problems(held.data, path.parent, workspace),
    )
    for each in chain.from_iterable(advised):
        said.append(_advised(text, held, each))
    said.sort(key=lambda finding: (finding.span[0], finding.severity != "error"))
    return Analysis(tuple(said[:MOST]), held.data)


def _of(text: TextDocument, problem: Problem) -> Finding:
    span = _span(text, problem.line, problem.column)
    return Finding(span, problem.rule, problem.message, key=problem.key, mend=problem.mend)


def _advised(text: TextDocument, document: Document, each: lint.LintMessage) -> Finding:
    line, column = document.places.key(each.path) if each.at_key else document.places.value(each.path)
    spans = tuple((_span(text, *document.places.value(path)), why) for path, why in each.related)
    pattern = _TOKEN if each.at_key else _VALUE
    return Finding(
        _span(text, line, column, pattern),
        each.rule,
        each.message,
        each.severity,
        path=each.path,
        related=spans,
        mend=each.mend,
        removable=each.removable,
    )


def _span(text: TextDocument, line: int, column: int, pattern: re.Pattern[str] = _TOKEN) -> Span:
    """The span of the word at a place; at a line's end, the character before it."""
    start = text.offset_at(line, column)
    begin = text.starts[text.line_of(start)]
    end = begin + len(text.line(text.line_of(start)))
    found = pattern.match(text.source, start, end)
    if found is not None:
        return found.span()
    return (start, start + 1) if start < end else (max(begin, start - 1), start)
