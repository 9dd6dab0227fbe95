"""`cantrip loom export` as people use it: files, filters, summaries, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cantrip_acp import Loom
from tests.support.command_line import Done, run
from tests.support.export_looms import forked
from tests.support.fixtures.core import done, echo, make

pytestmark = pytest.mark.anyio


HERE = Path(__file__).parent


def cantrip(*arguments: str, **env: str) -> Done:
    return run(*arguments, cwd=HERE, **env)


@pytest.fixture
async def kept(tmp_path: Path) -> Path:
    """A loom with a group of forks, in a file."""
    path = tmp_path / "group.loom.jsonl"
    with Loom.open(path) as loom:
        for record in (await forked()).records():
            loom.append(record)
    return path


def test_help_lists_the_formats() -> None:
    done = cantrip("loom", "export", "--help")
    assert done.status == 0
    for word in ("trl-sft", "trl-preference", "art", "verifiers", "openai", "otlp", "TRL supervised"):
        assert word in done.out


async def test_rows_go_to_a_file_or_to_the_output_and_the_summary_beside(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text("old")
    done = cantrip("loom", "export", str(kept), "--format", "trl-preference", "-o", str(out))
    assert (done.status, done.out) == (0, "")
    assert "3 threads in 2 rows" in done.err
    assert "left out: 1, no reward" in done.err
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [set(r) for r in rows] == [{"prompt", "chosen", "rejected", "tools", "cantrip"}] * 2
    assert not list(tmp_path.glob(".rows*"))
    piped = cantrip("loom", "export", str(kept), "-f", "openai", "--min-reward", "0.75", "--json")
    assert len(piped.out.splitlines()) == 1
    told = json.loads(piped.err)
    assert (told["threads"], told["rows"], told["output"]) == (1, 1, None)
    assert told["left_out"] == {"no reward": 1, "reward too low": 2}


async def test_nothing_to_write_is_a_status_of_its_own(kept: Path) -> None:
    done = cantrip("loom", "export", str(kept), "--format", "trl-sft", "--intent", "no such words")
    assert (done.status, done.out) == (1, "")
    assert "left out: 4, another intent" in done.err


async def test_wrong_words_are_told_and_the_old_file_stays(kept: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    out.write_text("old")
    for args, words in (
        (("--format", "trl"), "unknown export format 'trl'"),
        (("--format", "art", "--outcome", "finished"), "--outcome finished is unknown; use one of terminated"),
        (("--format", "art", "--thread", "t_nowhere"), "no turn's id begins with 't_nowhere'"),
        (("--format", "art", "-o", str(tmp_path / "no" / "folder.jsonl")), "cannot write"),
    ):
        done = cantrip("loom", "export", str(kept), "-o", str(out), *args)
        assert done.status == 2
        assert words in done.err
    assert out.read_text() == "old"


async def test_secrets_that_are_known_here_are_masked(kept: Path) -> None:
    done = cantrip("loom", "export", str(kept), "--format", "openai", EXPORT_TEST_API_KEY="answer 0")
    assert done.status == 0
    assert "answer 0" not in done.out
    assert "[redacted]" in done.out
    assert "answer 1" in done.out


async def test_one_thread_by_the_beginning_of_its_id(kept: Path) -> None:
    with Loom.open(kept, readonly=True) as loom:
        leaf = loom.leaves()[1]
    done = cantrip("loom", "export", str(kept), "--format", "verifiers", "--thread", leaf[:-2])
    assert [json.loads(line)["traces"][0]["id"] for line in done.out.splitlines()] == [leaf]


async def test_what_looks_like_a_secret_is_masked_unless_raw(tmp_path: Path) -> None:
    key = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    path = tmp_path / "keys.loom.jsonl"
    with Loom.open(path) as loom:
        await make(echo(f"use {key} there"), done(key), loom=loom).cast(f"Log in with {key}.")
    for name in ("trl-sft", "art", "verifiers", "openai"):
        out = cantrip("loom", "export", str(path), "--format", name)
        assert out.status == 0
        assert key not in out.out
        assert "[redacted-github-token-1]" in out.out
        assert "[redacted-github-token-2]" not in out.out
        assert "note: a text that has the shape of a secret is masked (--raw keeps it)" in out.err
        raw = cantrip("loom", "export", str(path), "--format", name, "--raw")
        assert key in raw.out
        assert "shape" not in raw.err
    page = tmp_path / "page.html"
    assert cantrip("loom", "view", str(path), "--html", str(page)).status == 0
    assert key not in page.read_text()
    assert "[redacted-github-token-1]" in page.read_text()
    assert cantrip("loom", "view", str(path), "--html", str(page), "--raw").status == 0
    assert key in page.read_text()
