"""The gate that runs tests: real runners on real small projects, in the real sandbox."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.dynamic_gates import DynamicGates
from cantrip_acp.gates.testing.run_tests import RUN_TESTS
from cantrip_acp.types.errors import DefinitionError, GateError
from tests.support.gate_calls import context_of

pytestmark = pytest.mark.sandbox

Run = Callable[..., Awaitable[GateReply]]

CALC = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "tests/test_calc.py": "import calc\n\n\ndef test_add():\n    assert calc.add(1, 2) == 3\n\n\n"
    "def test_zero():\n    assert calc.add(0, 0) == 0\n",
    "conftest.py": "",
}
UNIT = {
    "test_unit.py": "import unittest\n\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(1, 2)\n"
    "    def test_b(self):\n        pass\n    @unittest.skip('x')\n    def test_c(self):\n        pass\n"
}


def lay(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
async def run(workspace: Path) -> AsyncIterator[Run]:
    """``run(**arguments)`` in the workspace; ``wards`` and ``bound`` (dependencies) count from the first call on."""
    sessions: list[Any] = []

    async def call(wards: Any = (), bound: dict[str, Any] | None = None, **args: Any) -> GateReply:
        wards = [{"max_turns": 5}, {"bash_writable_paths": ["workspace"]}, *wards]
        if not sessions:
            circle = Circle("conversation", ["done"], wards, workspace=workspace)
            assert RUN_TESTS.opens is not None
            sessions.append(RUN_TESTS.opens(DynamicGates(circle), circle))
        return await sessions[0].call(args, context_of(workspace, wards, **(bound or {})))

    yield call
    for session in sessions:
        await session.close()


async def test_pytest(run: Run, workspace: Path) -> None:
    lay(workspace, CALC)
    reply = await run()
    result = reply.result
    assert (result["ok"], result["passed"], result["failed"], result["runner"]) == (False, 1, 1, "pytest"), result
    (failure,) = result["failures"]
    assert failure["name"] == "test_add"
    assert "assert -1 == 3" in failure["text"]
    assert reply.title == "Ran the tests, 1 passed, 1 failed (pytest)"
    assert [(p.path, p.line) for p in reply.locations] == [(str(workspace / "tests/test_calc.py"), 5)]
    (workspace / "calc.py").write_text("def add(a, b):\n    return a + b\n")
    result = (await run()).result
    assert (result["ok"], result["passed"], result["failed"], result["failures"]) == (True, 2, 0, [])
    only = (await run(targets=["tests/test_calc.py::test_zero"])).result
    assert (only["ok"], only["passed"]) == (True, 1)
    named = (await run(match="add and not zero")).result
    assert (named["ok"], named["passed"]) == (True, 1)
    none = (await run(match="no_such_test")).result
    assert not none["ok"]
    assert "no test was run" in none["note"]
    assert not list(workspace.rglob("__pycache__"))
    assert not (workspace / ".pytest_cache").exists()


async def test_pytest_that_cannot_collect(run: Run, workspace: Path) -> None:
    lay(workspace, {**CALC, "tests/test_broken.py": "import no_such_module\n"})
    result = (await run()).result
    assert not result["ok"]
    assert result["errors"] == 1
    assert "no_such_module" in result["failures"][0]["text"]


async def test_unittest(run: Run, workspace: Path) -> None:
    lay(workspace, UNIT)
    result = (await run(runner="unittest")).result
    assert result["failed"] == 1, result
    assert (result["passed"], result["skipped"], result["ok"]) == (1, 1, False)
    assert "1 != 2" in result["failures"][0]["text"]


async def test_make_runs_anything(run: Run, workspace: Path) -> None:
    lay(workspace, {"Makefile": "test:\n\t@python3 -m unittest test_unit\n", "test_unit.py": UNIT["test_unit.py"]})
    result = (await run(runner="make")).result
    assert (result["failed"], result["passed"], result["ok"]) == (1, 1, False), result
    assert result["command"] == "make test"


@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
async def test_npm(run: Run, workspace: Path) -> None:
    script = (
        "const t=require('node:test');const a=require('node:assert');t('one',()=>{});t('two',()=>{a.equal(1,2)});\n"
    )
    lay(workspace, {"package.json": '{"name":"x","scripts":{"test":"node --test"}}', "test/x.test.js": script})
    result = (await run()).result
    assert (result["runner"], result["ok"], result["passed"], result["failed"]) == ("npm", False, 1, 1), result
    assert any("two" in failure["name"] for failure in result["failures"])


async def test_a_declared_command(run: Run, workspace: Path) -> None:
    lay(workspace, CALC)
    bound = {"command": "python3 -m pytest -q {targets}"}
    result = (await run(bound=bound, targets=["tests/test_calc.py::test_zero", "it's"])).result
    assert result["command"] == "python3 -m pytest -q tests/test_calc.py::test_zero 'it'\"'\"'s'"
    assert (await run(bound={"command": "true"})).result["note"].startswith("the command succeeded, but")
    for bad in ({"targets": ["x"]}, {"match": "x"}, {"runner": "make"}):
        with pytest.raises(GateError, match="leave"):
            await run(bound={"command": "true"}, **bad)


@pytest.mark.parametrize(
    "args",
    [
        {"targets": ["-p", "evil"]},
        {"targets": ["--rootdir=/"]},
        {"match": "--co"},
        {"targets": ["a\nb"]},
        {"runner": "make", "targets": ["x"]},
        {"runner": "cargo", "targets": ["x"]},
    ],
)
async def test_options_are_no_targets(run: Run, workspace: Path, args: dict[str, Any]) -> None:
    lay(workspace, CALC)
    with pytest.raises(GateError):
        await run(**args)


async def test_targets_are_words_of_a_shell(run: Run, workspace: Path) -> None:
    lay(workspace, CALC)
    result = (await run(targets=["x; touch made", "$(touch made)"], match="`touch made`")).result
    assert not result["ok"]
    assert not (workspace / "made").exists()


async def test_no_tests(run: Run, workspace: Path) -> None:
    (workspace / "README.md").write_text("no tests here")
    with pytest.raises(GateError, match="no tests were found"):
        await run()


async def test_time_is_limited(run: Run, workspace: Path) -> None:
    lay(workspace, {**CALC, "tests/test_slow.py": "import time\n\ndef test_slow():\n    time.sleep(600)\n"})
    before = time.monotonic()
    result = (await run([{"bash_timeout_ms": 4_000}], timeout_s=500)).result
    assert result["timed_out"]
    assert not result["ok"]
    assert "stopped after 4 seconds" in result["note"]
    assert time.monotonic() - before < 60


async def test_a_cancel_leaves_nothing(run: Run, workspace: Path) -> None:
    mark = f"{os.getpid()}{time.monotonic_ns()}"
    slow = f"import time\n\ndef test_slow():\n    open('begun{mark}', 'w')\n    time.sleep(600)\n"
    lay(workspace, {**CALC, "tests/test_slow.py": slow})

    async def begun() -> None:
        while not (workspace / f"begun{mark}").exists():
            await anyio.sleep(0.05)

    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(run)
            await begun()
            group.cancel_scope.cancel()


async def test_output_is_bounded(run: Run, workspace: Path) -> None:
    lay(workspace, {**CALC, "tests/test_loud.py": "def test_loud():\n    print('x' * 50_000_000)\n    assert 0\n"})
    result = (await run()).result
    assert result["failed"] == 2
    assert result["truncated"]
    assert len(str(result)) < 200_000


async def test_tests_are_held_by_the_wards(run: Run, workspace: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    secret = tmp_path / "secret.txt"
    secret.write_text("word")
    hostile = f"""
