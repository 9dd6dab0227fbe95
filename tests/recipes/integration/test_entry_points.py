"""Gates, mediums and crystals that other packages add are part of the recipe language where they are installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MODULE = """
from cantrip_acp import Gate, ScriptedCrystal
from cantrip_acp.mediums.conversation import ConversationMedium


def shout(text: str, *, mark: str = "!") -> str:
    "Say it loudly."
    return text.upper() + mark


SHOUT = Gate.of(shout)


def parrot(options, need):
    if "word" not in options:
        raise need.error((), "a parrot needs a word")
    calls = [{"gate": "shout", "args": {"text": options["word"]}}]
    return ScriptedCrystal([{"tool_calls": calls}, {"content": "that was it"}])


class Quiet(ConversationMedium):
    name = "quiet"
"""

POINTS = """
[cantrip_acp.gates]
shout = loudly:SHOUT
[cantrip_acp.crystals]
parrot = loudly:parrot
[cantrip_acp.mediums]
quiet = loudly:Quiet
"""

RECIPE = """
crystal: {provider: parrot, word: hello}
circle:
  medium: quiet
  gates: [done, {name: shout, mark: "?!"}]
  wards: [{max_turns: 3}]
"""


@pytest.fixture
def site(tmp_path: Path) -> Path:
    site = tmp_path / "site"
    info = site / "loudly-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "loudly.py").write_text(MODULE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loudly\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(POINTS)
    return site


def cantrip(site: Path | None, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **({"PYTHONPATH": str(site)} if site else {})}
    command = [sys.executable, "-m", "cantrip_acp.cli.main", *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, env=environ)


def test_they_work_where_they_are_installed(site: Path, tmp_path: Path) -> None:
    (tmp_path / "r.cantrip.yaml").write_text(RECIPE)
    assert cantrip(site, "recipe", "check", "r.cantrip.yaml", cwd=tmp_path).returncode == 0
    done = cantrip(site, "cast", "r.cantrip.yaml", "x", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["result"] for line in lines if line["event"] == "gate_result"] == ["HELLO?!"]
    schema = json.loads(cantrip(site, "recipe", "schema", cwd=tmp_path).stdout)
    assert "shout" in json.dumps(schema["$defs"]["AddedGate"])
    assert "quiet" in schema["$defs"]["Circle"]["properties"]["medium"]["enum"]


def test_they_are_unknown_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "r.cantrip.yaml").write_text(RECIPE)
    done = cantrip(None, "recipe", "check", "r.cantrip.yaml", cwd=tmp_path)
    assert done.returncode == 2
    for says in ("unknown provider 'parrot'", "unknown medium 'quiet'", "unknown gate 'shout'"):
        assert says in done.stdout


def test_a_factory_names_the_place(site: Path, tmp_path: Path) -> None:
    (tmp_path / "r.cantrip.yaml").write_text(RECIPE.replace(", word: hello", ""))
    done = cantrip(site, "cast", "r.cantrip.yaml", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert "r.cantrip.yaml:2:10: crystal: a parrot needs a word" in done.stderr


def test_an_untrusted_recipe_sets_none_of_them_up(site: Path, tmp_path: Path) -> None:
    (tmp_path / ".cantrip").mkdir()
    (tmp_path / ".cantrip" / "r.cantrip.yaml").write_text(RECIPE)
    done = cantrip(site, "cast", "r", "x", cwd=tmp_path)
    assert done.returncode == 2
    assert (
        "crystal.word: not allowed, because the recipe is not trusted: it sets up another package's crystal"
        in done.stderr
    )
    assert "circle.gates[1].mark: not allowed" in done.stderr
