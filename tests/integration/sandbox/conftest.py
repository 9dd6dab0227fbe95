"""Real sandboxes over real folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.core.definition.wards import Wards
from cantrip_acp.sandbox.launch import availability
from cantrip_acp.sandbox.launch.process_group import TOKEN, processes
from cantrip_acp.sandbox.launch.sandbox import Sandbox

Make = Callable[..., Sandbox]

GIT = {
    "GIT_AUTHOR_NAME": "a",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "a",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture(scope="session", autouse=True)
def _bubblewrap() -> None:
    if sys.platform == "linux" and shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty folder."""
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def repository(workspace: Path) -> Path:
    """A folder under version control with one commit and one change."""
    env = {**os.environ, **GIT}
    (workspace / "notes.txt").write_text("one\ntwo\nthree\n")
    for words in (["init", "-q", "-b", "main"], ["add", "-A"], ["commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], cwd=workspace, env=env, check=True)
    (workspace / "notes.txt").write_text("one\n2\nthree\n")
    return workspace


@pytest.fixture
def back_end(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The program that makes sandboxes: bubblewrap, or seatbelt (sandbox-exec of macOS).

    A test for both has the mark `both_back_ends`. On Linux tests/support/sandbox_exec.py stands in for sandbox-exec.
    """
    name: str = getattr(request, "param", availability.back_end())
    monkeypatch.setattr(availability, "back_end", lambda: name)
    if name == "seatbelt" and sys.platform != "darwin":
        program = tmp_path_factory.mktemp("back-end") / "sandbox-exec"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {STAND_IN} "$@"\n')
        program.chmod(0o755)
        monkeypatch.setattr(availability.find_sandbox_exec, "__defaults__", (str(program),))
    return name


STAND_IN = Path(__file__).parents[2] / "support/sandbox_exec.py"
BACK_ENDS = ["seatbelt"] if sys.platform == "darwin" else ["bubblewrap", "seatbelt"]


def both_back_ends(test: Any) -> Any:
    """Marks a test of what every back end must do."""
    return pytest.mark.both_back_ends(pytest.mark.parametrize("back_end", BACK_ENDS, indirect=True)(test))


@pytest.fixture
def make(workspace: Path, back_end: str) -> Make:
    """A sandbox over the workspace; ``writable=True`` admits all of it. Other words are wards."""

    def made(folder: Path | None = None, *, writable: bool = False, **wards: Any) -> Sandbox:
        folder = folder if folder is not None else workspace
        if writable:
            wards["bash_writable_paths"] = ["workspace"]
        wards.setdefault("bash_timeout_ms", 20_000)
        return Sandbox(Wards.of(wards, base=folder), folder)

    return made


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    """Whatever a command did, no process of a sandbox is left when its test ends."""
    yield
    left = sandboxed()
    assert not left, left


def sandboxed() -> list[str]:
    """Command lines of bubblewrap's processes that this process started, and of whatever they started."""
    if sys.platform == "darwin":
        return [row.words for row in processes().values() if f"{TOKEN}=" in row.words]
    parents: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path(f"/proc/{name}/stat").read_text()
                line = Path(f"/proc/{name}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":
                parents[int(name)] = (int(parent), line)
    mine = {os.getpid()}
    grown = True
    while grown:
        more = {p for p, (parent, line) in parents.items() if parent in mine} - mine
        mine |= more
        grown = bool(more)
    return [parents[p][1] for p in mine if p in parents and " --json-status-fd " in parents[p][1]]
