"""`cantrip loom import` as people use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cantrip_acp import Loom
from tests.support.command_line import run
from tests.support.export_looms import forked
from tests.training.integration.test_import_acp import STRANGER

pytestmark = pytest.mark.anyio


async def test_traces_transcripts_and_looms_into_one(tmp_path: Path) -> None:
    with Loom.open(tmp_path / "one.loom.jsonl") as loom:
        for record in (await forked()).records():
            loom.append(record)
        spoken = len([t for t in loom.turns() if t.role == "crystal"])
    run("loom", "export", "one.loom.jsonl", "-f", "verifiers", "-o", "traces.jsonl", cwd=tmp_path)
    (tmp_path / "acp.jsonl").write_text("".join(json.dumps(m) + "\n" for m in STRANGER))
    inputs = ("traces.jsonl", "acp.jsonl", "one.loom.jsonl")
    done = run("loom", "import", *inputs, "--into", "sqlite:all.db", cwd=tmp_path)
    assert done.status == 0, done.err
    first, *rest = done.out.splitlines()
    assert first.startswith(f"traces.jsonl (verifiers): {spoken} turns")
    assert any(line.startswith("acp.jsonl (acp): 6 turns, 4 casts") for line in rest)
    assert "  not represented: questions for permission (1)" in rest
    again = run("loom", "import", *inputs, "--into", "sqlite:all.db", "--json", cwd=tmp_path)
    told = json.loads(again.out)
    assert told["into"] == "sqlite:all.db"
    assert [(f["turns"], f["casts"], f["rewards"]) for f in told["files"]] == [(0, 0, 0)] * 3
    shown = run("loom", "tree", "sqlite:all.db", cwd=tmp_path)
    assert shown.status == 0


def test_what_is_wrong_is_told_and_nothing_is_made(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_text('{"id": "x", "nodes": []}\n{broken\n')
    (tmp_path / "odd.txt").write_text("hello\n")
    (tmp_path / "same.loom.jsonl").write_text('{"type":"loom","id":"l"}\n')
    for arguments, words in (
        (("odd.txt", "--into", "new.loom.jsonl"), "odd.txt:1: not JSON"),
        (("missing.jsonl", "--into", "new.loom.jsonl"), "missing.jsonl: no such file"),
        (("same.loom.jsonl", "--into", "same.loom.jsonl"), "cannot be imported into itself"),
    ):
        done = run("loom", "import", *arguments, cwd=tmp_path)
        assert done.status == 2
        assert words in done.err
        assert not (tmp_path / "new.loom.jsonl").exists()
    done = run("loom", "import", "bad.jsonl", "--into", "new.loom.jsonl", cwd=tmp_path)
    assert done.status == 2
    assert "bad.jsonl:2: not JSON" in done.err
