"""What sessions survive: damage around them, other versions, other processes, other spellings of their folder."""

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from cantrip_acp.acp.sessions.session_store import SessionMetadata, SessionStore
from tests.support.acp_client import RawClient, still_alive

Begin = Callable[..., RawClient]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def begin(recipe: Callable[..., str], state: Path) -> Iterator[Begin]:
    """Starts agents that share a recipe and a state folder."""
    running: list[RawClient] = []
    path: list[str] = []

    def start(responses: list[dict[str, Any]] | None = None, **options: Any) -> RawClient:
        if not path:
            path.append(recipe(responses or [{"repeat": True, "content": "Said."}], **options))
        client = RawClient("--recipe", path[0], "--state-dir", str(state))
        running.append(client)
        client.initialize()
        return client

    yield start
    for client in running:
        client.close()


def named(session: str, folder: Path) -> dict[str, Any]:
    return {"sessionId": session, "cwd": str(folder), "mcpServers": []}


def whole(store: SessionStore, number: int, folder: Path) -> str:
    """A session on disk in which something was asked; its id."""
    session = f"sess_{number:024x}"
    cantrip = {"type": "cantrip", "id": "c", "call": {}, "circle": {"workspace": str(folder)}}
    cast = {
        "type": "cast",
        "id": "k",
        "event": "start",
        "entity_id": "e",
        "cantrip_id": "c",
        "intent": f"Number {number}",
    }
    lines = [{"type": "loom", "id": "x", "format": 1}, cantrip, cast]
    path = store.loom_path(session)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    store.save(SessionMetadata(id=session, cwd=str(folder), entity_id="e", loom=str(path), title=f"Number {number}"))
    return session


def test_a_list_among_damage(begin: Begin, folder: Path, state: Path) -> None:
    store = SessionStore(state)
    ids = [whole(store, number, folder) for number in range(500)]

    def note(n: int) -> Path:
        return state / "looms" / f"{ids[n]}.session.json"

    def loom(n: int) -> Path:
        return state / "looms" / f"{ids[n]}.loom.jsonl"

    # Notes that are none: what they said is in the loom.
    note(0).write_text(note(0).read_text()[:40])
    note(1).write_bytes(b"\xff\xfe" * 50)
    note(2).write_text(json.dumps({"somebody": "else's"}))
    note(3).write_text("[" * 100_000)
    note(4).write_text(note(5).read_text())
    note(6).unlink()
    os.mkfifo(note(6))
    note(7).unlink()
    note(7).mkdir()
    note(8).write_bytes(b" " * 5_000_000)
    # Looms that are damaged: the note has what a list says.
    loom(9).write_bytes(loom(9).read_bytes()[:-10])
    loom(10).write_text("no loom at all\n")
    # Neither can be read.
    lost = {
        11: b"no loom at all\n",
        12: b'{"type":"loom","id":"x","format":99}\n',
        13: b"\0" * 5_000,
        14: b'{"type":"lo',
    }
    for number, data in lost.items():
        note(number).write_text("{")
        loom(number).write_bytes(data)
    note(15).write_text("{")
    loom(15).unlink()
    loom(15).mkdir()
    agent = begin()
    for _ in range(2):
        seen: list[dict[str, Any]] = []
        cursor = None
        began = time.monotonic()
        while True:
            page = agent.call("session/list", {"cursor": cursor, "cwd": str(folder)})
            seen += page["sessions"]
            cursor = page.get("nextCursor")
            assert len(page["sessions"]) <= 50
            if cursor is None:
                break
        assert time.monotonic() - began < 60
        assert {each["sessionId"] for each in seen} == {*ids} - {ids[number] for number in (*lost, 15)}
        assert len(seen) == 500 - len(lost) - 1
        assert {each["title"] for each in seen} >= {f"Number {number}" for number in range(11)}
    agent.hang_up()
    told = agent.stderr()
    for number in lost:
        # Once, and by name.
        assert told.count(f"session {ids[number]}") == 1, (number, told)
    assert not [number for number in range(9) if ids[number] in told]


