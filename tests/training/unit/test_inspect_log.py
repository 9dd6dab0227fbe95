"""Inspect's logs: what a thread becomes, that it comes back, and an archive that Inspect itself wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from zipfile import ZIP_BZIP2, ZipFile

import pytest

from cantrip_acp import Loom
from cantrip_acp.core import exports
from cantrip_acp.core.exports import ThreadSelection
from cantrip_acp.training.export.rows import write
from cantrip_acp.training.export.selection import Source
from cantrip_acp.training.importing.import_file import detect_format, import_file
from cantrip_acp.training.importing.json_lines import ImportProblem
from tests.support.export_looms import GATES, forked, lived
from tests.support.fixtures.core import done, echo, make

pytestmark = pytest.mark.anyio

INSPECT = Path(__file__).parents[2] / "support" / "fixtures" / "trajectories" / "inspect.eval"


def written(loom: Loom, path: Path, **wanted: Any) -> dict[str, Any]:
    """Export a loom to an archive, and return its entries by name."""
    source = Source(loom, ThreadSelection(**wanted))
    with path.open("wb") as file:
        report = write(exports.find("inspect"), source, file)
    with ZipFile(path) as archive:
        assert archive.testzip() is None
        entries = {name: json.loads(archive.read(name)) for name in archive.namelist()}
    assert report.rows == sum(name.startswith("samples/") for name in entries)
    return entries


def told(entries: dict[str, Any]) -> list[Any]:
    """What must be the same after a round trip."""
    samples = [entry for name, entry in entries.items() if name.startswith("samples/")]
    return [
        [
            [{k: v for k, v in message.items() if k not in ("id", "metadata")} for message in sample["messages"]],
            [message["metadata"]["cantrip"]["usage"] for message in sample["messages"] if "metadata" in message],
            sample["target"],
            sample["output"]["completion"],
            sample["scores"],
            sample["model_usage"],
            sample["metadata"]["cantrip"]["reason"],
        ]
        for sample in samples
    ]


async def test_a_thread_comes_back(tmp_path: Path) -> None:
    loom = Loom.memory()
    cantrip = make(
        echo(
            "a", content="First.", thinking="hm", usage={"prompt_tokens": 9, "cached_tokens": 4, "completion_tokens": 2}
        ),
        done({"b": 1}),
        loom=loom,
        gates=GATES,
        call={"system_prompt": "Echo."},
    )
    await cantrip.cast("the task", reference=["b", 1])
    loom.annotate_reward(loom.leaves()[0], 0.75)
    path = tmp_path / "one.eval"
    entries = written(loom, path)
    (sample,) = [entry for name, entry in entries.items() if name.startswith("samples/")]
    assert [m["role"] for m in sample["messages"]] == ["system", "user", "assistant", "tool", "assistant", "tool"]
    assert [m["role"] for m in sample["input"]] == ["system", "user"]
    assert sample["target"] == '["b",1]'
    assert sample["scores"]["reward"]["value"] == 0.75
    assert sample["output"]["completion"] == '{"b":1}'
    assert entries["header.json"]["results"]["scores"][0]["metrics"]["mean"]["value"] == 0.75
    assert detect_format(str(path)) == "inspect"
    into = Loom.memory()
    first, second = import_file(str(path), into), import_file(str(path), into)
    assert (first.turns, first.casts, first.rewards) == (2, 1, 1)
    assert (second.turns, second.rewards, second.known) == (0, 0, 2)
    ((start, end),) = into.casts()
    assert (start.intent, start.reference) == ("the task", '["b",1]')
    assert end is not None
    assert (end.reason, end.terminated) == ("done", True)
    assert told(written(into, tmp_path / "again.eval")) == told(entries)


async def test_threads_of_a_group_are_epochs_and_two_exports_are_equal(tmp_path: Path) -> None:
    loom = await forked()
    entries = written(loom, tmp_path / "a.eval")
    names = [name for name in entries if name.startswith("samples/")]
    samples = [entries[name] for name in names]
    assert [sample["epoch"] for sample in samples] == [1, 1, 2, 3]
    assert len({sample["id"] for sample in samples}) == 2
    assert names == [f"samples/{s['id']}_epoch_{s['epoch']}.json" for s in samples]
    assert [(each["id"], each["epoch"]) for each in entries["summaries.json"]] == [
        (s["id"], s["epoch"]) for s in samples
    ]
    written(loom, tmp_path / "b.eval")
    assert (tmp_path / "a.eval").read_bytes() == (tmp_path / "b.eval").read_bytes()
    long, _ = await lived()
    (sample,) = [e for n, e in written(long, tmp_path / "c.eval").items() if n.startswith("samples/")]
    assert sum(m["role"] == "assistant" for m in sample["messages"]) == len(
        [t for t in long.turns() if t.role == "crystal"]
    )
    assert [part["type"] for m in sample["messages"] if isinstance(m["content"], list) for part in m["content"]].count(
        "image"
    )


async def test_secrets_are_masked_in_archives_too(tmp_path: Path) -> None:
    loom = Loom.memory()
    key = f"sk-ant-api03-{'a' * 30}"
    await make(echo(key), done("x"), loom=loom).cast("say it")
    assert key not in json.dumps(written(loom, tmp_path / "x.eval"))


def test_an_archive_of_inspect(tmp_path: Path) -> None:
    pytest.importorskip("zstandard", reason="archives of Inspect are compressed with Zstandard")
    assert detect_format(str(INSPECT)) == "inspect"
    into = Loom.memory()
    report = import_file(str(INSPECT), into)
    assert (report.turns, report.casts, report.rewards, dict(report.notes)) == (3, 2, 2, {})
    starts = [start for start, _ in into.casts()]
    assert {(start.intent, start.reference) for start in starts} == {("17 + 23?", "40"), ("2 + 2?", "4")}
    entries = written(into, tmp_path / "again.eval", truncated=True)
    samples = {e["target"]: e for n, e in entries.items() if n.startswith("samples/")}
    assert {target: sample["scores"]["reward"]["value"] for target, sample in samples.items()} == {"40": 1.0, "4": 0.0}
    added = samples["40"]["messages"]
    assert [m["role"] for m in added] == ["system", "user", "assistant", "tool", "assistant"]
    assert added[2]["tool_calls"][0]["function"] == "add"
    assert added[2]["tool_calls"][0]["arguments"] == {"a": 17, "b": 23}
    assert (added[3]["content"], added[4]["content"]) == ("40", "40")
    assert samples["40"]["model_usage"] == {
        "mockllm/model": {"input_tokens": 20, "output_tokens": 6, "total_tokens": 26}
    }
    (tools,) = {
        json.dumps(into.cantrip(start.cantrip_id).shown["tools"]) for start in starts if start.reference == "40"
    }  # type: ignore[union-attr, index]
    assert json.loads(tools)[0]["description"] == "Add two numbers."


def test_a_log_as_json_with_limits_errors_and_other_scores(tmp_path: Path) -> None:
    def sample(number: int, **more: Any) -> dict[str, Any]:
        said = {"role": "assistant", "content": "attachment://h", "id": f"m{number}"}
        return {
            "id": number,
            "epoch": 1,
            "input": "q",
            "target": ["a", "b"],
            "messages": [{"role": "user", "content": "q"}, said],
            "attachments": {"h": "a long answer"},
            **more,
        }

    log = {
        "version": 2,
        "status": "success",
        "eval": {"eval_id": "e", "task": "t", "model": "m"},
        "samples": [
            sample(1, limit={"type": "token", "limit": 5}, scores={"a": {"value": "P"}, "b": {"value": 1}}),
            sample(2, error={"message": "broke", "traceback": ""}, scores={"a": {"value": [1]}}),
        ],
    }
    path = tmp_path / "log.json"
    path.write_text(json.dumps(log, indent=2))
    into = Loom.memory()
    report = import_file(str(path), into)
    assert dict(report.notes) == {
        "further scores of a sample: the first is its reward": 1,
        "a score that is not one number": 1,
    }
    assert report.rewards == 1
    ends = [(end.reason, end.error) for _, end in into.casts() if end is not None]
    assert ends == [("max_tokens", None), ("error", "broke")]
    turns = [t for t in into.turns() if t.role == "crystal"]
    assert [t.utterance.content for t in turns] == ["a long answer"] * 2
    assert [start.reference for start, _ in into.casts()] == [["a", "b"]] * 2


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    path = tmp_path / "bad.eval"
    with ZipFile(path, "w") as archive:
        archive.writestr("other.json", "{}")
    with pytest.raises(ImportProblem, match=r"an archive without header\.json"):
        import_file(str(path), Loom.memory())
    with ZipFile(path, "w") as archive:
        archive.writestr("header.json", "{}")
        archive.writestr("samples/1_epoch_1.json", '{"id": 1}')
    with pytest.raises(ImportProblem, match=r"samples/1_epoch_1\.json\): not a sample of Inspect"):
        import_file(str(path), Loom.memory())
    with ZipFile(path, "w", ZIP_BZIP2) as archive:
        archive.writestr("header.json", "{}")
    with pytest.raises(ImportProblem, match="an unknown compression"):
        import_file(str(path), Loom.memory())
    path.write_bytes(INSPECT.read_bytes()[:-200])
    with pytest.raises(ImportProblem, match="a damaged archive"):
        import_file(str(path), Loom.memory())
