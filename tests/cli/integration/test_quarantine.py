"""`cantrip quarantine`: lists, keeps and drops what commands made and what was moved away."""

import json
import os
from pathlib import Path

import pytest

from tests.support.command_line import run

pytestmark = pytest.mark.sandbox

MAKE = "echo registry=https://evil.example > .npmrc; mkdir .vscode; echo '{}' > .vscode/tasks.json; echo x > file"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (folder := tmp_path / "project").mkdir()
    return folder


def made(folder: Path) -> dict[str, dict[str, object]]:
    """The entries after a command, by name."""
    done = run("sandbox", "run", "--writable", ".", "--", MAKE, cwd=folder)
    assert done.status == 0, done.err
    assert "moved away .npmrc" in done.out + done.err
    listed = json.loads(run("quarantine", "list", "--json", cwd=folder).out)
    assert listed["workspace"] == str(folder)
    return {each["name"]: each for each in listed["entries"]}


def test_nothing_is_there(folder: Path) -> None:
    for words in (["list"], ["keep", "--all"], ["drop", "--all"]):
        done = run("quarantine", *words, cwd=folder)
        assert (done.status, done.out) == (0, "nothing was moved away\n")
    assert json.loads(run("quarantine", "list", "--json", cwd=folder).out) == {"workspace": str(folder), "entries": []}


def test_list_keep_and_drop(folder: Path) -> None:
    entries = made(folder)
    assert sorted(entries) == [".npmrc", ".vscode"]
    assert os.listdir(folder) == ["file"]
    shown = run("quarantine", "list", cwd=folder).out
    assert f"{entries['.npmrc']['id']}  .npmrc  (file, 30 bytes)" in shown
    assert "why: a build tool reads it for every command" in shown
    assert "by: echo registry=" in shown
    assert Path(str(entries[".npmrc"]["content"])).read_text() == "registry=https://evil.example\n"
    kept = run("quarantine", "keep", str(entries[".vscode"]["id"]), cwd=folder)
    assert (kept.status, kept.out) == (0, "kept: .vscode\n")
    assert (folder / ".vscode" / "tasks.json").read_text() == "{}\n"
    dropped = run("quarantine", "drop", str(entries[".npmrc"]["id"]), "--json", cwd=folder)
    assert json.loads(dropped.out) == {"workspace": str(folder), "dropped": [entries[".npmrc"]["id"]], "failed": {}}
    assert not (folder / ".npmrc").exists()
    assert run("quarantine", "list", cwd=folder).out == "nothing was moved away\n"


def test_nothing_is_overwritten_and_a_wrong_id_is_an_error(folder: Path) -> None:
    entry = str(made(folder)[".npmrc"]["id"])
    (folder / ".npmrc").write_text("mine\n")
    done = run("quarantine", "keep", entry, cwd=folder)
    assert done.status == 1
    assert "exists, and nothing is overwritten" in done.err
    assert (folder / ".npmrc").read_text() == "mine\n"
    for wrong in ("20260101-120000-0a1b2c3d", "../..", ".", "x/y"):
        done = run("quarantine", "drop", wrong, cwd=folder)
        assert done.status == 1
        assert "there is no entry" in done.err
    assert len(json.loads(run("quarantine", "list", "--json", cwd=folder).out)["entries"]) == 2
    for words in ([], [entry, "--all"]):
        assert run("quarantine", "keep", *words, cwd=folder).status == 2


def test_another_workspace_and_state_folder(folder: Path, tmp_path: Path) -> None:
    made(folder)
    (tmp_path / "other").mkdir()
    assert run("quarantine", "list", cwd=tmp_path / "other").out == "nothing was moved away\n"
    there = run("quarantine", "list", "--workspace", str(folder), cwd=tmp_path / "other").out
    assert ".npmrc" in there
    assert run("quarantine", "list", "--state-dir", str(tmp_path / "empty"), cwd=folder).status in (0, 2)
