"""ATIF trajectories: what a thread becomes, that it comes back, and a document that Harbor's own models wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.core.context import ContextBlock
from cantrip_acp.training.importing.import_file import detect_format, import_file
from cantrip_acp.training.importing.json_lines import ImportProblem
from cantrip_acp.types.messages import Attachment
from tests.support.export_looms import forked, lived
from tests.support.fixtures.core import done, echo
from tests.training.unit.test_export_children import delegated
from tests.training.unit.test_export_formats import exported, rows
from tests.training.unit.test_export_tokens import sampling

pytestmark = pytest.mark.anyio

HARBOR = Path(__file__).parents[2] / "support" / "fixtures" / "trajectories" / "harbor.json"


def check(trajectory: dict[str, Any]) -> None:
    """The rules of the format that its models check."""
    assert [step["step_id"] for step in trajectory["steps"]] == list(range(1, len(trajectory["steps"]) + 1))
    own = [each["trajectory_id"] for each in trajectory.get("subagent_trajectories", ())]
    assert len(own) == len(set(own))
    for step in trajectory["steps"]:
        assert step["source"] in ("system", "user", "agent")
        if step["source"] != "agent":
            assert not {"tool_calls", "metrics", "model_name", "reasoning_content"} & step.keys()
        if step.get("llm_call_count") == 0:
            assert not {"metrics", "reasoning_content"} & step.keys()
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        for result in step.get("observation", {}).get("results", ()):
            assert result.get("source_call_id") in calls | {None}
            assert {ref["trajectory_id"] for ref in result.get("subagent_trajectory_ref", ())} <= set(own)
    for each in trajectory.get("subagent_trajectories", ()):
        check(each)


def told(trajectory: dict[str, Any]) -> Any:
    """What must be the same after a round trip."""
    steps = []
    for step in trajectory["steps"]:
        kept = {k: v for k, v in step.items() if k not in ("extra", "llm_call_count", "timestamp", "is_copied_context")}
        for result in kept.get("observation", {}).get("results", ()):
            result.pop("subagent_trajectory_ref", None)
        steps.append(kept)
    below = [told(each) for each in trajectory.get("subagent_trajectories", ())]
    return [steps, trajectory["final_metrics"], trajectory["extra"]["cantrip"]["reward"], below]


def again(loom: Loom, folder: Path) -> Loom:
    """The loom of the exported trajectories."""
    path = folder / "trajectories.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(loom, "atif")))
    assert detect_format(str(path)) == "atif"
    into = Loom.memory()
    first = import_file(str(path), into)
    second = import_file(str(path), into)
    assert (second.turns, second.casts, second.known) == (0, 0, first.turns)
    return into


async def test_a_thread_comes_back(tmp_path: Path) -> None:
    loom = Loom.memory()
    cantrip = sampling(echo("a", content="First."), done("b"), loom=loom, call={"system_prompt": "You echo."})
    await cantrip.cast("the task", reference="b")
    loom.annotate_reward(loom.leaves()[0], 0.75)
    (row,) = rows(loom, "atif")
    check(row)
    assert [step["source"] for step in row["steps"]] == ["system", "user", "agent", "agent"]
    assert row["steps"][2]["tool_calls"] == [
        {"tool_call_id": "tc_1_1", "function_name": "echo", "arguments": {"text": "a"}}
    ]
    assert row["steps"][2]["observation"]["results"] == [{"source_call_id": "tc_1_1", "content": "a"}]
    assert row["steps"][2]["metrics"]["completion_token_ids"]
    into = again(loom, tmp_path)
    (other,) = rows(into, "atif")
    check(other)
    assert told(other) == told(row)
    ((start, end),) = into.casts()
    assert (start.intent, start.reference, end.result if end else None) == ("the task", "b", "b")
    # The tokens too: rows of both are the same.
    keys = ("prompt_ids", "response_ids", "mask", "logprobs", "reward")
    (one,), (two,) = rows(loom, "tokens"), rows(into, "tokens")
    assert {key: one[key] for key in keys} == {key: two[key] for key in keys}


async def test_folds_and_several_casts_are_steps_once() -> None:
    loom, _ = await lived()
    (row,) = rows(loom, "atif")
    check(row)
    agent = [step for step in row["steps"] if step["source"] == "agent"]
    assert len(agent) == len([t for t in loom.turns() if t.role == "crystal"])
    asked = [step["message"] for step in row["steps"] if step["source"] == "user"]
    assert sum("second intent" in str(text) for text in asked) == 1
    picture = next(part for text in asked if isinstance(text, list) for part in text if part["type"] == "image")
    assert picture["source"]["media_type"] == "image/png"


async def test_sounds_come_back(tmp_path: Path) -> None:
    loom = Loom.memory()
    sounds = [Attachment.of(mime, "UklGRg==") for mime in ("audio/x-wav", "audio/midi")]
    blocks = [ContextBlock(attachment=each) for each in sounds]
    await sampling(done("b"), loom=loom).cast("Listen.", context=blocks)
    (row,) = rows(loom, "atif")
    said = [part for step in row["steps"] if isinstance(step["message"], list) for part in step["message"]]
    assert row["schema_version"] == "ATIF-v1.8"
    assert said == [
        {"type": "audio", "source": {"media_type": "audio/wav", "path": "data:audio/wav;base64,UklGRg=="}},
        {"type": "text", "text": "[audio: audio/midi]"},
        {"type": "text", "text": "Listen."},
    ]
    (other,) = rows(again(loom, tmp_path), "atif")
    assert other["steps"][0]["message"] == [said[0], {"type": "text", "text": "[audio: audio/midi]\nListen."}]


async def test_children_are_embedded_where_they_were_called(tmp_path: Path) -> None:
    loom, _ = await delegated()
    (row,), source = exported(loom, "atif")
    check(row)
    assert source.report.threads == 4
    refs = [
        (step["step_id"], len(result.get("subagent_trajectory_ref", ())))
        for step in row["steps"]
        for result in step.get("observation", {}).get("results", ())
    ]
    assert [count for _, count in refs] == [1, 1, 1, 0]
    (other,) = rows(again(loom, tmp_path), "atif")
    assert told(other) == told(row)


async def test_what_an_earlier_row_has_is_copied_context(tmp_path: Path) -> None:
    loom = await forked()
    found = rows(loom, "atif")
    copied = [[bool(s.get("is_copied_context")) for s in row["steps"] if s["source"] == "agent"] for row in found]
    assert copied == [[False, False], *([[True, False, False]] * 3)]
    for row in found:
        check(row)


def test_a_document_of_harbor(tmp_path: Path) -> None:
    into = Loom.memory()
    report = import_file(str(HARBOR), into)
    assert detect_format(str(HARBOR)) == "atif"
    assert (report.turns, report.casts, dict(report.notes)) == (4, 3, {})
    (row,) = rows(into, "atif", truncated=True)
    check(row)
    original = json.loads(HARBOR.read_text())
    assert [s["message"] for s in row["steps"] if s["source"] == "agent"] == ["I search.", "Oslo.", "Norway."]
    assert row["steps"][2]["tool_calls"] == original["steps"][2]["tool_calls"]
    assert row["steps"][2]["metrics"] == original["steps"][2]["metrics"]
    (child,) = row["subagent_trajectories"]
    assert child["steps"][-1]["message"] == "Oslo"
    picture = [block for block in into.records() if getattr(block, "mime", None) == "image/png"]
    assert len(picture) == 1
    (tokens,) = rows(into, "tokens", threads=(row["trajectory_id"],))
    assert tokens["response_ids"] == [4, 5, 6, 7]
    assert tokens["mask"] == [1, 1, 0, 1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '{"schema_version": "ATIF-v1.7", "steps": 3}',
            "not an ATIF trajectory: Expected `array`, got `int`",
        ),
        ("{\n]", "not JSON"),
        ('{"a": 1}', "this cannot be imported"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ImportProblem, match=why):
        import_file(str(path), Loom.memory())
