"""`cantrip trust`: what is granted is shown first, the terminal is asked, and no name commands the terminal."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from cantrip_acp.recipes.trust import Ledger
from tests.support.command_line import GREETER, Terminal, run

EVIL = "evil\x1b[2J\x1b]0;title\x07\u202egnp.\u2066\nFORGED line\r\x9b31m"
LONE = os.fsdecode(b"lone\xff\xed\xa0\x80")
_BAD = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")

POWERS = """
crystal: {provider: local, model: m, base_url: "http://models.example:8000/v1", api_key_env: MY_KEY}
circle:
  medium: bash
  gates: [done, fetch, write_file, {python: gates.py}]
  wards:
    - {max_turns: 3}
    - {bash_network: [pypi.org]}
    - {bash_writable_paths: [workspace]}
    - {allow_protected: [.helix]}
mcp_servers:
  - {name: files, command: npx, args: [some-server], sandbox: false, env_names: [TOKEN_X]}
"""
SHOWN = (
    "send prompts to local:m at http://models.example:8000/v1, with the content of $MY_KEY",
    "run shell commands in the sandbox",
    "run the Python file gates.py on this machine, outside the sandbox, as you",
    "send requests to public hosts of the internet (gate fetch)",
    "write files (gate write_file)",
    "use the network from the sandbox: pypi.org",
    "let commands write: workspace",
    "write files that other programs execute: .helix",
    "run the MCP server files on this machine, outside the sandbox, as you: npx some-server",
    "give the MCP server files the content of $TOKEN_X",
)


def recipe(folder: Path, text: str, name: str = "theirs") -> Path:
    path = folder / ".cantrip" / f"{name}.cantrip.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def trusted(workspace: Path) -> bool:
    return Ledger(Path(os.environ["CANTRIP_STATE_DIR"])).state(workspace) == "trusted"


def test_what_is_granted_is_shown_and_scripts_say_yes(tmp_path: Path) -> None:
    recipe(tmp_path, POWERS)
    (tmp_path / ".cantrip/gates.py").write_text("")
    asked = run("trust", cwd=tmp_path)
    assert asked.status == 1
    assert "--yes" in asked.err
    assert not trusted(tmp_path)
    for line in SHOWN:
        assert f"it could {line}" in asked.out
    assert (
        "circle.wards[3].allow_protected: it lets commands and gates write files that other programs execute"
        in asked.out
    )
    data = json.loads(run("trust", "--json", cwd=tmp_path).out)
    assert data["trusted"] is False
    can = [power for each in data["recipes"] for power in each.get("can", ())]
    assert all(any(line in power for power in can) for line in SHOWN)
    assert not trusted(tmp_path)
    granted = run("trust", "--yes", cwd=tmp_path)
    assert (granted.status, trusted(tmp_path)) == (0, True)
    assert granted.out.index("it could") < granted.out.index("\ntrusted: ")
    assert json.loads(run("trust", "--list", "--json", cwd=tmp_path).out)["folders"][0]["state"] == "trusted"


@pytest.mark.parametrize(("answer", "outcome"), [("y\r", True), ("n\r", False), ("\r", False)])
def test_a_terminal_is_asked_after_it_was_shown(tmp_path: Path, answer: str, outcome: bool) -> None:
    recipe(tmp_path, GREETER.replace("{max_turns: 3}", "{max_turns: 3}, {bash_network: true}"))
    terminal = Terminal("trust", cwd=tmp_path)
    shown = terminal.wait_for("[y/N]")
    assert "use the network from the sandbox" in shown
    assert not trusted(tmp_path)
    terminal.type(answer)
    assert terminal.end() == (0 if outcome else 1)
    assert trusted(tmp_path) is outcome


def test_what_changes_while_it_is_read_is_not_granted(tmp_path: Path) -> None:
    path = recipe(tmp_path, GREETER)
    terminal = Terminal("trust", cwd=tmp_path)
    terminal.wait_for("[y/N]")
    path.write_text(GREETER + "# another one\n")
    terminal.type("y\r")
    assert terminal.end() == 2
    assert not trusted(tmp_path)


@pytest.mark.parametrize("evil", [EVIL, LONE])
def test_no_name_commands_the_terminal(tmp_path: Path, evil: str) -> None:
    """Folders, files, recipes and what they say of themselves, in every command that shows them."""
    workspace = tmp_path / f"project {evil}"
    workspace.mkdir()
    text = json.dumps(EVIL)
    recipe(
        workspace,
        f"name: {text}\ndescription: {text}\ncrystal: {{provider: scripted, script: {text}}}\n"
        f"circle: {{medium: bash, gates: [done, {{python: {text}}}], wards: [{{max_turns: 1}}, {{bash_network: [{text}]}}]}}\n"
        f"mcp_servers: [{{name: {text}, command: {text}, args: [{text}]}}]\n",
        evil,
    )
    recipe(workspace, GREETER.replace("name: greeter", f"name: {text}\ndescription: {text}"), f"b {evil}")
    recipe(workspace, "circle: [broken", f"c {evil}")
    recipe(workspace, GREETER, "plain")
    (workspace / f".env.{evil}").write_text("x")
    assert run("cast", "./.cantrip/plain.cantrip.yaml", EVIL, cwd=workspace).status == 0
    for words in (
        ["trust"],
        ["trust", "--yes"],
        ["trust", "--list"],
        ["recipe", "list"],
        ["recipe", "check", ".cantrip"],
        ["recipe", "show", "plain"],
        ["sandbox", "policy", "--writable", "."],
        ["loom", "list"],
        ["loom", "thread"],
        ["gc", "--older-than", "0d"],
        ["gc"],
        ["trust", "--revoke"],
        ["cast", f"./.cantrip/c {evil}.cantrip.yaml", "x"],
        ["cast", f"b {evil}", "x"],
    ):
        done = run(*words, cwd=workspace)
        for said in (done.out, done.err):
            assert not _BAD.search(said), (words, said)
            forged = [line for line in said.splitlines() if line.startswith("FORGED")]
            assert not forged, (words, said)
        assert "Traceback" not in done.err
        assert "a bug" not in done.err, (words, done.err)