def test_a_list_among_names_and_times_that_cannot_be(begin: Begin, folder: Path, state: Path) -> None:
    store = SessionStore(state)
    ids = [whole(store, number, folder) for number in range(5)]
    for number, wrong in enumerate(({"cwd": "/a\0b"}, {"cwd": "relative"}, {"directories": ["relative", "/a\0b"]})):
        path = state / "looms" / f"{ids[number]}.session.json"
        path.write_text(json.dumps({**json.loads(path.read_bytes()), **wrong}))
    for number, seconds in ((3, -5_000_000_000), (4, 300_000_000_000)):
        path = state / "looms" / f"{ids[number]}.loom.jsonl"
        with suppress(OSError, OverflowError):
            os.utime(path, (seconds, seconds))
    agent = begin()
    listed = agent.call("session/list", {"cwd": str(folder)})["sessions"]
    assert {each["sessionId"] for each in listed} >= {ids[2], ids[3], ids[4]}
    assert not [each for each in listed if each.get("additionalDirectories")]
    assert all(each["cwd"].startswith("/") for each in agent.call("session/list")["sessions"])
    # No folder has such a name, so nothing is in it.
    assert agent.call("session/list", {"cwd": "/a\0b"}) == {"sessions": []}
    assert agent.call("session/load", named(ids[0], folder))["modes"]["currentModeId"] == "ask"


def test_to_look_into_a_session_is_no_work_in_it(begin: Begin, folder: Path, state: Path) -> None:
    store = SessionStore(state)
    old, new = whole(store, 1, folder), whole(store, 2, folder)
    for session, seconds in ((old, 1_000_000_000), (new, 1_100_000_000)):
        os.utime(state / "looms" / f"{session}.loom.jsonl", (seconds, seconds))
    agent = begin()
    agent.call("session/load", named(old, folder))
    listed = agent.call("session/list")["sessions"]
    assert [(each["sessionId"], each["updatedAt"][:4]) for each in listed] == [(new, "2004"), (old, "2001")]


def test_what_other_versions_wrote(begin: Begin, folder: Path, state: Path, tmp_path: Path) -> None:
    first = begin()
    session = first.session(folder)
    first.prompt(session, "Before.")
    first.hang_up()
    path = state / "looms" / f"{session}.session.json"
    kept = json.loads(path.read_bytes())
    least = {key: kept[key] for key in ("id", "cwd", "entity_id", "loom")}
    notes: list[dict[str, Any]] = [
        least,
        # The state folder was moved.
        {**least, "loom": str(tmp_path / "elsewhere.loom.jsonl")},
        {**kept, "mode": "of-another-version", "new_key": {"a": [1]}},
        {key: value for key, value in kept.items() if key != "loom"},
        {**kept, "granted": [{"tool": "bash", "pattern": "make", "allowed": True, "new": 1}]},
    ]
    for number, note in enumerate(notes, 1):
        path.write_text(json.dumps(note))
        agent = begin()
        (listed,) = agent.call("session/list")["sessions"]
        assert (listed["title"], listed["cwd"]) == ("Before", str(folder))
        reply = agent.call("session/load", named(session, folder))
        # A note without a mode or with an unknown one, or one that cannot be read, never loosens anything.
        whole = note.get("mode") == "sandboxed" and "loom" in note
        assert reply["modes"]["currentModeId"] == ("sandboxed" if whole else "ask")
        asked = [update["content"]["text"] for update in agent.updates("user_message_chunk")]
        assert asked == ["Before.", *["On."] * (number - 1)]
        assert agent.prompt(session, "On.")["stopReason"] == "end_turn"
        agent.hang_up()


def write_recipe(folder: Path, **keys: Any) -> Path:
    """A recipe of a workspace whose crystal says its own name."""
    path = folder / ".cantrip" / "other.cantrip.yaml"
    path.parent.mkdir(exist_ok=True)
    crystal = {"provider": "scripted", "model": "own", "responses": [{"repeat": True, "content": "Own."}]}
    circle = {"medium": "conversation", "gates": ["done"], "wards": [{"max_turns": 3}]}
    path.write_text(json.dumps({"name": "other", "crystal": crystal, "circle": circle, **keys}))
    return path


def chosen(options: list[dict[str, Any]]) -> dict[str, str]:
    return {option["id"]: option["currentValue"] for option in options}


def choose(agent: RawClient, session: str, option: str, value: str) -> dict[str, str]:
    params = {"sessionId": session, "configId": option, "value": value}
    return chosen(agent.call("session/set_config_option", params)["configOptions"])


