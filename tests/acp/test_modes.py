"""Modes and config options: what they take away, when they bind, what the loom keeps, and whose trust a recipe needs."""

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.records.turn import ConfigRecord, ContextRecord
from tests.acp.conftest import Start
from tests.acp.rawclient import RawClient

ASK = "session/request_permission"
FILES: dict[str, Any] = {"gates": ["done", "echo", "read_file", "write_file"]}
END = {"content": "Done."}


def write(path: str) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "write_file", "args": {"path": path, "content": "x"}}]}


def asked(agent: RawClient) -> int:
    return sum(message.get("method") == ASK for message in agent.seen)


def mode(agent: RawClient, session: str, name: str) -> None:
    assert agent.call("session/set_mode", {"sessionId": session, "modeId": name}) == {}


def option(agent: RawClient, session: str, name: str, value: Any) -> dict[str, Any]:
    reply = agent.call("session/set_config_option", {"sessionId": session, "configId": name, "value": value})
    return {each["id"]: each for each in reply["configOptions"]}


def records(agent: RawClient, kind: type) -> list[Any]:
    path = next(m["result"]["_meta"]["cantrip"]["loom"] for m in agent.seen if "sessionId" in (m.get("result") or {}))
    with Loom.open(path, readonly=True) as loom:
        return [record for record in loom.records() if isinstance(record, kind)]


def test_the_modes_are_told(start: Start, folder: Path) -> None:
    agent = start()
    new = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})
    assert new["modes"]["currentModeId"] == "ask"
    assert [each["id"] for each in new["modes"]["availableModes"]] == ["read-only", "ask", "sandboxed", "trusted"]
    options = {each["id"]: each for each in new["configOptions"]}
    assert {"mode", "model", "recipe"} <= set(options)
    assert options["mode"]["currentValue"] == "ask"
    session = new["sessionId"]
    assert agent.error("session/set_mode", {"sessionId": session, "modeId": "root"})["data"]["field"] == "modeId"
    for name, value, field in (("nothing", "x", "configId"), ("mode", "root", "modeId"), ("mode", True, "value")):
        params = {
            "sessionId": session,
            "configId": name,
            "value": value,
            **({"type": "boolean"} if value is True else {}),
        }
        assert agent.error("session/set_config_option", params)["data"]["field"] == field


def test_read_only_takes_writing_away(start: Start, folder: Path) -> None:
    agent = start([write("a.txt"), END, write("b.txt"), END], **FILES)
    session = agent.session(folder)
    mode(agent, session, "read-only")
    agent.prompt(session)
    assert not asked(agent)
    assert not (folder / "a.txt").exists()
    (failed,) = [u for u in agent.updates("tool_call_update") if u["status"] == "failed"]
    assert "write_file" in failed["rawOutput"]["output"]
    mode(agent, session, "trusted")
    agent.prompt(session)
    assert not asked(agent)
    assert (folder / "b.txt").exists()
    changes = [record.changes for record in records(agent, ConfigRecord)]
    assert changes == [{"mode": "read-only"}, {"mode": "trusted"}]
    told = [record.text for record in records(agent, ContextRecord)]
    assert len(told) == 2
    assert "'Read only'" in told[0]


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


def test_tightening_binds_in_the_middle_of_a_prompt(start: Start, folder: Path) -> None:
    agent = start(
        [write("a.txt"), {"content": "wait", "delay_ms": 500, "tool_calls": write("b.txt")["tool_calls"]}, END], **FILES
    )
    session = agent.session(folder)
    mode(agent, session, "trusted")
    prompt = agent.start_prompt(session)
    agent.until(lambda m: m.get("params", {}).get("update", {}).get("status") == "completed")
    mode(agent, session, "read-only")
    if not any(message.get("id") == prompt for message in agent.seen):
        agent.answer(prompt)
    assert (folder / "a.txt").exists()
    assert not (folder / "b.txt").exists()


def test_a_permission_for_what_is_forbidden_meanwhile(start: Start, folder: Path) -> None:
    agent = start([write("a.txt"), END], **FILES)
    agent.permit = None
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    message = agent.until(lambda m: m.get("method") == ASK)
    mode(agent, session, "read-only")
    agent.decide(message, "allow_once")
    agent.answer(prompt)
    assert not (folder / "a.txt").exists()


def test_sandboxed_asks_outside_of_what_commands_may_write(start: Start, folder: Path) -> None:
    (folder / "in").mkdir()
    agent = start(
        [write("in/a.txt"), write("b.txt"), write("in/../c.txt"), END],
        gates=["done", "write_file"], wards=[{"max_turns": 9}, {"bash_writable_paths": ["in"]}],
    )  # fmt: skip
    session = agent.session(folder)
    mode(agent, session, "sandboxed")
    agent.prompt(session)
    titles = [m["params"]["toolCall"]["title"] for m in agent.seen if m.get("method") == ASK]
    assert titles == ["Write b.txt (new, +1)", "Write c.txt (new, +1)"]