import pathlib, socket, pytest
def test_write(): pathlib.Path({str(outside / "x")!r}).write_text("x")
def test_read(): pathlib.Path({str(secret)!r}).read_text()
def test_net(): socket.create_connection(("1.1.1.1", 80), timeout=2)
def test_git(): pathlib.Path(".git/hooks/post-commit").write_text("x")
def test_agents(): pathlib.Path(".cantrip").mkdir()
def test_own(): pathlib.Path("made").write_text("x")
"""
    (workspace / ".git/hooks").mkdir(parents=True)
    (workspace / ".git/HEAD").write_text("ref: refs/heads/main\n")
    lay(workspace, {"conftest.py": "", "test_hostile.py": hostile})
    result = (await run()).result
    assert (result["passed"], result["failed"]) == (2, 4), result
    assert not (workspace / ".cantrip").exists()
    assert "cantrip: moved away .cantrip" in result["output"]
    assert not list(outside.iterdir())
    assert (workspace / "made").exists()


async def test_nothing_is_written_where_nothing_may_be(workspace: Path) -> None:
    lay(
        workspace,
        {"conftest.py": "", "test_w.py": "import pathlib\ndef test_w(): pathlib.Path('made').write_text('x')\n"},
    )
    circle = Circle("conversation", ["done"], [{"max_turns": 5}], workspace=workspace)
    assert RUN_TESTS.opens is not None
    session: Any = RUN_TESTS.opens(DynamicGates(circle), circle)
    result = (await session.call({}, context_of(workspace, [{"max_turns": 5}]))).result
    assert result["failed"] == 1, result
    assert not (workspace / "made").exists()


async def test_wards_that_become_stricter_hold_for_the_next_run(run: Run, workspace: Path) -> None:
    made = "import pathlib\ndef test_w(): pathlib.Path('made').write_text('x')\n"
    lay(workspace, {"conftest.py": "", "test_w.py": made})
    assert (await run()).result["ok"]
    (workspace / "made").unlink()
    stricter = context_of(workspace, [{"max_turns": 5}])
    circle = Circle(
        "conversation", ["done"], [{"max_turns": 5}, {"bash_writable_paths": ["workspace"]}], workspace=workspace
    )
    assert RUN_TESTS.opens is not None
    session: Any = RUN_TESTS.opens(DynamicGates(circle), circle)
    assert (await session.call({}, context_of(workspace, circle.wards))).result["ok"]
    (workspace / "made").unlink()
    assert not (await session.call({}, stricter)).result["ok"]
    assert not (workspace / "made").exists()


async def test_links_out_of_the_workspace_are_no_project(run: Run, workspace: Path, tmp_path: Path) -> None:
    (tmp_path / "package.json").write_text('{"scripts": {"test": "touch made"}}')
    (workspace / "package.json").symlink_to(tmp_path / "package.json")
    os.mkfifo(workspace / "Makefile")
    with pytest.raises(GateError, match="no tests were found"):
        await run()


def test_a_recipe_declares_a_command(tmp_path: Path) -> None:
    from cantrip_acp.recipes import recipe

    def loaded(gate: str) -> Any:
        path = tmp_path / "x.cantrip.yaml"
        path.write_text(f"circle: {{medium: bash, gates: [done, {gate}], wards: [{{max_turns: 3}}]}}\n")
        return recipe.load(path).data["circle"]["gates"][1]

    assert loaded("{name: run_tests, command: make check, timeout_s: 60}")["command"] == "make check"
    assert loaded("run_tests") == "run_tests"
    with pytest.raises(DefinitionError, match="commands"):
        loaded("{name: run_tests, commands: make}")
    with pytest.raises(DefinitionError, match="command"):
        loaded("{name: plan, command: make}")
