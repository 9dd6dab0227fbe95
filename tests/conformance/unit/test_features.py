"""What a case needs and the product lacks: skipped with the reason; run as soon as the product shows that it has it."""

from __future__ import annotations

import pytest

from cantrip_acp.conformance.case import FEATURES, Feature
from cantrip_acp.conformance.runner import run_case
from cantrip_acp.conformance.suite import read_suite
from cantrip_acp.core import context
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.gates import registry as gates
from cantrip_acp.mediums import registry as mediums

BASE = """
- rule: A
  name: needs something
  setup:
    crystal: {{ {crystal} }}
    circle: {{ {circle}, wards: [{{ max_turns: 2 }}] }}
    {setup}
  action: {{ cast: {{ intent: go }}{then} }}
  expect: {{ result: impossible }}
"""
SAYS = "responses: [{ content: hi }]"

NEEDS = [
    ("the code medium", {"circle": "medium: code, gates: [done]"}),
    ("the code medium", {"circle": "type: code, gates: [done]"}),
    ("the monty medium", {"circle": "medium: monty, gates: [done]"}),
    ("delegation (call_agent)", {"circle": "gates: [done, call_agent]"}),
    ("delegation (call_agent)", {"circle": "gates: [done, { name: call_entity_batch }]"}),
    ("delegation (call_agent)", {"setup": "child_crystal_l2: { responses: [] }"}),
    ("delegation (call_agent)", {"crystal": SAYS + ", children: [[{ content: hi }]]"}),
    ("forks", {"then": ", then: [{ delete_turn: 0 }, { fork: { from_turn: 1 } }]"}),
    ("folding", {"setup": "folding: { trigger_after_turns: 1 }"}),
    ("ephemeral gates", {"circle": "gates: [done, { name: big, result: x, ephemeral: true }]"}),
    ("a provider's normalisation", {"crystal": "provider: mock_openai, raw_response: { choices: [] }"}),
]


def case(write, parts: dict[str, str]):
    filled = {"crystal": SAYS, "circle": "gates: [done]", "setup": "filesystem: {}", "then": "", **parts}
    (found,) = read_suite(write(BASE.format(**filled)))
    return found


@pytest.mark.parametrize(("feature", "parts"), NEEDS, ids=[str(parts) for _, parts in NEEDS])
async def test_skipped_with_the_reason(
    write, feature: str, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    row = next(f for f in FEATURES if f.name == feature)
    absent = tuple(f if f is not row else Feature(f.name, f.needed, lambda: False) for f in FEATURES)
    monkeypatch.setattr("cantrip_acp.conformance.case.FEATURES", absent)
    outcome = await run_case(case(write, parts))
    assert (outcome.status, outcome.reason) == ("skipped", f"needs {feature}, which this version does not have")


@pytest.mark.parametrize(("feature", "parts"), NEEDS, ids=[str(parts) for _, parts in NEEDS])
async def test_never_passed_in_silence_once_it_is_there(
    write, feature: str, parts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the feature declared present the case is run, and a wrong one fails."""
    present = tuple(Feature(f.name, f.needed, lambda: True) for f in FEATURES)
    monkeypatch.setattr("cantrip_acp.conformance.case.FEATURES", present)
    assert (await run_case(case(write, parts))).status == "failed"


def test_presence_is_asked_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {f.name: f for f in FEATURES}
    monkeypatch.setitem(mediums.BUILT_IN, "code", "somewhere:Code")
    monkeypatch.setitem(mediums.BUILT_IN, "monty", "somewhere:Monty")
    monkeypatch.setitem(gates.BUILT_IN, "call_agent", "somewhere:CALL")
    monkeypatch.setattr(context, "EPHEMERAL", "[ephemeral:{}]", raising=False)
    monkeypatch.setattr(Cantrip, "fork", None, raising=False)
    for name in ("the code medium", "the monty medium", "delegation (call_agent)", "ephemeral gates", "forks"):
        assert rows[name].present(), name


async def test_an_ordinary_case_needs_nothing(write) -> None:
    assert not any(feature.needed(case(write, {})) for feature in FEATURES)
