"""Code actions for diagnostics: the fixes of each one, creating missing files, and all safe fixes at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from lsprotocol import types

from cantrip_acp.lsp.recipes import file_references
from cantrip_acp.lsp.recipes.diagnostics import Analysis, Finding
from cantrip_acp.lsp.recipes.fixes import quick_fixes, value_fixes
from cantrip_acp.lsp.recipes.fixes.quick_fixes import Fix
from cantrip_acp.lsp.recipes.syntax.tree import Span
from cantrip_acp.lsp.server.documents import OpenDocument

FIX_ALL = "source.fixAll.cantrip"


def actions(
    document: OpenDocument,
    analysis: Analysis,
    params: types.CodeActionParams,
    diagnostic: Callable[[OpenDocument, Finding], types.Diagnostic],
    workspace: Path,
    *,
    creates: bool,
) -> list[types.CodeAction]:
    """The actions of a range. ``diagnostic`` converts a finding for the client; ``creates``: the client can create
    files."""
    out: list[types.CodeAction] = []
    if _kind_requested(params, types.CodeActionKind.QuickFix.value):
        start, end = document.text.offset(params.range.start), document.text.offset(params.range.end)
        for finding in analysis.findings:
            if finding.span[0] <= end and finding.span[1] >= start:
                said = diagnostic(document, finding)
                out += _fixing(document, finding, said)
                if creates:
                    out += _creating(document, analysis, finding, said, workspace)
    if _kind_requested(params, FIX_ALL):
        edits = fix_all(document, analysis)
        if edits:
            out.append(types.CodeAction("Fix all that is plain", kind=FIX_ALL, edit=_edit(document, edits)))
    return out


def of(document: OpenDocument, finding: Finding) -> Iterator[Fix]:
    seen: set[str] = set()
    moves = list(quick_fixes.misplaced_key_fixes(document, finding))
    others = (*value_fixes.fixes(document, finding), *quick_fixes.fixes(document, finding))
    if moves:  # a key that is valid elsewhere is not a typing error
        others = tuple(replace(fix, best=False, safe=False) for fix in others)
    for fix in (*moves, *others):
        if fix.title not in seen:
            seen.add(fix.title)
            yield fix


def fix_all(document: OpenDocument, analysis: Analysis) -> list[tuple[Span, str]]:
    """The edits of all safe fixes, without those that overlap another edit."""
    taken: list[tuple[Span, str]] = []
    for finding in analysis.findings:
        fix = next((fix for fix in of(document, finding) if fix.safe), None)
        if fix is not None and not any(_touch(new, old) for new, _ in fix.edits for old, _ in taken):
            taken += fix.edits
    return sorted(taken, key=lambda edit: edit[0])


def _touch(one: Span, other: Span) -> bool:
    """Whether two edits change the same text. An insertion at another edit's start is allowed: it comes first."""
    return one[0] < other[1] and other[0] < one[1]


def _kind_requested(params: types.CodeActionParams, kind: str) -> bool:
    """Whether the client wants actions of a kind: it names the kind, a parent of it, or no kind at all."""
    only = params.context.only
    if not only:
        return True
    names = [str(getattr(each, "value", each)) for each in only]
    return any(not name or kind == name or kind.startswith(f"{name}.") for name in names)


def _fixing(document: OpenDocument, finding: Finding, said: types.Diagnostic) -> Iterator[types.CodeAction]:
    for fix in of(document, finding):
        yield types.CodeAction(
            fix.title,
            kind=types.CodeActionKind.QuickFix,
            diagnostics=[said],
            is_preferred=fix.best,
            edit=_edit(document, list(fix.edits)),
        )


def _creating(
    document: OpenDocument, analysis: Analysis, finding: Finding, said: types.Diagnostic, workspace: Path
) -> Iterator[types.CodeAction]:
    for title, made in creations(document, analysis, finding, workspace):
        edit = types.WorkspaceEdit(document_changes=list(made))
        yield types.CodeAction(
            title, kind=types.CodeActionKind.QuickFix, diagnostics=[said], is_preferred=True, edit=edit
        )


def _edit(document: OpenDocument, edits: list[tuple[Span, str]]) -> types.WorkspaceEdit:
    return types.WorkspaceEdit(
        changes={document.uri: [types.TextEdit(document.text.range(*span), text) for span, text in edits]}
    )


_GATES = '''\
"""Gates of {recipe}: functions that an entity can call. They run on this machine, outside the sandbox."""

from cantrip_acp import gate


@gate
def {gate}(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
'''
_SCORE = '''\
"""What {recipe} is scored by."""


def score({of}):
    """The end pays."""
    return 1.0 if {of}.terminated else 0.0
'''
_PROMPT = "You are a careful assistant. Do what is asked of you with the gates of your circle, and answer with done.\n"
_SCRIPT = """\
responses:
  - tool_calls: [{{gate: done, args: {{answer: {answer}}}}}]
"""


def creations(
    document: OpenDocument, analysis: Analysis, finding: Finding, workspace: Path
) -> Iterator[tuple[str, list[types.CreateFile | types.TextDocumentEdit]]]:
    """A title and the edits that create the file or folder that a finding reports as missing."""
    if finding.mend is None or finding.mend.kind != "create":
        return
    for path, name, kind in file_references.named(analysis.data):
        if path == finding.path:
            file = file_references.path_beside(document.path.parent, name)
            yield (
                f"Create {_relative_path(file, document.path.parent)}",
                _create_file_edits(file, _content(document, analysis, path, kind)),
            )
    for path, name in file_references.roots(analysis.data):
        if path == finding.path:
            folder = file_references.path_beside(workspace, name)
            # The protocol can create files, but not folders.
            yield f"Create the folder {_relative_path(folder, workspace)}", _create_file_edits(folder / ".gitkeep", "")


def _create_file_edits(file: Path, content: str) -> list[types.CreateFile | types.TextDocumentEdit]:
    uri = file.as_uri()
    made: list[types.CreateFile | types.TextDocumentEdit] = [
        types.CreateFile(uri, options=types.CreateFileOptions(ignore_if_exists=True))
    ]
    if content:
        start = types.Position(0, 0)
        edit = types.TextEdit(types.Range(start, start), content)
        made.append(types.TextDocumentEdit(types.OptionalVersionedTextDocumentIdentifier(uri, None), [edit]))
    return made


def _content(document: OpenDocument, analysis: Analysis, path: tuple[str | int, ...], kind: str) -> str:
    recipe = document.path.name.partition(".cantrip.")[0]
    if kind == "prompt":
        return _PROMPT
    if kind == "script":
        return _SCRIPT.format(answer=json.dumps("the answer"))
    if path[:2] == ("circle", "score"):
        score = analysis.data["circle"]["score"]
        return _SCORE.format(recipe=recipe, of="turn" if score.get("at") == "turn" else "thread")
    return _GATES.format(recipe=recipe, gate="count_words")


def _relative_path(file: Path, base: Path) -> str:
    """The path relative to the base; the full path if it is not below the base."""
    shown = str(file.relative_to(base)) if file.is_relative_to(base) else str(file)
    return "".join(c if c.isprintable() else "?" for c in shown)[:120]
