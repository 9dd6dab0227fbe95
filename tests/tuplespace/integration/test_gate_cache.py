"""Results of gates that declare their inputs are reused while nothing changed, and only then."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from cantrip_acp.files import digests as input_files
from cantrip_acp.gates.contract import Gate, GateContext, GateInputs
from cantrip_acp.tuplespace.reuse.gate_results import GateCache, SwitchableCache
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import GateRecord
from tests.support import processes
from tests.support.processes import CANTRIP

pytestmark = pytest.mark.anyio


class Counted:
    """A gate that reads a folder, and how often it ran."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.folder, self.state, self.calls = folder, state, 0
        self.meanwhile: Callable[[], object] = lambda: None
        self.result: Any = None
        self.variables: tuple[str, ...] = ()

        def count(what: str = "all") -> Any:
            "Count the files."
            self.calls += 1
            self.meanwhile()
            if self.result is not None:
                if isinstance(self.result, Exception):
                    raise self.result
                return self.result
            return {"ok": True, "files": len(list(folder.rglob("*"))), "number": self.calls}

        def inputs(args: Any, context: GateContext) -> GateInputs:
            return GateInputs((str(folder),), (str(folder / "program"),), self.variables, {"command": "count"})

        self.gate = Gate.of(count, inputs=inputs)

    async def call(self, cache: GateCache | SwitchableCache | None = None, **args: Any) -> GateRecord:
        """One call by an entity of its own, with a new cache unless one is given."""
        script = ScriptedCrystal(
            [
                {"tool_calls": [{"gate": "count", "args": args}]},
                {"tool_calls": [{"gate": "done", "args": {"answer": "x"}}]},
            ]
        )
        circle = Circle(gates=[self.gate, "done"], wards=[{"max_turns": 3}], workspace=self.folder)
        cantrip = Cantrip(script, circle=circle, interceptors=[cache or GateCache(self.state)])
        async with cantrip.invoke() as entity:
            await entity.cast("Count.")
            [record] = [
                each for turn in entity.loom.turns() for each in turn.observation.results if each.gate == "count"
            ]
        return record


@pytest.fixture
def counted(tmp_path: Path) -> Counted:
    folder = tmp_path / "project"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.py").write_text("a = 1\n")
    (folder / "program").write_text("1")
    (folder / ".gitignore").write_text("*.log\nbuild/\n")
    _age(folder)
    return Counted(folder, tmp_path / "state")


def _age(folder: Path) -> None:
    """Let the files be older than a moment, as files usually are."""
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - 100, time.time() - 100), follow_symlinks=False)


def is_reused(record: GateRecord) -> bool:
    return isinstance(record.annotations, dict | type(record.annotations)) and "reused_receipt" in (
        record.annotations or {}
    )  # type: ignore[operator]


async def test_the_same_call_is_a_hit_and_says_so(counted: Counted) -> None:
    first, second = await counted.call(), await counted.call()
    assert counted.calls == 1
    assert second.result == first.result
    assert not is_reused(first)
    assert is_reused(second)
    assert "reused, nothing changed since" in str(second.title)
    third = await counted.call(what="other")
    assert (counted.calls, is_reused(third)) == (2, False)


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda folder: (folder / "src/a.py").write_text("a = 2\n"),
    "a new file": lambda folder: (folder / "src/b.py").touch(),
    "a file less": lambda folder: (folder / "src/a.py").unlink(),
    "another name": lambda folder: (folder / "src/a.py").rename(folder / "src/c.py"),
    "may be run": lambda folder: (folder / "src/a.py").chmod(0o755),
    "a link": lambda folder: (folder / "src/l").symlink_to("a.py"),
    "ignore rules": lambda folder: (folder / ".gitignore").write_text("*.txt\n"),
    "the program": lambda folder: (folder / "program").write_text("22"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_of_what_it_reads_is_a_miss(counted: Counted, change: str) -> None:
    cache = GateCache(counted.state)
    await counted.call(cache)
    CHANGES[change](counted.folder)
    # Also for who has seen the files before.
    await counted.call(cache)
    await counted.call()
    assert counted.calls == 2


async def test_the_same_size_and_time_hide_no_change(counted: Counted) -> None:
    cache, path = GateCache(counted.state), counted.folder / "src" / "a.py"
    await counted.call(cache)
    before = path.stat()
    path.write_text("a = 7\n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    await counted.call(cache)
    assert counted.calls == 2


async def test_ignored_files_do_not_count_but_those_that_git_tracks_do(counted: Counted) -> None:
    folder = counted.folder
    (folder / "build").mkdir()
    (folder / "build" / "kept.txt").write_text("1")
    (folder / "new.log").write_text("1")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "-A"], ["add", "-f", "build/kept.txt"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], cwd=folder, check=True, capture_output=True)
    await counted.call()
    (folder / "new.log").write_text("2")
    (folder / "build" / "other.txt").write_text("2")
    await counted.call()
    assert counted.calls == 1
    (folder / "build" / "kept.txt").write_text("2")
    await counted.call()
    assert counted.calls == 2


