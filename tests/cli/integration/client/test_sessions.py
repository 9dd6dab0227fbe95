"""The client and the sessions of an agent: listed, loaded with their past, resumed, with options set."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.integration.client.client_processes import CLIENT, POLITE, Terminal, run_client

OURS = str(Path(sys.executable).parent / "cantrip-acp")


@pytest.fixture
def client(tmp_path: Path) -> Callable[..., Any]:
    """The client with our own agent, which answers three prompts."""
    recipe = tmp_path / "r.cantrip.yaml"
    said = [{"content": f"answer {n}"} for n in range(6)]
    circle = {"gates": ["done"], "wards": [{"max_turns": 3}]}
    recipe.write_text(
        json.dumps({"name": "r", "crystal": {"provider": "scripted", "responses": said}, "circle": circle})
    )
    for name in ("project", "other"):
        (tmp_path / name).mkdir()

    def run(*arguments: str, folder: str = "project") -> Any:
        agent = [OURS, "--recipe", str(recipe), "--state-dir", str(tmp_path / "state")]
        return run_client("--cwd", str(tmp_path / folder), *arguments, agent=agent)

    return run


def test_sessions_are_listed_loaded_and_resumed(client: Callable[..., Any], tmp_path: Path) -> None:
    assert "no sessions" in client("--list").stdout
    client("--prompt", "Tell me of the first thing.")
    client("--prompt", "Elsewhere entirely.", folder="other")
    here = client("--list")
    assert here.returncode == 0, here.stderr
    assert "Tell me of the first thing" in here.stdout
    assert "Elsewhere" not in here.stdout
    every = [json.loads(line) for line in client("--list", "--all", "--json").stdout.splitlines()]
    assert [each["title"] for each in every] == ["Elsewhere entirely", "Tell me of the first thing"]
    session = every[1]["id"]
    assert every[1]["cwd"] == str(tmp_path / "project")

    loaded = client("--load", session, "--prompt", "And then?")
    assert loaded.returncode == 0, loaded.stderr
    assert loaded.stdout.index("answer 0") < loaded.stdout.index("❯ And then?") < loaded.stdout.index("answer 1")
    resumed = client("--resume", "last", "--prompt", "On.")
    assert "answer 0" not in resumed.stdout
    assert f"session  {session}" in resumed.stdout
    assert "answer 2" in resumed.stdout


def test_the_last_session_of_a_folder_without_any(client: Callable[..., Any]) -> None:
    done = client("--load", "last", "--prompt", "x")
    assert done.returncode == 1
    assert "has no session of" in done.stderr


def test_mode_and_options_are_set_before_the_first_prompt(client: Callable[..., Any]) -> None:
    done = client("--mode", "read-only", "--prompt", "/wards")
    assert "mode read-only" in done.stdout.splitlines()[0]
    assert "Mode: **read-only**" in done.stdout.partition("/wards")[2]
    done = client("--set", "mode=trusted", "--prompt", "/wards")
    assert "Mode: **trusted** (editors show it as “Don't ask”)" in done.stdout.partition("/wards")[2]
    refused = client("--set", "mode=free", "--prompt", "x")
    assert refused.returncode == 1
    assert "free" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "mode"], "is not ID=VALUE"),
        (["--load", "a", "--resume", "b"], "cannot be used together"),
        (["--allow", "edit=perhaps"], "is not one of ask, once, always, never"),
        (["--allow", "paint=once"], "is not a kind of tool call"),
    ],
)
def test_a_wrong_command_line(arguments: list[str], words: str) -> None:
    done = run_client("--prompt", "x", *arguments, agent=POLITE)
    assert done.returncode == 2
    assert words in done.stderr


def test_what_an_agent_does_not_offer_is_said() -> None:
    for arguments, method in ((["--list"], "session/list"), (["--load", "x", "--prompt", "y"], "session/load")):
        done = run_client(*arguments, agent=POLITE)
        assert done.returncode == 1
        assert f"does not offer {method}" in done.stderr


def test_a_rule_for_a_kind_says_that_it_answered() -> None:
    done = run_client("--allow", "never", "--allow", "delete=once", "--prompt", "ask", agent=POLITE)
    assert "permission: Allow once (--allow delete=once)" in done.stdout


def test_modes_options_and_sessions_at_a_terminal(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    recipe = tmp_path / "r.cantrip.yaml"
    said = {"provider": "scripted", "responses": [{"content": "one"}, {"content": "two"}]}
    circle = {"gates": ["done"], "wards": [{"max_turns": 3}]}
    recipe.write_text(json.dumps({"name": "r", "crystal": said, "circle": circle}))
    agent = [OURS, "--recipe", str(recipe), "--state-dir", str(tmp_path / "state")]
    at = terminal([*CLIENT, "--cwd", str(tmp_path), "--", *agent])

    def typed(line: str, wanted: str) -> str:
        at.until("❯ ")
        at.type(line + "\n")
        return at.until(wanted)

    typed(":help", "/resume")
    assert "Asks before each write" in typed(":modes", "trusted")
    typed(":mode read-only", "mode read-only")
    typed(":mode free", "unknown mode")
    typed("/options", "recipe")
    typed("/set mode=trusted", "mode = trusted")
    typed(":set mode", "/options lists the options")
    typed(":sesions", "did you mean /sessions?")
    typed("Say one.", "end_turn")
    typed("/new", "session  ")
    typed("/load last", "one")
    typed(":sessions", "Say one")
    typed("Say two.", "two")
    at.until("❯ ")
    at.type("\x04")
    assert at.wait() == 0