def test_a_session_whose_crystal_and_then_whose_recipe_is_gone(begin: Begin, folder: Path) -> None:
    small = {"provider": "scripted", "model": "small", "responses": [{"repeat": True, "content": "Small."}]}
    other = write_recipe(folder, crystals={"small": small})
    agent = begin()
    session = agent.session(folder)
    choose(agent, session, "recipe", "other")
    assert choose(agent, session, "model", "small")["model"] == "small"
    agent.prompt(session, "Before.")
    assert agent.said() == "Small."
    agent.hang_up()
    write_recipe(folder)
    for number in range(2):
        agent = begin()
        options = chosen(agent.call("session/load", named(session, folder))["configOptions"])
        assert (options["recipe"], options["model"]) == ("other", "scripted:own")
        if not number:
            told = agent.until(lambda m: "no longer available" in json.dumps(m))["params"]["update"]
            assert "there is no model 'small'" in told["content"]["text"]
        agent.prompt(session, "After.")
        assert agent.updates("agent_message_chunk")[-1]["content"]["text"] == "Own."
        agent.hang_up()
    other.unlink()
    agent = begin()
    error = agent.error("session/load", named(session, folder))
    assert "no recipe is named 'other'" in error["message"]
    assert f"cantrip repl RECIPE --session {session}" in error["message"]
    assert agent.call("session/list")["sessions"][0]["sessionId"] == session


def test_a_recipe_that_is_chosen_while_a_prompt_runs(begin: Begin, folder: Path) -> None:
    other = write_recipe(folder)
    agent = begin([{"repeat": True, "delay_ms": 600, "content": "Said."}])
    session = agent.session(folder)
    for vanishes in (True, False):
        running = agent.start_prompt(session)
        assert choose(agent, session, "recipe", "other")["recipe"] == "other"
        agent.answer(running)
        write_recipe(folder)
        if vanishes:
            other.unlink()
            error = agent.error("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "Now."}]})
            assert "no recipe is named 'other'" in error["message"]
        else:
            agent.prompt(session, "Now.")
        told = chosen(agent.updates("config_option_update")[-1]["configOptions"])
        assert (told["recipe"] == "other", told["model"] == "scripted:own") == (not vanishes, not vanishes)
        write_recipe(folder)


def test_a_folder_by_any_name(begin: Begin, folder: Path, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folder)
    agent = begin()
    plain, linked = agent.session(folder), agent.session(link)
    for session in (plain, linked):
        agent.prompt(session)
    for spelled in (
        f"{folder}",
        f"{folder}/",
        f"{link}",
        f"{link}/",
        f"{folder}/../{folder.name}/.",
        f"{tmp_path}//link",
    ):
        found = {each["sessionId"] for each in agent.call("session/list", {"cwd": spelled})["sessions"]}
        assert found == {plain, linked}, spelled
    # They are told as they were named.
    assert {each["cwd"] for each in agent.call("session/list")["sessions"]} == {str(folder), str(link)}
    assert agent.call("session/list", {"cwd": str(tmp_path)})["sessions"] == []


def test_a_session_that_another_process_writes(begin: Begin, folder: Path) -> None:
    first, second = begin([{"chunks": ["a"], "delay_ms": 2_000}, {"content": "b"}]), begin()
    session = first.session(folder)
    prompt = first.start_prompt(session)
    first.until(lambda m: m.get("method") == "session/update")
    for method in ("session/load", "session/resume", "session/fork"):
        error = second.error(method, named(session, folder))
        assert (error["code"], error["data"]["reason"]) == (-32600, "session_in_use")
        assert "another process" in error["message"]
    assert "another process" in second.error("session/delete", {"sessionId": session})["message"]
    assert first.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert [each["sessionId"] for each in second.call("session/list")["sessions"]] == [session]


@pytest.mark.sandbox
def test_a_session_is_deleted_while_a_command_runs(begin: Begin, folder: Path, state: Path) -> None:
    agent = begin(
        [{"bash": "echo begun; sleep 600"}], medium="bash", gates=["done"], wards=[{"max_turns": 3}]
    )  # fmt: skip
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    agent.until(lambda m: "begun" in str(m.get("params", {}).get("update", {}).get("content")))
    below = psutil.Process(agent.process.pid).children(recursive=True)
    assert below
    assert agent.call("session/delete", {"sessionId": session}) == {}
    (ended,) = [message for message in agent.seen if message.get("id") == prompt]
    assert ended["result"]["stopReason"] == "cancelled"
    assert not [path for path in (state / "looms").iterdir() if session in path.name]
    running = [process for process in still_alive(below, 30) if "sleep" in " ".join(process.cmdline())]
    assert not running
    assert agent.error("session/load", named(session, folder))["code"] == -32002
    assert agent.session(folder)
