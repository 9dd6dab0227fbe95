"""Each diagnostic carries its rule from the place that makes it; no rule is read out of a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cantrip_acp.loom.records.tree import Problem
from cantrip_acp.lsp.looms import document as loom_document
from cantrip_acp.lsp.looms.document import LoomDocument
from cantrip_acp.lsp.recipes import diagnostics, lint
from cantrip_acp.lsp.recipes.fixes import quick_fixes, value_fixes
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.lsp.server.positions import TextDocument
from cantrip_acp.recipes.parse import document, validation
from cantrip_acp.types.errors import RecipeError
from tests.support import lsp_looms as looms

GOOD = "circle:\n  gates: [done]\n  wards: [{max_turns: 3}]\n"

BROKEN = {
    "CANTRIP-1": ["", "name: x\n", "call: null\n" + GOOD, "crystal: null\n" + GOOD],
    "CIRCLE-1": ["circle:\n  gates: [echo]\n  wards: [{max_turns: 3}]\n"],
    "LOOP-2": [
        "circle:\n  gates: [done]\n  wards: [{max_depth: 0}]\n",
        "call: {require_done_tool: true}\ncircle:\n  gates: [echo]\n  wards: [{max_turns: 3}]\n",
    ],
    "syntax": ["a: [\n", "a:\n\tb: 1\n", "a: *b\n", "a: !x 1\n", "a: 1\n---\nb: 1\n", "a: .inf\n"],
    "duplicate-key": [GOOD + "name: a\nname: b\n"],
    "unknown-key": [
        "nam: x\n" + GOOD,
        "circle:\n  gates: [done]\n  wards: [{max_turns: 3}, {max_turn: 1}]\n",
        "circle:\n  gates: [done, {name: read_file, rooot: x}]\n  wards: [{max_turns: 3}]\n",
    ],
    "unknown-name": [
        "circle:\n  gates: [done, ecko]\n  wards: [{max_turns: 3}]\n",
        "circle:\n  medium: bush\n  gates: [done]\n  wards: [{max_turns: 3}]\n",
        "crystal: antropic:x\n" + GOOD,
    ],
    "exclusive-keys": ["call: {system_prompt: a, system_prompt_file: b}\n" + GOOD],
    "duplicate-gate": ["circle:\n  gates: [done, done]\n  wards: [{max_turns: 3}]\n"],
    "schema": ["call: {temperature: hot}\n" + GOOD, "circle:\n  gates: [done]\n  wards: [{max_turns: 0}]\n"],
}


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in BROKEN.items() for text in texts])
def test_the_rule_is_data(rule: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert rule in lint.meanings()
    path = tmp_path / "a.cantrip.yaml"
    with pytest.raises(RecipeError) as caught:
        validation.recipe(document.parse(text.encode(), path))
    assert rule in {problem.rule for problem in caught.value.problems}
    assert caught.value.places == tuple(map(str, caught.value.problems))
    reading = diagnostics.read(TextDocument(text), path, tmp_path)
    assert rule in {finding.rule for finding in reading.findings}


def test_a_rule_does_not_depend_on_the_words(tmp_path: Path) -> None:
    # The value says words that other rules' messages have; the rule stays what it is.
    text = "call: {tool_choice: 'duplicate key (CIRCLE-1) unknown key'}\n" + GOOD
    found = validation.problems(document.parse(text.encode(), tmp_path / "a.cantrip.yaml"))
    assert {problem.rule for problem in found} == {"unknown-name"}
    assert "(CIRCLE-1)" in found[0].message
    assert not hasattr(lint, "of")


CIRCLE = "circle:\n  gates: [{gates}]\n  wards: [{{max_turns: 3}}{wards}]\n"


def _circle(gates: str = "done", wards: str = "", more: str = "") -> str:
    return CIRCLE.format(gates=gates, wards=f", {wards}" if wards else "") + more


ADVISED = {
    "missing-file": [_circle("{name: count, python: nowhere.py}, done"), _circle("{name: read_file, root: no}, done")],
    "broken-file": [_circle("{name: count, python: broken.py}, done")],
    "wards-cancel": [_circle("done, echo", "{remove_gate: echo}"), _circle("done", "{max_turns: 4}")],
    "idle-ward": [_circle("done", "{bash_network: true}")],
    "idle-gate": [_circle("done, compile_and_load", more="  medium: code\n")],
    "lethal-trifecta": [_circle("done, read_file, fetch")],
    "unknown-model": ["crystal: anthropic:claude-sonet-5-5\n" + GOOD],
    "retired-model": ["crystal: anthropic:claude-3-opus-20240229\n" + GOOD],
    "unknown-crystal": ["folding: {summarizer: small}\n" + GOOD],
    "legacy-key": ["call: {require_done: true}\n" + GOOD],
}
"""What is allowed in a recipe and still likely to be a mistake."""

LOOMS = {
    "damaged-line": b'{"type": "turn", "id"\n',
    "changed-line": None,
    "torn-line": b'{"type": "tu',
    "empty-line": b"\n",
    "lost-parent": b"PARENT",
    "second-turn": b"TURN",
    "second-header": b"HEADER",
}
EXPLAINED = {"CANTRIP-3", "CIRCLE-2", "LOOP-6", "LOOM-11", "COMP-1", "COMP-6", "WARD-1"}
"""Rules that texts and hovers explain, which no finding carries: other rules are broken where they are."""


def _recipe_rules(text: str, folder: Path) -> set[str]:
    (folder / "broken.py").write_text("def f(:\n")
    return {
        finding.rule for finding in diagnostics.read(TextDocument(text), folder / "a.cantrip.yaml", folder).findings
    }


def _loom_rules(rule: str, folder: Path) -> set[str]:
    """The findings of a real loom to which one damage was done."""
    path = folder / f"{rule}.loom.jsonl"
    looms.family(path)
    lines = path.read_bytes().splitlines(keepends=True)
    turns = [line for line in lines if json.loads(line).get("type") == "turn"]
    done = LOOMS[rule]
    if done is None:
        changed = path.read_bytes().replace(b"Seven.", b"Eight.")
        assert changed != path.read_bytes()
        path.write_bytes(changed)
    else:
        own = {b"HEADER": lines[0], b"TURN": turns[-1], b"PARENT": _orphan(turns[-1])}
        path.write_bytes(path.read_bytes() + own.get(done, done))
    book = LoomDocument(path)
    book.load()
    return {finding.code for finding in loom_document.findings(book)}


def _orphan(line: bytes) -> bytes:
    turn = json.loads(line)
    return looms.line({key: value for key, value in turn.items() if key != "sum"} | {"id": "x", "parent_id": "nowhere"})


MADE: dict[str, Callable[[Path], set[str]]] = {
    **{rule: lambda folder, text=texts[0]: _recipe_rules(text, folder) for rule, texts in (BROKEN | ADVISED).items()},
    **{rule: lambda folder, rule=rule: _loom_rules(rule, folder) for rule in LOOMS},
    "no-loom": lambda folder: _no_loom(folder),
}


def _no_loom(folder: Path) -> set[str]:
    path = folder / "a.loom.jsonl"
    path.write_text("something else\n")
    book = LoomDocument(path)
    book.load()
    return {finding.code for finding in loom_document.findings(book)}


@pytest.mark.parametrize("rule", MADE)
def test_every_rule_is_made(rule: str, tmp_path: Path) -> None:
    assert rule in MADE[rule](tmp_path)


def test_no_rule_of_the_page_is_left_out() -> None:
    assert set(lint.meanings()) == set(MADE) | EXPLAINED


@pytest.mark.parametrize(("rule", "text"), [(rule, text) for rule, texts in ADVISED.items() for text in texts])
def test_advice(rule: str, text: str, tmp_path: Path) -> None:
    assert rule in _recipe_rules(text, tmp_path)


def test_other_words_change_no_rule_and_no_fix(tmp_path: Path) -> None:
    """Every text of a finding is replaced; the rules stay, and so do the fixes."""
    for rule, texts in (BROKEN | ADVISED).items():
        for text in texts:
            held = OpenDocument((tmp_path / "a.cantrip.yaml").as_uri(), TextDocument(text), 1)
            (tmp_path / "broken.py").write_text("def f(:\n")
            for finding in diagnostics.read(held.text, held.path, tmp_path).findings:
                other = replace(finding, message="X", related=tuple((span, "X") for span, _ in finding.related))
                for made in (quick_fixes.fixes, value_fixes.fixes):
                    assert list(made(held, other)) == list(made(held, finding)), rule
    for rule in LOOMS:
        of_loom = [loom_document._diagnostic(Problem("X", 1, 0, 1, rule=rule))]
        assert [each.code for each in of_loom] == [rule]
