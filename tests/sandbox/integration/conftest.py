"""Real sandboxes over real folders."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.gates.sandbox_options import sandbox_options
from cantrip_acp.gates.wards import Wards
from cantrip_acp.sandbox import Sandbox
from cantrip_acp.sandbox.launch import availability, self_test
from cantrip_acp.sandbox.launch.macos_processes import TOKEN, GroupTree, processes
from tests.support import sandbox_exec

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
        # It does not become the command but starts it; and it does not pass the self-test, which has a test of its own.
        monkeypatch.setattr(GroupTree, "command_process", lambda tree: sandbox_exec.command_process(tree.pid))
        monkeypatch.setattr(self_test, "_checked", True)
    return name


STAND_IN = Path(sandbox_exec.__file__)
BACK_ENDS = ["seatbelt"] if sys.platform == "darwin" else ["bubblewrap", "seatbelt"]


def both_back_ends(test: Any) -> Any:
    """Marks a test of what every back end must do."""
    return pytest.mark.both_back_ends(pytest.mark.parametrize("back_end", BACK_ENDS, indirect=True)(test))


def both_back_ends_in_cases(name: str, cases: Iterable[Any], *, few: int) -> Callable[[Any], Any]:
    """The same for a test of many cases. On Linux only the first ``few`` run with sandbox-exec too, to save time."""
    rows = [(case, end) for end in BACK_ENDS for at, case in enumerate(cases) if end == BACK_ENDS[0] or at < few]

    def marked(test: Any) -> Any:
        return pytest.mark.both_back_ends(
            pytest.mark.parametrize((name, "back_end"), rows, indirect=["back_end"])(test)
        )

    return marked


@pytest.fixture
def make(workspace: Path, back_end: str) -> Make:
    """A sandbox over the workspace; ``writable=True`` admits all of it. Other words are wards."""

    def made(folder: Path | None = None, *, writable: bool = False, **wards: Any) -> Sandbox:
        folder = folder if folder is not None else workspace
        if writable:
            wards["bash_writable_paths"] = ["workspace"]
        wards.setdefault("bash_timeout_ms", 20_000)
        return Sandbox(sandbox_options(Wards.of(wards, base=folder)), folder)

    return made


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    """Whatever a command did, no process of a sandbox is left when its test ends."""
    yield
    left = sandboxed()
    assert not left, left


def sandboxed() -> list[str]:
    """Command lines of the sandboxes that this process started: of bubblewrap's processes, and of the stand-in."""
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
    signs = (" --json-status-fd ", STAND_IN.name)
    return [parents[p][1] for p in mine if p in parents and any(sign in parents[p][1] for sign in signs)]
