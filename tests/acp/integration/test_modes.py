"""The tests of `tests/acp/unit/test_modes.py` that start processes."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.acp.unit.test_modes import ASK, END, asked, mode
from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start


@pytest.mark.sandbox
def test_read_only_closes_the_sandbox(start: Start, folder: Path) -> None:
    agent = start(
        [{"bash": "touch a; ls -d a"}, END, {"bash": "touch b"}, END, {"bash": "touch c; true"}, END],
        medium="bash", gates=["done"], wards=[{"max_turns": 5}, {"bash_writable_paths": ["."]}],
    )  # fmt: skip
    session = agent.session(folder)
    for name, made in (("sandboxed", ["a"]), ("read-only", ["a"]), ("trusted", ["a", "c"])):
        mode(agent, session, name)
        agent.prompt(session)
        assert sorted(path.name for path in folder.iterdir()) == made
    assert not asked(agent)


@pytest.mark.sandbox
def test_read_only_shuts_the_network(start: Start, folder: Path) -> None:
    look = {"bash": "ls /sys/class/net 2>/dev/null; cat /proc/net/dev | tail -n +3 | cut -d: -f1"}
    agent = start(
        [look, END, look, END], medium="bash", gates=["done"], wards=[{"max_turns": 5}, {"bash_network": True}]
    )
    session = agent.session(folder)
    mode(agent, session, "trusted")
    agent.prompt(session)
    agent.prompt(session, "/wards")
    assert "| `bash_network` | `True` |" in agent.said()
    agent.seen.clear()
    mode(agent, session, "read-only")
    agent.prompt(session)
    (end,) = [u for u in agent.updates("tool_call_update") if u.get("status") == "completed"]
    assert end["rawOutput"]["output"].split() in ([], ["lo"])
    agent.prompt(session, "/wards")
    assert "| `bash_network` | `True` |" not in agent.said()


@pytest.mark.sandbox
@pytest.mark.parametrize("network", [False, True, ["example.org"]])
def test_sandboxed_asks_about_a_command_only_if_it_has_the_whole_network(
    start: Start, folder: Path, network: bool | list[str]
) -> None:
    (folder / "in").mkdir()
    agent = start(
        [{"bash": "touch in/a"}, {"bash": "touch b; true"}, {"bash": "cantrip_write_file in/c c"},
         {"bash": "cantrip_write_file d d; true"}, END],
        medium="bash", gates=["done", "write_file"],
        wards=[{"max_turns": 9}, {"bash_writable_paths": ["in"]}, *([{"bash_network": network}] if network else [])],
    )  # fmt: skip
    agent.permit = "reject_once"
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session)
    titles = [m["params"]["toolCall"]["title"] for m in agent.seen if m.get("method") == ASK]
    made = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    if network is True:
        # The third command only calls a gate, and that may write there.
        assert titles == ["touch in/a", "touch b; true", "cantrip_write_file d d; true"]
        assert made == ["in/c"]
    else:
        assert titles == ["Write d (new, +1)"]
        assert made == ["in/a", "in/c"]


def test_sandboxed_asks_about_a_host_and_about_the_clients_terminal(start: Start, folder: Path) -> None:
    agent = start(
        [
            {"tool_calls": [{"gate": "fetch", "args": {"url": "https://example.org/"}}]},
            {"tool_calls": [{"gate": "client_terminal", "args": {"command": "touch made"}}]},
            END,
        ],
        gates=["done", "fetch", "client_terminal"],
        capabilities={"terminal": True},
    )
    agent.permit = "reject_once"
    session = agent.session(folder, mode="sandboxed")
    agent.prompt(session)
    kinds = [m["params"]["toolCall"]["name"] for m in agent.seen if m.get("method") == ASK]
    assert kinds == ["fetch", "client_terminal"]
    assert not any(str(m.get("method", "")).startswith("terminal/") for m in agent.seen)
    assert [u["status"] for u in agent.updates("tool_call_update") if "status" in u].count("failed") == 2


def test_a_mode_that_cannot_be_recorded_loosens_nothing(start_process: Start, folder: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    agent = start_process([{"content": "One."}], "--state-dir", str(tmp_path / "state"))
    session = agent.session(folder, mode="ask")
    agent.prompt(session)
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))

    def mode_of(error: dict[str, Any]) -> str:
        assert error["code"] == -32603
        assert "cannot be recorded" in error["message"]
        agent.call("session/close", {"sessionId": session})
        return mode()

    def mode() -> str:
        loaded = agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        found: str = loaded["modes"]["currentModeId"]
        return found

    trusted = {"sessionId": session, "configId": "mode", "value": "trusted"}
    assert mode_of(agent.error("session/set_config_option", trusted)) == "ask"
    assert mode_of(agent.error("session/set_mode", {"sessionId": session, "modeId": "trusted"})) == "ask"
    error = agent.error("session/set_mode", {"sessionId": session, "modeId": "read-only"})
    assert "cannot be recorded" in error["message"]
    assert mode() == "read-only"
    assert "Free some disk space" in agent.error("session/new", {"cwd": str(folder), "mcpServers": []})["message"]
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    agent.call("session/set_mode", {"sessionId": session, "modeId": "trusted"})
    assert mode_of_disk(tmp_path) == "trusted"


def mode_of_disk(tmp_path: Path) -> str:
    (note,) = (tmp_path / "state" / "looms").glob("*.session.json")
    found: str = json.loads(note.read_bytes())["mode"]
    return found


@pytest.mark.parametrize("answer", ["allow_always", "reject_once"])
def test_trust_is_asked_with_the_first_prompt(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, answer: str
) -> None:
    (folder / ".cantrip").mkdir()
    source = json.loads(
        Path(
            recipe([{"content": "trusted"}, {"content": "again"}], wards=[{"max_turns": 3}, {"bash_network": True}])
        ).read_text()
    )
    (folder / ".cantrip" / "theirs.cantrip.yaml").write_text(json.dumps(source))
    arguments = ("--recipe", "theirs", "--state-dir", str(tmp_path / "state"))
    agent = RawClient(*arguments, permit=answer)
    try:
        agent.initialize()
        session = agent.session(folder)
        assert (
            agent.error("session/set_mode", {"sessionId": session, "modeId": "trusted"})["data"]["reason"]
            == "untrusted_recipe"
        )
        request = agent.start_prompt(session)
        reply = agent.answer(request)
        (question,) = [m["params"] for m in agent.seen if m.get("method") == ASK]
        assert question["sessionId"] == session
        assert "bash_network" in json.dumps(question)
        if answer == "reject_once":
            error = reply["error"]
            assert error["data"]["reason"] == "untrusted_recipe"
            # Which keys ask for trust is a list: in one line in the message, as a list beside it.
            assert len(error["data"]["details"].splitlines()) > 1
            assert "bash_network" in error["message"]
            return
        assert reply["result"]["stopReason"] == "end_turn"
        assert agent.said() == "trusted"
        # Once for this content; a change asks again.
        agent.seen.clear()
        agent.prompt(agent.session(folder))
        assert not asked(agent)
        (folder / ".cantrip" / "theirs.cantrip.yaml").write_text(json.dumps({**source, "description": "other"}))
        agent.prompt(agent.session(folder))
        assert asked(agent) == 1
    finally:
        agent.close()


def test_a_cancel_while_trust_is_asked(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    (folder / ".cantrip").mkdir()
    source = recipe([{"content": "trusted"}], wards=[{"max_turns": 3}, {"bash_network": True}])
    (folder / ".cantrip" / "theirs.cantrip.yaml").write_text(Path(source).read_text())
    agent = RawClient("--recipe", "theirs", "--state-dir", str(tmp_path / "state"), permit=None)
    try:
        agent.initialize()
        session = agent.session(folder)
        prompt = agent.start_prompt(session)
        question = agent.until(lambda m: m.get("method") == ASK)
        # One prompt at a time, here too.
        second = agent.answer(agent.start_prompt(session))
        assert second["error"]["data"]["reason"] == "prompt_in_progress"
        agent.tell("session/cancel", {"sessionId": session})
        assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
        agent.decide(question, "cancelled")
        # Nothing was trusted by that; the next prompt asks again.
        agent.permit = "allow_always"
        assert agent.prompt(session)["stopReason"] == "end_turn"
        assert asked(agent) == 2
    finally:
        agent.close()
