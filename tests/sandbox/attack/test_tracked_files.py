"""Files with names of secrets are shown if git tracks them. No command makes git track a secret of the user."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from tests.support.fixtures.core import done
from tests.support.git_repositories import git, repository

SECRET = "kept-from-entities"
PUBLIC = "everybody-has-it"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    top = repository(
        tmp_path / "work",
        {"tests/.env": f"A={PUBLIC}\n", "tests/server.key": PUBLIC, "edited/.env": "A=1\n", "app/main.py": ""},
    )
    (top / "tests/server.key").chmod(0o600)
    (top / ".env").write_text(f"A={SECRET}\n")
    (top / "app/.env").write_text(f"A={SECRET}\n")
    (top / "edited/.env").write_text(f"A={SECRET}\n")
    return top


def read(folder: Path, programs: list[str], gates: Any = (), **wards: Any) -> list[str]:
    script = [*({"bash": text} for text in programs), done()]
    circle = Circle(
        "bash", ["done", *gates], [{"max_turns": len(script)}, *({k: v} for k, v in wards.items())], workspace=folder
    )
    cantrip = Cantrip(ScriptedCrystal(script), circle=circle)
    cantrip.cast_sync("Look.")
    return [
        f"{turn.observation.output.stdout} {turn.observation.output.stderr} {turn.observation.output.error or ''}"
        for turn in cantrip.loom.threads()[0].acted
        if turn.observation.output is not None
    ]


def test_what_git_tracks_is_there_and_the_rest_is_not(folder: Path) -> None:
    programs = [
        "cat tests/.env; cat tests/server.key",
        "cat .env app/.env edited/.env",
        "read_file tests/.env; search everybody; list_dir tests",
        "read_file edited/.env; read_file .env; search kept; list_dir edited",
    ]
    one, two, three, four = read(folder, programs, ["read_file", "search", "list_dir"])
    assert one.count(PUBLIC) == 2
    assert SECRET not in two
    assert three.count(PUBLIC) >= 3
    assert "hidden" not in three
    assert SECRET not in four
    assert four.count("A=masked-by-cantrip") == 2


ATTACKS = {
    "add the note": "git add -f .env app/.env edited/.env; git commit -qm x",
    "a repository around it": "cd app && git init -q . && git add -f .env && git -c user.name=a -c user.email=a@b commit -qm x",
    "an index with another hash": "git update-index --add --cacheinfo 100644,$(echo x | git hash-object --stdin),app/.env",
    "the file git names another folder": "mkdir -p x && git init -q x/r && echo 'gitdir: ../x/r/.git' > app/.git",
    "a link to it": "ln -s ../.env tests/.env.link; git -C tests add .env.link",
    "another name": "mv app app2; ln app/.env plain; cp -l app/.env plain2; cat plain plain2",
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_no_command_shows_a_secret(attack: str, folder: Path) -> None:
    programs = [
        f"({ATTACKS[attack]}) 2>&1",
        "cat .env */.env tests/.env.link plain* 2>&1; read_file .env; read_file app/.env",
    ]
    found = read(folder, programs, ["read_file"], bash_writable_paths=["."])
    assert SECRET not in "".join(found)
    assert (folder / ".env").read_text() == (folder / "app/.env").read_text() == f"A={SECRET}\n"


@pytest.mark.parametrize("right", [True, False])
def test_who_knows_the_content_learns_nothing_and_cannot_guess_on(right: bool, folder: Path) -> None:
    """The control: with the right hash in the index the file is shown. A second guess is not looked at."""
    guess = SECRET if right else "wrong"
    for content in (guess, SECRET):
        data = f"A={content}\n".encode()
        name = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        if not (folder / "app/.git").exists():
            git(folder / "app", "init", "-q", ".")
        git(folder / "app", "update-index", "--add", "--cacheinfo", f"100644,{name},.env")
        (found,) = read(folder, ["cat app/.env"])
        assert (SECRET in found) is right
