"""acpx, a client from npm that knows nothing of us, drives the agent from the command line: turns, modes, sessions."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.acp_client import AGENT

ACPX = Path(__file__).parent / "acpx" / "node_modules" / "acpx" / "dist" / "cli.js"

pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed"),
    pytest.mark.skipif(not ACPX.exists(), reason="acpx is not installed: npm ci in tests/e2e/clients/acpx"),
]

RESPONSES: list[dict[str, Any]] = [
    {"when": "make", "content": "A file, then.", "bash": "echo made > notes && cat notes"},
    {"when": "make", "tool_calls": [{"gate": "done", "args": {"answer": "The file is made."}}]},
    {"when": "again", "bash": "cat notes; echo more >> notes"},
    {"when": "again", "content": "It was there, and there is more."},
    {"when": "long", "bash": "touch begun; sleep 1000"},
]

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def acpx(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> Iterator[Run]:
    """Runs acpx on our agent; with a home of its own, so that its sessions and its helper process are this test's."""
    home = tmp_path / "home"
    home.mkdir()
    wards = [{"max_turns": 9}, {"bash_writable_paths": ["."]}]
    # Without kept files, sessions begin in the mode ask.
    path = recipe(RESPONSES, medium="bash", gates=["done"], wards=wards, loom={"files": False})
    agent = shlex.join([AGENT, "--recipe", path, "--state-dir", str(tmp_path / "state")])
    base = ["node", str(ACPX), "--agent", agent, "--cwd", str(folder), "--ttl", "100"]
    environment = {**os.environ, "HOME": str(home)}

    def run(*arguments: str, status: int | None = 0) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([*base, *arguments], capture_output=True, text=True, timeout=100, env=environment)
        assert status is None or done.returncode == status, done.stdout + done.stderr
        return done

    run.base, run.environment = base, environment  # type: ignore[attr-defined]
    yield run
    run("sessions", "close", status=None)
    for process in _of(str(tmp_path)):
        process.kill()


def _of(mark: str) -> list[psutil.Process]:
    """What runs with this test's folder in its command line."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(mark in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_one_shot(acpx: Run, folder: Path) -> None:
    done = acpx("--approve-all", "--format", "json", "exec", "make a file")
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert messages[-1]["result"]["stopReason"] == "end_turn"
    updates = [m["params"]["update"] for m in messages if m.get("method") == "session/update"]
    words = [u["content"]["text"] for u in updates if u["sessionUpdate"] == "agent_message_chunk"]
    # Before that, why it asks.
    assert words[1:] == ["A file, then.", "\n\nThe file is made."]
    assert any(m.get("method") == "session/request_permission" for m in messages)
    assert (folder / "notes").read_text() == "made\n"


def test_what_it_denies_is_not_done(acpx: Run, folder: Path) -> None:
    done = acpx("--deny-all", "--format", "json", "exec", "make a file", status=None)
    messages = [json.loads(line) for line in done.stdout.splitlines()]
    assert [m["result"]["stopReason"] for m in messages if "stopReason" in (m.get("result") or {})] == ["end_turn"]
    assert not (folder / "notes").exists()


def test_a_session_goes_on_from_command_to_command(acpx: Run, folder: Path) -> None:
    acpx("sessions", "new")
    first = acpx("--approve-all", "prompt", "make a file")
    assert "The file is made." in first.stdout
    acpx("set-mode", "trusted")
    second = acpx("--deny-all", "prompt", "again")
    assert "It was there, and there is more." in second.stdout, second.stdout + second.stderr
    assert (folder / "notes").read_text() == "made\nmore\n"
    listed = acpx("sessions", "list")
    assert "Make a file" in listed.stdout, listed.stdout
    acpx("sessions", "close")


def test_its_cancel_ends_the_turn_and_the_command(acpx: Run, folder: Path) -> None:
    acpx("sessions", "new")
    argv = [*acpx.base, "--approve-all", "prompt", "run for long"]  # type: ignore[attr-defined]
    turn = subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=acpx.environment)  # type: ignore[attr-defined]
    try:
        deadline = time.monotonic() + 60
        while not (folder / "begun").exists():
            assert time.monotonic() < deadline, "the command did not begin"
            time.sleep(0.05)
        acpx("cancel")
        out, _ = turn.communicate(timeout=60)
    finally:
        if turn.poll() is None:
            turn.kill()
            turn.wait()
    assert "cancelled" in out, out
