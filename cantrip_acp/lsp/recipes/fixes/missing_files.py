"""Quick fixes for missing files and folders that a recipe names: create them, with content to start from."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from lsprotocol import types

from cantrip_acp.lsp.recipes import file_references

if TYPE_CHECKING:
    from cantrip_acp.lsp.recipes.diagnostics import Finding, Reading
    from cantrip_acp.lsp.server.documents import Held

_GATES = '''\
"""Gates of {recipe}: functions that an entity can call. They run on this machine, outside the sandbox."""

from cantrip_acp import Gate


@Gate.of
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
    held: Held, reading: Reading, finding: Finding, workspace: Path
) -> Iterator[tuple[str, list[types.CreateFile | types.TextDocumentEdit]]]:
    """A title and the edits that create the file or folder that a finding reports as missing."""
    if finding.mend is None or finding.mend.kind != "create":
        return
    for path, name, kind in file_references.named(reading.data):
        if path == finding.path:
            file = file_references.beside(held.path.parent, name)
            yield f"Create {_shown(file, held.path.parent)}", _made(file, _content(held, reading, path, kind))
    for path, name in file_references.roots(reading.data):
        if path == finding.path:
            folder = file_references.beside(workspace, name)
            # The protocol can create files, but not folders.
            yield f"Create the folder {_shown(folder, workspace)}", _made(folder / ".gitkeep", "")


def _made(file: Path, content: str) -> list[types.CreateFile | types.TextDocumentEdit]:
    uri = file.as_uri()
    made: list[types.CreateFile | types.TextDocumentEdit] = [
        types.CreateFile(uri, options=types.CreateFileOptions(ignore_if_exists=True))
    ]
    if content:
        start = types.Position(0, 0)
        edit = types.TextEdit(types.Range(start, start), content)
        made.append(types.TextDocumentEdit(types.OptionalVersionedTextDocumentIdentifier(uri, None), [edit]))
    return made


def _content(held: Held, reading: Reading, path: tuple[str | int, ...], kind: str) -> str:
    recipe = held.path.name.partition(".cantrip.")[0]
    if kind == "prompt":
        return _PROMPT
    if kind == "script":
        return _SCRIPT.format(answer=json.dumps("the answer"))
    if path[:2] == ("circle", "score"):
        score = reading.data["circle"]["score"]
        return _SCORE.format(recipe=recipe, of="turn" if score.get("at") == "turn" else "thread")
    return _GATES.format(recipe=recipe, gate="count_words")


def _shown(file: Path, base: Path) -> str:
    """The path relative to the base; the full path if it is not below the base."""
    shown = str(file.relative_to(base)) if file.is_relative_to(base) else str(file)
    return "".join(c if c.isprintable() else "?" for c in shown)[:120]
