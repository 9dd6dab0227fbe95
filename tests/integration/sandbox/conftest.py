"""Real sandboxes over real folders."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.core.definition.wards import Wards
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
    if shutil.which("bwrap") is None:
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
def make(workspace: Path) -> Make:
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