def test_a_mode_that_cannot_be_recorded_loosens_nothing(start_process: Start, folder: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk."""
    agent = start_process([{"content": "One."}], "--state-dir", str(tmp_path / "state"))
    session = agent.session(folder)
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
    assert "Make room" in agent.error("session/new", {"cwd": str(folder), "mcpServers": []})["message"]
    resource.prlimit(agent.process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    agent.call("session/set_mode", {"sessionId": session, "modeId": "trusted"})
    assert mode_of_disk(tmp_path) == "trusted"


def mode_of_disk(tmp_path: Path) -> str:
    (note,) = (tmp_path / "state" / "looms").glob("*.session.json")
    found: str = json.loads(note.read_bytes())["mode"]
    return found


def test_mode_and_option_are_one(start: Start, folder: Path) -> None:
    agent = start()
    session = agent.session(folder)
    assert option(agent, session, "mode", "trusted")["mode"]["currentValue"] == "trusted"
    assert agent.updates("current_mode_update") == [
        {"sessionUpdate": "current_mode_update", "currentModeId": "trusted"}
    ]
    mode(agent, session, "ask")
    update = agent.until(lambda m: m.get("params", {}).get("update", {}).get("sessionUpdate") == "config_option_update")
    options = {each["id"]: each for each in update["params"]["update"]["configOptions"]}
    assert options["mode"]["currentValue"] == "ask"


def test_a_crystal_for_the_next_prompt(
    start: Start, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0000000000000000")
    agent = start([{"content": "one", "delay_ms": 700}, {"content": "two"}])
    new = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})
    options = {each["id"]: each for each in new["configOptions"]}
    session = new["sessionId"]
    values = [each["value"] for each in options["model"]["options"]]
    assert values[0] == options["model"]["currentValue"] == "scripted:scripted"
    chosen = next(value for value in values if value.startswith("openai:"))
    prompt = agent.start_prompt(session)
    # While a prompt runs, it is for the next one.
    after = option(agent, session, "model", chosen)
    assert after["model"]["currentValue"] == chosen
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert agent.said() == "one"
    assert option(agent, session, "model", "scripted:scripted")["model"]["currentValue"] == "scripted:scripted"
    agent.prompt(session)
    assert agent.said() == "onetwo"
    assert [record.changes["crystal"] for record in records(agent, ConfigRecord)] == [chosen, "scripted:scripted"]
    for wrong in ("nonsense", "openai:", "madeup:model", "local:x"):
        params = {"sessionId": session, "configId": "model", "value": wrong}
        assert agent.error("session/set_config_option", params)["data"]["field"] == "value"
    # How much it thinks can be chosen of a model that thinks.
    thinking = option(agent, session, "model", chosen)
    if "effort" in thinking:
        assert option(agent, session, "effort", "low")["effort"]["currentValue"] == "low"


def test_what_cannot_think_harder_is_not_recorded_to(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0000000000000000")
    agent = start([{"content": "one"}])
    session = agent.session(folder)
    choice = {"sessionId": session, "configId": "effort", "value": "high"}
    assert "takes no effort" in agent.error("session/set_config_option", choice)["message"]
    option(agent, session, "model", "openai:gpt-5")
    option(agent, session, "effort", "high")
    assert option(agent, session, "model", "openai:gpt-5-mini")["effort"]["currentValue"] == "high"
    assert "effort" not in option(agent, session, "model", "scripted:scripted")
    assert option(agent, session, "model", "openai:gpt-5")["effort"]["currentValue"] == "default"
    assert [record.changes["effort"] for record in records(agent, ConfigRecord)] == [
        "default", "high", "high", "default", "default",
    ]  # fmt: skip


def test_another_recipe_is_a_fork(start: Start, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "config"
    config.mkdir()
    monkeypatch.setenv("CANTRIP_CONFIG_DIR", str(config))
    other = {
        "name": "other",
        "crystal": {"provider": "scripted", "responses": [{"content": "one"}, {"content": "I am another."}]},
        "circle": {"medium": "conversation", "gates": ["done"], "wards": [{"max_turns": 3}]},
    }
    (config / "other.cantrip.yaml").write_text(json.dumps(other))
    agent = start([{"content": "First."}, {"content": "never"}], "--state-dir", str(tmp_path / "state"))
    session = agent.session(folder)
    agent.prompt(session, "Hello?")
    assert option(agent, session, "recipe", "other")["recipe"]["currentValue"] == "other"
    agent.prompt(session, "And you?")
    assert agent.said() == "First.I am another."
    kinds = [type(record).__name__ for record in records(agent, object)]
    assert kinds.count("ForkRecord") == 1
    agent.hang_up()
    again = start([{"content": "x"}], "--state-dir", str(tmp_path / "state"))
    loaded = again.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    assert loaded["_meta"]["cantrip"]["recipe"] == "other"
    assert again.said() == "First.I am another."
    assert (
        again.error("session/set_config_option", {"sessionId": session, "configId": "recipe", "value": "no such"})[
            "code"
        ]
        == -32602
    )


def test_no_recipe_is_chosen_by_a_path(start: Start, recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    agent = start()
    session = agent.session(folder)
    own = next(o for o in option(agent, session, "mode", "ask").values() if o["id"] == "recipe")["currentValue"]
    other = recipe([{"content": "I am another."}])
    for value in (other, "/etc/passwd", "../test2.cantrip.yaml", "", "\x00", "x" * 10_000):
        params = {"sessionId": session, "configId": "recipe", "value": value}
        error = agent.error("session/set_config_option", params)
        assert (error["code"], error["data"]["field"]) == (-32602, "value")
        assert "root:" not in error["message"]
        assert len(error["message"]) < 1_000
    # The one that it began with is always there.
    assert option(agent, session, "recipe", own)["recipe"]["currentValue"] == own


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
