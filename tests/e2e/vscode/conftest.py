"""A workbench for the tests of this folder, with the extension in it; where there can be none they are skipped and say why."""

from __future__ import annotations

import fcntl
import json
import os
import zipfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.vscode import workbench as workbenches
from tests.e2e.vscode.workbench import Window, Workbench
from tests.support import browser as browsers
from tests.support import processes

_FAILED = pytest.StashKey[bool]()

RECIPE = """\
name: greeter
description: Says hello in two turns.
crystal:
  provider: scripted
  responses:
    - {tool_calls: [{gate: echo, args: {text: "thinking of a greeting"}}], delay_ms: 1500}
    - {tool_calls: [{gate: done, args: {answer: "Hello, world."}}], delay_ms: 1500}
    - {tool_calls: [{gate: done, args: {answer: "HELLO, WORLD."}}], repeat: true}
call:
  system_prompt: |
    You are a **friendly** greeter.

    - Be brief.
circle:
  medium: conversation
  gates: [done, echo]
  wards:
    - {max_turns: 5}
# intent: Say hello.
"""


@pytest.fixture(scope="session")
def vsix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The extension's package. All processes of a run have the same: packaging takes 10 s and writes into the checkout."""
    shared = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        shared = shared.parent
    made = shared / "cantrip.vsix"
    with (shared / "cantrip.vsix.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            try:
                workbenches.package(shared / "new.vsix").rename(made)
            except workbenches.NoWorkbench as why:
                pytest.skip(str(why))
    return made


@pytest.fixture(scope="module")
def built(vsix: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The script and the styles of the chat's page, as the package has them."""
    folder = tmp_path_factory.mktemp("page")
    with zipfile.ZipFile(vsix) as package:
        package.extractall(folder, [name for name in package.namelist() if name.startswith("extension/dist/chat/")])
    return folder / "extension" / "dist" / "chat"


# A module's: Playwright runs one loop in a process, so two folders' fixtures must not live at once.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser."""
    try:
        with browsers.running() as browser:
            yield browser
    except browsers.NoBrowser as why:
        pytest.skip(str(why))


@pytest.fixture(scope="session")
def workbench(vsix: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workbench]:
    """One server for all tests that trust their folder."""
    try:
        program = str(processes.programs() / "cantrip")
        made = Workbench(tmp_path_factory.mktemp("workbench"), vsix, {"cantrip.path": program})
    except workbenches.NoWorkbench as why:
        pytest.skip(str(why))
    with made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a recipe, whose state is its own."""
    made = tmp_path / "project"
    (made / ".vscode").mkdir(parents=True)
    (made / ".vscode" / "settings.json").write_text(json.dumps({"cantrip.stateDir": str(tmp_path / "state")}))
    (made / "greeter.cantrip.yaml").write_text(RECIPE)
    return made


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep how a test went, so that its windows can be looked at where it failed."""
    report = yield
    if report.when == "call":
        item.stash[_FAILED] = report.failed
    return report


@pytest.fixture(scope="module")
def shared_window(chromium: Any, workbench: Workbench, shared_folder: Path) -> Iterator[Window]:
    """One window for tests of a module that can share it: to open one takes about 10 s of processor time.

    The module's own fixture ``shared_folder`` is the folder.
    """
    window = workbench.open(chromium, shared_folder)
    yield window
    window.close()


@pytest.fixture
def window(shared_window: Window, request: pytest.FixtureRequest) -> Iterator[Window]:
    """The shared window, with no editor open. A test that failed leaves a picture of it."""
    shared_window.command("View: Close All Editors")
    yield shared_window
    if request.node.stash.get(_FAILED, False):
        shared_window.shot(f"failed-{request.node.name}", always=True)


@pytest.fixture
def windows(chromium: Any, request: pytest.FixtureRequest) -> Iterator[Callable[..., Window]]:
    """Opens windows: windows(workbench, folder). Of a test that failed they leave a picture."""
    opened: list[Window] = []

    def make(server: Workbench, folder: Path, **how: Any) -> Window:
        window = server.open(chromium, folder, **how)
        opened.append(window)
        return window

    yield make
    for number, window in enumerate(opened):
        if request.node.stash.get(_FAILED, False):
            window.shot(f"failed-{request.node.name}-{number}", always=True)
        window.close()
