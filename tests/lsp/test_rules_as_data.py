"""Each diagnostic carries its rule from the place that makes it; no rule is read out of a text."""

from __future__ import annotations

from pathlib import Path

import pytest

from cantrip_acp.errors import RecipeError
from cantrip_acp.lsp import findings, rules
from cantrip_acp.lsp.text import Text
from cantrip_acp.recipes import check, document

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
    assert rule in rules.meanings()
    path = tmp_path / "a.cantrip.yaml"
    with pytest.raises(RecipeError) as caught:
        check.recipe(document.parse(text.encode(), path))
    assert rule in {problem.rule for problem in caught.value.problems}
    assert caught.value.places == tuple(map(str, caught.value.problems))
    reading = findings.read(Text(text), path, tmp_path)
    assert rule in {finding.rule for finding in reading.findings}


def test_a_rule_does_not_depend_on_the_words(tmp_path: Path) -> None:
    # The value says words that other rules' messages have; the rule stays what it is.
    text = "call: {tool_choice: 'duplicate key (CIRCLE-1) unknown key'}\n" + GOOD
    found = check.problems(document.parse(text.encode(), tmp_path / "a.cantrip.yaml"))
    assert {problem.rule for problem in found} == {"unknown-name"}
    assert "(CIRCLE-1)" in found[0].message
    assert not hasattr(rules, "of")
