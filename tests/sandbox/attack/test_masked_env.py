"""A `.env` that git does not track shows its names. Its values are not there by any way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, ScriptedCrystal
from tests.support.fixtures.core import done

SECRET = "kept-from-entities"
TEXT = f"# {SECRET}\nTOKEN={SECRET}\nexport OTHER='{SECRET}'\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    work = tmp_path / "work"
    (work / "app").mkdir(parents=True)
    (work / ".env").write_text(TEXT)
    (work / "app/.env.local").write_text(TEXT)
    (work / "app/.env.key").write_text(f"{SECRET}\n")
    return work


def read(folder: Path, programs: list[str], gates: Any = (), **wards: Any) -> list[str]:
    script = [*({"bash": text} for text in programs), done()]
    limits = [{"max_turns": len(script)}, *({k: v} for k, v in wards.items())]
    cantrip = Cantrip(ScriptedCrystal(script), circle=Circle("bash", ["done", *gates], limits, workspace=folder))
    cantrip.cast_sync("Look.")
    outputs = [turn.observation.output for turn in cantrip.loom.threads()[0].acted]
    return [f"{each.stdout} {each.stderr} {each.error or ''}" for each in outputs if each is not None]


def test_commands_and_read_file_see_the_names(folder: Path) -> None:
    command, other, gate, key = read(
        folder,
        [
            ". ./.env; echo $TOKEN $OTHER; wc -l < .env",
            "cat app/.env.local app/.env.key",
            "read_file .env",
            "read_file app/.env.key",
        ],
        ["read_file"],
    )
    assert command.split() == ["masked-by-cantrip", "masked-by-cantrip", "3"]
    assert "OTHER='masked-by-cantrip'" in other
    assert "hidden inside the sandbox" in other
    assert "TOKEN=masked-by-cantrip" in gate
    assert "is hidden" in key
    assert SECRET not in command + other + gate + key


def test_a_write_says_why_it_fails_and_changes_nothing(folder: Path) -> None:
    (found,) = read(folder, ["echo X=1 >> .env; mv .env y; rm -f .env; cat .env"], bash_writable_paths=["."])
    assert "cantrip: .env is read-only here, and its values are masked" in found
    assert "TOKEN=masked-by-cantrip" in found
    assert (folder / ".env").read_text() == TEXT


def test_no_way_leads_to_a_value(folder: Path) -> None:
    ways = [
        "grep -r kept . ; cat /proc/self/root$PWD/.env; ln .env a; cp .env b; cat a b; tar c . | strings | grep kept",
        "search kept; search TOKEN; read_file ./app/../.env; ln -s .env l; read_file l; edit_file .env TOKEN x; list_dir .",
        "mkdir n; mv app n/app; cat n/app/.env.local app/.env.local; cat /proc/1/root$PWD/.env; cat /proc/self/mountinfo",
    ]
    found = "".join(read(folder, ways, ["read_file", "search", "list_dir", "edit_file"], bash_writable_paths=["."]))
    assert SECRET not in found
    assert (folder / ".env").read_text() == (folder / "app/.env.local").read_text() == TEXT


def test_the_masked_copy_follows_the_file(folder: Path) -> None:
    (first,) = read(folder, ["cat .env"])
    (folder / ".env").write_text(f"{TEXT}NEW={SECRET}\n")
    (second,) = read(folder, ["cat .env"])
    assert "NEW=" not in first
    assert "NEW=masked-by-cantrip" in second
    (hidden,) = read(folder, ["cat .env"], hidden_paths=[".env"])
    assert "TOKEN" not in hidden
