"""Fail closed: small attacks are tried once per process, and where one is not stopped, no command and no cell runs."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.sandbox.launch import causes, sandbox, self_test, unix_sockets
from cantrip_acp.sandbox.launch.new_names import NewNames
from cantrip_acp.types.errors import SandboxMissing
from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.attack.weakened_sandbox import (
    Defence,
    calls,
    hidden_environment,
    option,
    options,
    patched,
    prepared,
    unsupervised,
)
from tests.sandbox.unit.test_causes import ENVIRONMENTS
from tests.support.ordinary_user import ROOT


def _at(args: list[str], *words: str) -> int:
    return next(n for n in range(len(args)) if args[n : n + len(words)] == list(words))


def _shown(args: list[str], *, writable: bool = False) -> list[str]:
    """The folder around the workspace shown, as it must not be."""
    work = args[-1]
    outside = os.path.dirname(work)
    at = _at(args, "--ro-bind", work, work)
    return [*args[:at], "--bind" if writable else "--ro-bind", outside, outside, *args[at:]]


def _writable(args: list[str]) -> list[str]:
    work = args[-1]
    at = _at(args, "--ro-bind", work, work)
    return [*args[:at], "--bind", *args[at + 1 :]]


WEAKENED: dict[str, Defence] = {
    "read_outside": options("nothing outside is shown", lambda args, _: _shown(args)),
    "host": options("nothing outside is writable", lambda args, _: _shown(args, writable=True)),
    "write_readable": options("the workspace is read-only", lambda args, _: _writable(args)),
    "quarantine": patched("the watch over new names", NewNames, "_move", lambda self, *, last: False),
    "environment": hidden_environment(),
    "processes": option("--unshare-pid"),
    "network": option("--unshare-net"),
    "socket_before": unsupervised(),
    "socket_later": unsupervised(),
    "namespaces": calls("unshare"),
    "set_id": calls("fchmodat", "fchmodat2", "chmod"),
}


@pytest.fixture(autouse=True)
def _unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(self_test, "_checked", False)
    # A weakened filter may end Unix sockets for the rest of the process.
    monkeypatch.setattr(unix_sockets, "_found", list(unix_sockets._found))


async def test_all_of_them_are_stopped_here() -> None:
    results = await self_test.run_attacks()
    assert {r.name for r in results if not r.held} == set()
    assert set(WEAKENED) <= {r.name for r in results}


@pytest.mark.parametrize("name", WEAKENED)
async def test_each_notices_that_its_defence_is_gone(name: str, scene: Scene) -> None:
    with WEAKENED[name].removed(scene):
        results = {r.name: r for r in await self_test.run_attacks()}
        assert not results[name].held
        with pytest.raises(SandboxMissing, match="does not protect this machine") as caught:
            await self_test.ensure_checked()
    assert results[name].text in str(caught.value)
    assert "cantrip doctor" in str(caught.value)


def _cast(medium: str, workspace: Path, **call: Any) -> Cantrip:
    return Cantrip(
        ScriptedCrystal([{"tool_calls": [call]}, {"content": "over"}]),
        Call(),
        Circle(medium, ["done"], {"max_turns": 3}, workspace=workspace),
        loom=Loom.memory(),
    )


MEDIUMS: dict[str, Callable[[Path], Cantrip]] = {
    "bash": lambda folder: _cast("bash", folder, gate="bash", args={"command": "touch /tmp/ran; echo RAN"}),
    "code": lambda folder: _cast("code", folder, gate="python", args={"code": "print('RAN')"}),
}


@pytest.mark.parametrize("medium", MEDIUMS)
async def test_a_medium_refuses_to_run_where_one_is_not_stopped(medium: str, scene: Scene) -> None:
    with WEAKENED["read_outside"].removed(scene):
        with pytest.raises(SandboxMissing, match="files outside of the workspace cannot be read"):
            await MEDIUMS[medium](scene.workspace).cast("work")
    result = await MEDIUMS[medium](scene.workspace).cast("work")
    assert result.reason == "text"


async def test_they_are_run_once_per_process(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    original = self_test.run_attacks

    async def run_attacks() -> list[self_test.Result]:
        tried.append(1)
        return await original()

    monkeypatch.setattr(self_test, "run_attacks", run_attacks)
    for medium in ("bash", "code", "bash"):
        await MEDIUMS[medium](scene.workspace).cast("work")
    assert len(tried) == 1


async def test_a_probe_that_could_not_notice_is_no_proof(scene: Scene) -> None:
    """Where a command cannot even do what it may, nothing was shown, and nothing runs."""
    blind = prepared("a shell", lambda p, _: _with_shell(p, "/bin/false"))
    with blind.removed(scene), pytest.raises(SandboxMissing, match="could not be tested"):
        await self_test.ensure_checked()


def _with_shell(made: Any, shell: str) -> Any:
    from dataclasses import replace

    return replace(made, policy=replace(made.policy, shell=shell))


def test_they_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import tempfile

    import anyio

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    anyio.run(self_test.run_attacks)
    assert list(tmp_path.iterdir()) == []
    assert "CANTRIP_CANARY" not in os.environ


# What doctor says

_DOCTOR = """
import os, sys
from cantrip_acp.sandbox.launch import availability as probe
from cantrip_acp.sandbox.launch.causes import Facts
folder, files = sys.argv[1], {files!r}
probe.find_bubblewrap.__defaults__ = (folder,)
Facts.of_this_machine = classmethod(lambda cls: cls(files.get, {{}}))
from cantrip_acp.cli.main import main
sys.argv = ["cantrip", "doctor", "--json"]
main()
"""


def doctor(folder: Path, files: dict[str, str] | None = None) -> tuple[int, dict[str, dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-c", _DOCTOR.format(files=files or {}), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=ROOT,
    )
    found = json.loads(done.stdout)
    return done.returncode, {f["name"]: f for f in found["findings"]}


def program(folder: Path, text: str) -> None:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


@pytest.mark.parametrize("name", ["Docker on Debian, default options", "Ubuntu 24.04"])
def test_doctor_names_cause_and_mend(name: str, tmp_path: Path) -> None:
    """A back end that answers as the real one does on such a machine, and the recorded facts of that machine."""
    environment = next(e for e in ENVIRONMENTS if e["environment"] == name)
    (tmp_path / "words").write_text(environment["words"])
    answer = f'[ "$1" = --version ] && echo "bubblewrap 0.8.0" && exit 0\ncat {tmp_path}/words >&2; exit 1'
    program(tmp_path, answer)
    status, found = doctor(tmp_path, environment["files"])
    assert status == 3
    assert found["sandbox"]["state"] == "missing"
    assert f"`{environment['mend']}`" in found["sandbox"]["mend"]


def test_doctor_without_bubblewrap(tmp_path: Path) -> None:
    status, found = doctor(tmp_path)
    assert status == 3
    assert "bubblewrap" in found["sandbox"]["text"]
    assert "install bubblewrap" in (found["sandbox"]["mend"] or "").lower()


def test_doctor_with_an_old_bubblewrap(tmp_path: Path) -> None:
    program(tmp_path, "echo 'bubblewrap 0.4.1'")
    status, found = doctor(tmp_path)
    assert status == 3
    assert found["sandbox.bubblewrap"]["mend"] == causes.OLD.mend


@contextlib.contextmanager
def _no_groups() -> Iterator[None]:
    before = list(sandbox.control_groups.__globals__["_groups"])
    sandbox.control_groups.__globals__["_groups"][:] = [None]
    yield
    sandbox.control_groups.__globals__["_groups"][:] = before


def test_doctor_without_a_control_group() -> None:
    from cantrip_acp.sandbox import diagnosis

    with _no_groups():
        found = {f.name: f for f in diagnosis.findings()}
    assert found["limits.memory"].state == "note"
    assert "systemd" in (found["limits.memory"].mend or "")
    if os.getuid() == 0:
        assert found["limits.processes"].state == "note"
        assert "ordinary user" in (found["limits.processes"].mend or "")
    else:
        assert found["limits.processes"].state == "ok"