async def test_a_variable_that_it_reads_counts_and_is_not_stored(
    counted: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted.variables = ("READ_BY_THE_GATE",)
    monkeypatch.setenv("READ_BY_THE_GATE", "a value of the environment")
    await counted.call()
    monkeypatch.setenv("READ_BY_NOBODY", "1")
    await counted.call()
    assert counted.calls == 1
    assert not any(b"a value of the env" in path.read_bytes() for path in counted.state.rglob("*.json"))
    monkeypatch.setenv("READ_BY_THE_GATE", "another")
    await counted.call()
    assert counted.calls == 2


@pytest.mark.parametrize("result", [{"ok": False}, {"ok": True, "timed_out": True}, GateError("no network")])
async def test_what_failed_runs_again(counted: Counted, result: Any) -> None:
    counted.result = result
    await counted.call()
    await counted.call()
    assert counted.calls == 2


async def test_a_call_that_changes_what_it_reads_is_not_kept(counted: Counted) -> None:
    counted.meanwhile = lambda: (counted.folder / f"made{counted.calls}").touch()
    await counted.call()
    await counted.call()
    assert counted.calls == 2


def receipt_files(state: Path) -> list[Path]:
    return [path for path in state.rglob("*.json") if path.is_file()]


@pytest.mark.parametrize("kind", ["changed", "sealed anew", "cut", "foreign", "moved"])
async def test_a_receipt_that_is_not_as_it_was_made_is_never_used(counted: Counted, kind: str) -> None:
    await counted.call()
    [path] = receipt_files(counted.state)
    stored = json.loads(path.read_bytes())
    match kind:
        case "changed":
            stored["receipt"]["result"]["reply"]["files"] = 99
        case "sealed anew":
            # With a genuine id, but by somebody without the key.
            from cantrip_acp.tuplespace.canonical_json import content_id

            receipt = stored["receipt"]
            receipt["result"]["reply"]["files"] = 99
            receipt["id"] = content_id({key: value for key, value in receipt.items() if key != "id"})
        case "foreign":
            (counted.state / "gate-receipts" / "key").unlink()
    path.write_text(json.dumps(stored) if kind != "cut" else json.dumps(stored)[:-30])
    if kind == "moved":
        content = path.read_bytes()
        await counted.call(what="other")
        [other] = [each for each in receipt_files(counted.state) if each != path]
        other.write_bytes(content)
        counted.calls = 1
        record = await counted.call(what="other")
    else:
        record = await counted.call()
    assert counted.calls == 2
    assert not is_reused(record)


async def test_only_the_user_may_read_the_key(counted: Counted) -> None:
    await counted.call()
    key = counted.state / "gate-receipts" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    key.chmod(0o644)
    await counted.call()
    assert counted.calls == 2, "a key that others may read is no key"


async def test_a_folder_with_too_many_files_is_not_looked_at(counted: Counted, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_files, "MOST_FILES", 2)
    await counted.call()
    await counted.call()
    assert (counted.calls, receipt_files(counted.state)) == (2, [])


RECIPE = """\
name: tests
crystal:
  provider: scripted
  responses:
    - {when: twice, tool_calls: [{gate: run_tests, args: {}}]}
    - {when: twice, tool_calls: [{gate: run_tests, args: {}}]}
    - {tool_calls: [{gate: done, args: {answer: ok}}], repeat: true}
circle: {medium: conversation, gates: [run_tests, done], wards: [{max_turns: 5}]}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_it.py").write_text("import unittest\n\nclass T(unittest.TestCase):\n    def test(self): pass\n")
    (folder / "tests.cantrip.yaml").write_text(RECIPE)
    _age(folder)
    return folder


def cast(project: Path, *words: str, **variables: str) -> str:
    environment = {**os.environ, "CANTRIP_STATE_DIR": str(project.parent / "state"), **variables}
    done = processes.run(
        [*CANTRIP, "cast", "tests.cantrip.yaml", "twice", "--json", *words],
        cwd=project, capture_output=True, text=True, timeout=90, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def titles(output: str) -> list[str]:
    events = [json.loads(line) for line in output.splitlines()]
    return [each["title"] for each in events if each.get("event") == "gate_result" and each["gate"] == "run_tests"]


def test_tests_of_an_unchanged_tree_are_not_run_again(project: Path) -> None:
    output = cast(project)
    first, second = titles(output)
    assert "1 passed" in first
    assert "reused" not in first
    assert "reused, nothing changed since" in second
    # The loom says it too.
    records = [
        each
        for line in output.splitlines()
        if (event := json.loads(line)).get("event") == "turn"
        for each in event["observation"]["results"]
    ]
    assert records[1]["annotations"]["reused_receipt"].startswith("sha256:")
    assert records[0]["result"] == records[1]["result"]
    # Another process, and then another tree.
    assert all("reused" in title for title in titles(cast(project)))
    assert not any("reused" in title for title in titles(cast(project, "--no-cache")))
    assert not any("reused" in title for title in titles(cast(project, CANTRIP_NO_CACHE="1")))
    (project / "test_it.py").write_text((project / "test_it.py").read_text() + "\n# changed\n")
    assert "reused" not in titles(cast(project))[0]


async def test_reuse_is_switched_off_and_on_for_one_session(counted: Counted) -> None:
    first = await counted.call()
    session = SwitchableCache(GateCache(counted.state), enabled=False)
    assert (await counted.call(session)).result["number"] == 2
    session.enabled = True
    assert (await counted.call(session)).result == first.result
    assert counted.calls == 2
