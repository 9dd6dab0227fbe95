"""Modes and config options: what they take away, when they bind, what the loom keeps, and whose trust a recipe needs."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.checkpoints import watcher
from cantrip_acp.core.history.replayed_context import ReplayedContext, differing_turns
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.records import ConfigRecord, ContextRecord
from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start

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
    assert new["modes"]["currentModeId"] == "sandboxed"
    assert [each["id"] for each in new["modes"]["availableModes"]] == [
        "plan",
        "read-only",
        "ask",
        "sandboxed",
        "trusted",
    ]
    options = {each["id"]: each for each in new["configOptions"]}
    assert {"mode", "model", "recipe"} <= set(options)
    assert options["mode"]["currentValue"] == "sandboxed"
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


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"loom": {"files": False}}, "the recipe says loom: {files: false}"),
        ({"wards": [{"max_turns": 5}, {"bash_writable_paths": ["/opt"]}]}, "the recipe lets it write to /opt"),
    ],
)
def test_where_nothing_can_be_undone_it_asks_and_says_why(
    start: Start, folder: Path, options: dict[str, Any], reason: str
) -> None:
    agent = start([END], **options)
    new = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})
    assert new["modes"]["currentModeId"] == "ask"
    agent.prompt(new["sessionId"])
    assert f"asks before each change and each command, because {reason}" in json.dumps(agent.seen)


def test_if_the_files_cannot_be_kept_after_all_it_asks_from_then_on(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "MOST_FILES", 1)
    for name in "abc":
        (folder / name).write_text("x")
    wards = [{"max_turns": 9}, {"bash_writable_paths": ["."]}]
    agent = start([write("a.txt"), END], **{**FILES, "wards": wards})
    agent.permit = "reject_once"
    agent.prompt(agent.session(folder))
    assert not (folder / "a.txt").exists()
    assert agent.updates("current_mode_update")[-1]["currentModeId"] == "ask"
    assert "more than 1 files" in json.dumps(agent.seen)


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
    assert changes == [{"mode": "read-only", "known_mode": "sandboxed"}, {"mode": "trusted"}]
    told = [record.text for record in records(agent, ContextRecord)]
    assert len(told) == 2
    assert "'Read only'" in told[0]


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


def told(agent: RawClient) -> list[tuple[str, str]]:
    """What the entity was told of modes: the source of each record, and its mode."""
    found = [record for record in records(agent, ContextRecord) if (record.uri or "").startswith("wards:")]
    return [(record.source, (record.uri or "").removeprefix("wards:")) for record in found]


def sent_as_recorded(agent: RawClient) -> bool:
    path = next(m["result"]["_meta"]["cantrip"]["loom"] for m in agent.seen if "sessionId" in (m.get("result") or {}))
    with Loom.open(path, readonly=True) as loom:
        return differing_turns(loom) == []


SLOW: dict[str, Any] = {"chunks": ["slow", "ly"], "delay_ms": 700, "tool_calls": write("b.txt")["tool_calls"]}
HANGS = {**SLOW, "chunks": ["slow"] * 90}


def until_the_second_query(agent: RawClient, session: str) -> Any:
    """Start a prompt; returns its id once its second answer has begun."""
    prompt = agent.start_prompt(session)
    agent.until(lambda m: m.get("params", {}).get("update", {}).get("content") == {"type": "text", "text": "slow"})
    return prompt


@pytest.mark.parametrize("name", ["read-only", "plan"])
def test_the_next_query_is_told_of_a_change_during_a_question(start: Start, folder: Path, name: str) -> None:
    agent = start([write("a.txt"), END, END], **FILES)
    agent.permit = None
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    agent.until(lambda m: m.get("method") == ASK)
    assert told(agent) == [("session", "ask")]
    mode(agent, session, name)
    agent.answer(prompt)
    assert told(agent)[1:] == [("note", name)]
    # It was told, so the next prompt does not tell it again.
    agent.prompt(session, "And now?")
    assert told(agent)[1:] == [("note", name)]
    (text,) = [record.text for record in records(agent, ContextRecord) if record.source == "note"]
    assert ("# Plan" in text) == (name == "plan")
    assert not agent.updates("user_message_chunk")
    assert sent_as_recorded(agent)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (["plan", "read-only"], [("note", "read-only")]),
        (["read-only", "sandboxed"], []),
        (["read-only", "sandboxed", "trusted"], [("note", "trusted")]),
    ],
)
def test_of_several_changes_before_a_query_the_last_one_is_told(
    start: Start, folder: Path, changes: list[str], expected: list[tuple[str, str]]
) -> None:
    agent = start([write("a.txt"), SLOW, END, END], **FILES)
    session = agent.session(folder)
    prompt = until_the_second_query(agent, session)
    for name in changes:
        mode(agent, session, name)
    agent.answer(prompt)
    assert told(agent) == expected
    agent.prompt(session, "And now?")
    assert told(agent) == expected
    assert sent_as_recorded(agent)


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("load", [False, True])
def test_a_change_before_a_cancel_is_told_with_the_next_prompt(
    start: Start, folder: Path, tmp_path: Path, load: bool, back: bool
) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    agent = start([write("a.txt"), HANGS, END, END], *state, **FILES)
    session = agent.session(folder)
    prompt = until_the_second_query(agent, session)
    mode(agent, session, "read-only")
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    assert told(agent) == []
    again = agent
    if load:
        agent.hang_up()
        again = start([END, END, END, END], *state, **FILES)
        again.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    if back:
        mode(again, session, "sandboxed")
    for text in ("And now?", "And then?"):
        again.prompt(session, text)
        assert told(agent) == ([] if back else [("session", "read-only")])
    assert sent_as_recorded(agent)


def test_a_fork_and_an_empty_prompt_are_told_of_a_change(start: Start, folder: Path, tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    agent = start([write("a.txt"), HANGS], *state, **FILES)
    session = agent.session(folder)
    prompt = until_the_second_query(agent, session)
    mode(agent, session, "read-only")
    agent.tell("session/cancel", {"sessionId": session})
    agent.answer(prompt)
    agent.hang_up()
    again = start([END] * 3, *state, **FILES)
    where = {"sessionId": session, "cwd": str(folder), "mcpServers": []}
    again.call("session/load", where)
    fork = again.call("session/fork", where)
    again.call("session/prompt", {"sessionId": session, "prompt": []})
    for text in ("In the fork", "Again"):
        again.prompt(fork["sessionId"], text)
    assert told(agent) == [("note", "read-only")]
    with Loom.open(fork["_meta"]["cantrip"]["loom"], readonly=True) as loom:
        found = [r for r in loom.records() if isinstance(r, ContextRecord) and (r.uri or "").startswith("wards:")]
        assert [(r.source, r.uri) for r in found] == [("session", "wards:read-only")]
        assert differing_turns(loom) == []


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
    assert "has no setting for the effort" in agent.error("session/set_config_option", choice)["message"]
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


def test_an_edited_recipe_is_a_fork_and_the_user_is_told(start: Start, folder: Path, tmp_path: Path) -> None:
    state = ("--state-dir", str(tmp_path / "state"))
    agent = start([{"content": "Bonjour."}], *state, call={"system_prompt": "Only French."})
    session = agent.session(folder)
    agent.prompt(session, "Hello?")
    agent.hang_up()
    load = {"sessionId": session, "cwd": str(folder), "mcpServers": []}
    # The same recipe again: nothing to tell.
    again = start([{"content": "x"}], *state, call={"system_prompt": "Only French."})
    again.call("session/load", load)
    again.quiet()
    assert "goes on as a fork" not in str(again.seen)
    again.hang_up()
    german: dict[str, Any] = {"call": {"system_prompt": "Only German."}, "gates": ["done", "echo", "read_file"]}
    for _ in range(2):
        # It is told until an answer has the new definition, but there is one fork.
        later = start([{"content": "never"}, {"content": "Guten Tag."}], *state, **german)
        later.call("session/load", load)
        notice = later.until(lambda message: "The session goes on as a fork" in str(message))
        assert "(system prompt, new gate read_file)" in str(notice)
        later.hang_up()
    last = start([{"content": "never"}, {"content": "Guten Tag."}], *state, **german)
    reply = last.call("session/load", load)
    last.prompt(session, "And now?")
    assert last.said().endswith("Guten Tag.")
    with Loom.open(reply["_meta"]["cantrip"]["loom"], readonly=True) as loom:
        (fork,) = loom.forks()
        leaf = loom.leaves()[-1]
        assert loom.turn(leaf).entity_id == fork.entity_id
        (change,) = [r for r in loom.records() if isinstance(r, ConfigRecord) and "definition" in r.changes]
        assert change.changes["definition"] == ["system prompt", "new gate read_file"]
        (note,) = [r for r in loom.records() if isinstance(r, ContextRecord) and r.source == "session"]
        assert "Your definition has changed" in note.text
        told = list(ReplayedContext(loom, Outline(loom)).windows(leaf))
        assert [(w.messages[0].content, w.begun) for w in told] == [("Only French.", "start"), ("Only German.", "fork")]


def test_a_cut_prompt_of_an_edited_recipe_can_be_continued(start: Start, folder: Path, tmp_path: Path) -> None:
    state, echo = ("--state-dir", str(tmp_path / "state")), {"tool_calls": [{"gate": "echo", "args": {"text": "one"}}]}
    agent = start([echo, {"content": "never"}], *state, wards=[{"max_turns": 1}])
    session = agent.session(folder)
    assert agent.prompt(session, "Go.")["stopReason"] == "max_turn_requests"
    agent.hang_up()
    later = start([{"content": "never"}, {"content": "Done."}], *state, call={"system_prompt": "New."})
    reply = later.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    assert reply["_meta"]["cantrip"]["incomplete"] == "max_turns"
    assert later.call("session/prompt", {"sessionId": session, "prompt": []})["stopReason"] == "end_turn"
    assert later.said().endswith("Done.")


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
