"""Sessions that outlive their process: load, resume, list, close, delete and fork, in real agents that share a state folder."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cantrip_acp.acp.sessions.session_store import SessionMetadata, SessionStore
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.query.thread import Endings
from tests.support.acp_client import SOON, RawClient
from tests.support.waiting import in_a_loom, wait_for

Open = Callable[..., RawClient]

TALK: list[dict[str, Any]] = [
    {"thinking": "Hm.", "content": "First.", "tool_calls": [{"gate": "write_file", "args": {"path": "a.txt", "content": "one\n"}}],
     "usage": {"prompt_tokens": 10, "completion_tokens": 5}},
    {"tool_calls": [{"gate": "read_file", "args": {"path": "nothing"}}, {"gate": "done", "args": {"answer": "made it"}}]},
    {"content": "Second."},
    {"content": "Third."},
    {"content": "Fourth."},
]  # fmt: skip


LOOK = """
try:
    print(x + 22)
except NameError:
    print('gone')
"""


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def again(recipe: Callable[..., str], state: Path) -> Iterator[Open]:
    """Starts agents on one recipe and one state folder."""
    running: list[RawClient] = []
    path: list[str] = []

    def begin(responses: list[dict[str, Any]] = TALK, **options: Any) -> RawClient:
        capabilities = options.pop("capabilities", {})
        client_options = {key: options.pop(key) for key in ("permit", "env") if key in options}
        if not path:
            options.setdefault("gates", ["done", "echo", "read_file", "write_file"])
            path.append(recipe(responses, **options))
        client = RawClient("--recipe", path[0], "--state-dir", str(state), **client_options)
        running.append(client)
        client.initialize(**capabilities)
        return client

    yield begin
    for client in running:
        client.close()


def named(session: str, folder: Path, **more: Any) -> dict[str, Any]:
    return {"sessionId": session, "cwd": str(folder), "mcpServers": [], **more}


def words(agent: RawClient, kind: str = "agent_message_chunk") -> list[str]:
    return [update["content"]["text"] for update in agent.updates(kind)]


def test_a_session_is_loaded_by_another_process(again: Open, folder: Path) -> None:
    first = again()
    session = first.session(folder)
    first.prompt(session, "Please make a file.")
    first.prompt(session, "And then?")
    live = [update for update in first.updates() if update["sessionUpdate"] == "tool_call"]
    (info,) = first.updates("session_info_update")
    assert info["title"] == "Make a file"
    assert first.hang_up() < SOON

    second = again()
    request = second.ask("session/load", named(session, folder))
    reply = second.answer(request)["result"]
    # Everything before the reply, the commands too.
    assert second.seen[-1]["id"] == request
    assert reply["modes"]["currentModeId"] == "sandboxed"
    assert reply["_meta"]["cantrip"]["turns"] == 3
    kinds = [update["sessionUpdate"] for update in second.updates()]
    assert kinds == [
        "user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "tool_call", "tool_call", "tool_call",
        "agent_message_chunk", "user_message_chunk", "agent_message_chunk", "session_info_update",
        "available_commands_update",
    ]  # fmt: skip
    second.quiet()
    assert words(second, "user_message_chunk") == ["Please make a file.", "And then?"]
    assert words(second) == ["First.", "\n\nmade it", "Second."]
    write, read, done = second.updates("tool_call")
    assert [call["toolCallId"] for call in (write, read, done)] == [call["toolCallId"] for call in live]
    assert (write["status"], write["kind"], write["locations"]) == ("completed", "edit", [{"path": f"{folder}/a.txt"}])
    assert write["content"][0] == {"type": "diff", "path": f"{folder}/a.txt", "oldText": None, "newText": "one\n"}
    assert (read["status"], done["rawInput"]) == ("failed", {"answer": "made it"})
    # The script goes on where it was, and the entity is the same.
    assert second.prompt(session, "More?")["stopReason"] == "end_turn"
    assert words(second)[-1] == "Third."
    with Loom.open(reply["_meta"]["cantrip"]["loom"], readonly=True) as loom:
        entities = {turn.entity_id for turn in loom.turns() if turn.role == "crystal"}
        assert entities == {reply["_meta"]["cantrip"]["entity_id"]}
        assert [turn.sequence for turn in loom.turns() if turn.role == "crystal"] == [1, 2, 3, 4]


def test_resume_replays_nothing(again: Open, folder: Path) -> None:
    first = again()
    session = first.session(folder)
    first.prompt(session)
    first.hang_up()
    second = again()
    second.call("session/resume", named(session, folder))
    assert second.updates() == []
    second.prompt(session)
    assert words(second) == ["Second."]


def test_it_survives_being_killed_in_the_middle_of_a_prompt(again: Open, folder: Path, state: Path) -> None:
    first = again([{"content": "One."}, {"content": "never", "delay_ms": 60_000}])
    session = first.session(folder)
    first.prompt(session, "The first.")
    first.start_prompt(session, "The second.")
    wait_for(lambda: in_a_loom(state, "The second."))
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = again()
    loaded = second.call("session/load", named(session, folder))
    assert loaded["_meta"]["cantrip"]["incomplete"] == "interrupted"
    assert words(second, "user_message_chunk") == ["The first.", "The second."]
    assert words(second) == ["One."]
    (listed,) = second.call("session/list")["sessions"]
    assert (listed["sessionId"], listed["title"]) == (session, "The first")


def test_a_session_that_nobody_spoke_in_can_be_loaded(again: Open, folder: Path) -> None:
    first = again()
    session = first.session(folder)
    os.kill(first.process.pid, signal.SIGKILL)
    first.process.wait()
    second = again()
    assert second.call("session/list") == {"sessions": []}
    second.call("session/load", named(session, folder))
    assert second.prompt(session)["stopReason"] == "end_turn"


def test_two_processes_on_one_session(again: Open, folder: Path) -> None:
    first, second = again(), again()
    session = first.session(folder)
    first.prompt(session)
    for method in ("session/load", "session/resume"):
        error = second.error(method, named(session, folder))
        assert (error["code"], error["data"]["reason"]) == (-32600, "session_in_use")
        assert "another process" in error["message"]
    assert "another process" in second.error("session/delete", {"sessionId": session})["message"]
    first.call("session/close", {"sessionId": session})
    second.call("session/load", named(session, folder))
    assert second.prompt(session)["stopReason"] == "end_turn"


def test_a_reply_names_the_turn_to_fork_from(again: Open, folder: Path) -> None:
    agent = again()
    session = agent.session(folder)
    first = agent.prompt(session, "One.")["_meta"]["cantrip"]["turn"]
    second = agent.prompt(session, "Two.")["_meta"]["cantrip"]["turn"]
    assert first != second
    asked = {**named(session, folder), "_meta": {"cantrip": {"turn": first}}}
    forked = agent.call("session/fork", asked)
    agent.call("session/load", named(forked["sessionId"], folder))
    assert words(agent, "user_message_chunk") == ["One."]


def test_a_session_in_a_database(again: Open, folder: Path, tmp_path: Path) -> None:
    first = again(loom={"store": f"sqlite:{tmp_path}/looms.db"})
    session, other = first.session(folder), first.session(folder)
    first.prompt(session, "Kept with others.")
    first.prompt(other, "Somebody else's.")
    second = again()
    assert second.error("session/load", named(session, folder))["data"]["reason"] == "session_in_use"
    first.hang_up()
    second.call("session/load", named(session, folder))
    assert words(second, "user_message_chunk") == ["Kept with others."]
    forked = second.call("session/fork", named(session, folder))
    assert forked["_meta"]["cantrip"]["turns"] == 2
    second.prompt(session, "On.")
    assert words(second)[-1] == "Second."
    assert {each["sessionId"] for each in second.call("session/list")["sessions"]} == {
        session,
        other,
        forked["sessionId"],
    }


def test_loading_a_session_that_lives_here(again: Open, folder: Path) -> None:
    agent = again()
    session = agent.session(folder)
    agent.prompt(session)
    agent.seen.clear()
    agent.call("session/load", named(session, folder))
    assert words(agent) == ["First.", "\n\nmade it"]
    agent.prompt(session)
    assert words(agent)[-1] == "Second."


def test_a_list_in_pages(again: Open, folder: Path, state: Path, tmp_path: Path) -> None:
    agent = again()
    made = agent.session(folder)
    agent.prompt(made, "The real one.")
    store = SessionStore(state)
    elsewhere = tmp_path / "elsewhere"
    for number in range(500):
        session_id = f"sess_{number:024x}"
        cwd = str(elsewhere if number % 5 == 0 else folder)
        path = store.loom_path(session_id)
        path.write_text('{"type":"loom","id":"x","format":1}\n')
        os.utime(path, (1_000_000 + number, 1_000_000 + number))
        store.save(SessionMetadata(id=session_id, cwd=cwd, entity_id="e", loom=str(path), title=f"Number {number}"))
    seen: list[dict[str, Any]] = []
    cursor = None
    pages = 0
    began = time.monotonic()
    while True:
        page = agent.call("session/list", {"cursor": cursor})
        pages += 1
        seen += page["sessions"]
        cursor = page.get("nextCursor")
        if cursor is None:
            break
    assert time.monotonic() - began < SOON
    assert (len(seen), pages) == (501, 11)
    assert len({each["sessionId"] for each in seen}) == 501
    assert seen[0] == {
        "sessionId": made, "cwd": str(folder), "title": "The real one", "updatedAt": seen[0]["updatedAt"],
    }  # fmt: skip
    assert [each["title"] for each in seen[1:4]] == ["Number 499", "Number 498", "Number 497"]
    assert seen[1]["updatedAt"] == "1970-01-12T13:54:59.000Z"
    only = agent.call("session/list", {"cwd": str(elsewhere)})
    assert {each["cwd"] for each in only["sessions"]} == {str(elsewhere)}
    assert agent.call("session/list", {"cwd": str(tmp_path / "unknown")}) == {"sessions": []}
    for params, field in (
        ({"cwd": "relative"}, "cwd"),
        ({"cursor": "nonsense!"}, "cursor"),
        ({"cursor": "AAAA"}, "cursor"),
    ):
        assert agent.error("session/list", params)["data"]["field"] == field


def test_the_note_is_rebuilt_from_the_loom(again: Open, folder: Path, state: Path) -> None:
    first = again()
    session = first.session(folder)
    first.call("session/set_mode", {"sessionId": session, "modeId": "trusted"})
    first.prompt(session, "Write it down.")
    first.hang_up()
    note = state / "looms" / f"{session}.session.json"
    before = json.loads(note.read_bytes())
    # What the agent was started with is no matter of the session.
    del before["started"]
    for damage in (lambda: note.unlink(), lambda: note.write_text("{"), lambda: note.write_text("[]")):
        damage()
        agent = again()
        (listed,) = agent.call("session/list")["sessions"]
        assert (listed["title"], listed["cwd"]) == ("Write it down", str(folder))
        assert agent.call("session/resume", named(session, folder))["modes"]["currentModeId"] == "trusted"
        assert json.loads(note.read_bytes()) == before
        agent.hang_up()


@pytest.mark.parametrize(
    "hostile",
    [
        "../../etc/passwd",
        "sess_../../x",
        "sess_x/../../y",
        "/etc/passwd",
        "sess_\u0000",
        "",
        ".",
        "sess_" + "x" * 500,
        "sess_é",
        "cast_1",
    ],
)
def test_hostile_ids(again: Open, folder: Path, state: Path, tmp_path: Path, hostile: str) -> None:
    victim = tmp_path / "x.loom.jsonl"
    victim.write_text("precious")
    agent = again()
    for method in ("session/load", "session/resume", "session/fork"):
        assert agent.error(method, named(hostile, folder))["code"] == -32002
    for method in ("session/close", "session/set_mode"):
        assert agent.error(method, {"sessionId": hostile, "modeId": "ask"})["code"] == -32002
    assert agent.call("session/delete", {"sessionId": hostile}) == {}
    assert victim.read_text() == "precious"


def test_close_and_delete(again: Open, folder: Path, state: Path) -> None:
    agent = again([{"content": "One."}, {"content": "never", "delay_ms": 60_000}])
    session = agent.session(folder)
    agent.prompt(session)
    prompt = agent.start_prompt(session)
    agent.call("session/close", {"sessionId": session})
    (ended,) = [message for message in agent.seen if message.get("id") == prompt]
    assert ended["result"]["stopReason"] == "cancelled"
    assert (
        agent.error("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "x"}]})["code"]
        == -32002
    )
    assert agent.error("session/close", {"sessionId": session})["code"] == -32002
    assert len(agent.call("session/list")["sessions"]) == 1
    agent.call("session/resume", named(session, folder))
    assert agent.call("session/delete", {"sessionId": session}) == {}
    assert agent.call("session/delete", {"sessionId": session}) == {}
    assert agent.call("session/list") == {"sessions": []}
    assert not [path for path in (state / "looms").iterdir() if session in path.name]
    assert agent.error("session/load", named(session, folder))["code"] == -32002


def test_a_fork_from_any_turn(again: Open, folder: Path, state: Path) -> None:
    agent = again([{"content": f"Answer {n}."} for n in range(1, 9)])
    session = agent.session(folder)
    for number in range(1, 4):
        agent.prompt(session, f"Question {number}?")
    forked = agent.call("session/fork", named(session, folder, _meta={"cantrip": {"turn": 2}}))
    assert forked["_meta"]["cantrip"]["turns"] == 2
    assert forked["sessionId"] != session
    agent.prompt(forked["sessionId"], "Otherwise?")
    # The answers above the fork ended as they did, also in the loom of the fork.
    with Loom.open(state / "looms" / f"{forked['sessionId']}.loom.jsonl", readonly=True) as loom:
        endings = Endings(loom)
        assert [endings.cast(each).outcome for each in loom.cast_starts()] == ["text", "text", "text"]
    agent.prompt(session, "On?")
    last = agent.call("session/fork", named(session, folder))
    assert last["_meta"]["cantrip"]["turns"] == 4
    assert agent.error("session/fork", named(session, folder, _meta={"cantrip": {"turn": 99}}))["code"] == -32602
    agent.hang_up()
    other = again()
    other.call("session/load", named(forked["sessionId"], folder))
    assert words(other, "user_message_chunk") == ["Question 1?", "Question 2?", "Otherwise?"]
    assert words(other) == ["Answer 1.", "Answer 2.", "Answer 3."]
    # One that is on disk alone can be forked, too, and lives on untouched.
    again_forked = other.call("session/fork", named(session, folder))
    assert again_forked["_meta"]["cantrip"]["turns"] == 4
    other.seen.clear()
    other.call("session/load", named(session, folder))
    assert words(other, "user_message_chunk") == ["Question 1?", "Question 2?", "Question 3?", "On?"]
    titles = {each["sessionId"]: each["title"] for each in other.call("session/list")["sessions"]}
    assert titles[forked["sessionId"]] == "Question 1 (fork)"


def test_a_fork_names_the_session_and_the_turn_that_it_comes_from(again: Open, folder: Path, state: Path) -> None:
    agent = again([{"content": "An answer."}] * 9)
    session = agent.session(folder)
    assert "_meta" not in agent.call("session/list")["sessions"][0]

    def fork(of: str, turn: str | int) -> tuple[str, dict[str, Any]]:
        reply = agent.call("session/fork", named(of, folder, _meta={"cantrip": {"turn": turn}}))
        return reply["sessionId"], reply["_meta"]["cantrip"]["forkedFrom"]

    unsaid, where = fork(session, 0)
    assert (where["sessionId"], where["turn"]) == (session, 0)
    agent.prompt(session, "First?")
    turn = agent.prompt(session, "Second?")["_meta"]["cantrip"]["turn"]
    agent.prompt(session, "Third?")
    at_turn, said = fork(session, turn)
    assert (said["sessionId"], said["turn"]) == (session, turn)
    agent.prompt(at_turn, "Third, otherwise?")
    of_fork, said_again = fork(at_turn, turn)
    assert (said_again["sessionId"], said_again["turn"], said_again["at"] > said["at"]) == (at_turn, turn, True)
    # A client names the turn before the first message as 0.
    at_start, begun = fork(session, 0)
    assert (begun["sessionId"], begun["turn"]) == (session, 0)
    agent.prompt(at_start, "First, otherwise?")
    agent.prompt(of_fork, "Third, once more?")
    forks = {at_turn: said, of_fork: said_again, at_start: begun}
    agent.hang_up()
    # So does a list of later, also if a metadata file is lost, or was written by a version that did not know of it.
    (state / "looms" / f"{of_fork}.session.json").unlink()
    (state / "looms" / f"{at_start}.session.json").unlink()
    assert json.loads((state / "looms" / f"{unsaid}.session.json").read_text())["forked_from"]["turn"] == 0
    kept = state / "looms" / f"{at_turn}.session.json"
    other = again()
    listed = {each["sessionId"]: each for each in other.call("session/list")["sessions"]}
    assert {each: listed[each]["_meta"]["cantrip"]["forkedFrom"] for each in forks} == forks
    assert "_meta" not in listed[session]
    other.seen.clear()
    loaded = other.call("session/load", named(at_turn, folder))
    assert loaded["_meta"]["cantrip"]["forkedFrom"] == said
    messages = other.updates("user_message_chunk")
    assert messages[-1]["_meta"]["cantrip"]["after"] == turn
    # What a fork comes from is known also when that is gone.
    other.call("session/delete", {"sessionId": session})
    left = {
        each["sessionId"]: each["_meta"]["cantrip"]["forkedFrom"] for each in other.call("session/list")["sessions"]
    }
    assert left == forks
    other.hang_up()
    fields = json.loads(kept.read_text())
    del fields["forked_from"]
    kept.write_text(json.dumps(fields))
    third = again()
    (entry,) = [each for each in third.call("session/list")["sessions"] if each["sessionId"] == at_turn]
    assert "_meta" not in entry
    assert "forkedFrom" not in third.call("session/load", named(at_turn, folder))["_meta"]["cantrip"]


def test_further_folders(again: Open, folder: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    (more / "there.txt").write_text("seen\n")
    (tmp_path / "secret.txt").write_text("unseen\n")
    calls = [
        {"gate": "read_file", "args": {"path": str(more / "there.txt")}},
        {"gate": "write_file", "args": {"path": str(more / "new.txt"), "content": "x"}},
        {"gate": "read_file", "args": {"path": str(tmp_path / "secret.txt")}},
        {"gate": "read_file", "args": {"path": f"{more}/../secret.txt"}},
        {"gate": "done", "args": {"answer": "ok"}},
    ]
    agent = again([{"tool_calls": calls}, {"content": "on"}])
    session = agent.session(folder, additionalDirectories=[str(more), str(more)])
    agent.prompt(session)
    results = {
        u["toolCallId"]: u for u in agent.updates("tool_call_update") if u.get("status") in ("completed", "failed")
    }
    assert [u["status"] for u in results.values()] == ["completed", "completed", "failed", "failed", "completed"]
    assert (more / "new.txt").read_text() == "x"
    assert "unseen" not in json.dumps(list(results.values()))
    assert agent.call("session/list")["sessions"][0]["additionalDirectories"] == [str(more)]
    for bad in ("relative", str(tmp_path / "absent"), str(more / "there.txt")):
        error = agent.error(
            "session/new", {"cwd": str(folder), "mcpServers": [], "additionalDirectories": [str(more), bad]}
        )
        assert error["data"]["field"] == "additionalDirectories[1]"


@pytest.mark.sandbox
def test_further_folders_in_the_sandbox(again: Open, folder: Path, tmp_path: Path) -> None:
    more = tmp_path / "more"
    more.mkdir()
    (more / "there.txt").write_text("seen\n")
    agent = again(
        [{"bash": f"cat {more}/there.txt && echo w > {more}/new && cantrip_read_file {more}/there.txt"}, {"content": "."}] * 2,
        medium="bash", gates=["done", "read_file"], wards=[{"max_turns": 5}, {"bash_writable_paths": ["workspace"]}],
    )  # fmt: skip
    agent.prompt(agent.session(folder, additionalDirectories=[str(more)]))
    assert (more / "new").read_text() == "w\n"
    (more / "new").unlink()
    agent.prompt(agent.session(folder))
    assert not (more / "new").exists()


@pytest.mark.sandbox
@pytest.mark.parametrize("way", ["session/load", "session/fork"])
@pytest.mark.parametrize("lack", ["gone", "of another Python"])
def test_a_snapshot_that_is_not_to_be_had_is_never_replaced_by_a_replay(
    again: Open, folder: Path, state: Path, way: str, lack: str
) -> None:
    agent = again(
        [{"code": "x = 20; open('made', 'a').write('x')"}, {"content": "."}, {"code": LOOK}, {"content": "."}],
        medium="code", gates=["done"], loom={"snapshots": True},
        wards=[{"max_turns": 5}, {"code_writable_paths": ["workspace"]}],
    )  # fmt: skip
    session = agent.session(folder)
    agent.prompt(session)
    agent.hang_up()
    (path,) = [p for p in state.rglob("*.loom.jsonl") if session in p.name]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        # What is written anew needs no checksum.
        line.pop("sum", None)
        line.pop("prev", None)
        if line["type"] == "snapshot":
            line["data"] |= {"python": "3.7"} if lack != "gone" else {"error": "it could not be kept"}
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    other = again()
    reply = other.call(way, named(session, folder))
    assert reply["_meta"]["cantrip"]["state"] == ("lost" if lack == "gone" else "snapshot")
    other.prompt(reply.get("sessionId", session))
    last = [u for u in other.updates("tool_call_update") if "rawOutput" in u][-1]["rawOutput"]["output"]
    assert "gone" in last
    # The user is told as well, and no recorded cell has run.
    told = json.dumps([u for u in other.updates() if u["sessionUpdate"] not in ("tool_call", "tool_call_update")])
    assert "functions and imports of earlier cells are gone" in told
    assert lack == "gone" or "made by Python 3.7" in told
    assert (folder / "made").read_text() == "x"
    other.hang_up()
    with Loom.open(reply["_meta"]["cantrip"]["loom"], readonly=True) as loom:
        outputs = [turn.observation.output for turn in loom.turns() if turn.observation.output]
    # The entity is told before what its next cell printed.
    assert "functions and imports of earlier cells are gone" in outputs[-1].stderr


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("wards", "loom", "kept"),
    [([], {}, "replay"), ([], {"snapshots": True}, "snapshot"), ([{"code_writable_paths": ["workspace"]}], {}, "lost")],
)
def test_what_python_held(again: Open, folder: Path, wards: list[Any], loom: dict[str, Any], kept: str) -> None:
    agent = again(
        [{"code": "x = 20; echo('once')"}, {"content": "."}, {"code": LOOK}, {"content": "."}],
        medium="code", gates=["done", "echo"], wards=[{"max_turns": 5}, *wards], loom=loom,
    )  # fmt: skip
    session = agent.session(folder)
    agent.prompt(session)
    agent.hang_up()
    other = again()
    reply = other.call("session/resume", named(session, folder))
    assert reply["_meta"]["cantrip"]["state"] == kept
    other.prompt(session)
    last = [u for u in other.updates("tool_call_update") if "rawOutput" in u][-1]["rawOutput"]["output"]
    assert ("gone" if kept == "lost" else "42") in last
    # The gate of the earlier cell did not act again.
    assert not [u for u in other.updates("tool_call") if u.get("name") == "echo"]
    path = reply["_meta"]["cantrip"]["loom"]
    with Loom.open(path, readonly=True) as read:
        texts = [record.text for record in read.records() if type(record).__name__ == "ContextRecord"]
    assert any("opened again" in text for text in texts)


@pytest.mark.timing
def test_a_long_session_is_loaded_quickly(again: Open, folder: Path) -> None:
    agent = again(
        [{"repeat": True, "tool_calls": [{"gate": "echo", "args": {"text": "x" * 500}}]}], wards=[{"max_turns": 1000}]
    )
    session = agent.session(folder)
    for _ in range(2):
        agent.prompt(session)
    agent.hang_up()
    other = again()
    process = psutil.Process(other.process.pid)
    before = sum(process.cpu_times()[:2])
    reply = other.call("session/load", named(session, folder))
    # The agent's own work: this client looks at every update closely, and other tests run beside.
    took = sum(process.cpu_times()[:2]) - before
    assert reply["_meta"]["cantrip"]["turns"] == 2000
    assert len(other.updates("tool_call")) == 2000
    assert took < 3, took


def test_a_fork_from_before_the_first_utterance_goes_on_without_a_message(again: Open, folder: Path) -> None:
    script = [{"content": "One answer."}, {"content": "Another."}, {"content": "A third."}]
    agent = again(script)
    session = agent.session(folder)
    root = {"cantrip": {"turn": 0, "resume": True}}
    error = agent.error("session/fork", named(session, folder, _meta=root))
    assert (error["code"], "this session has no prompt yet" in str(error)) == (-32602, True)
    agent.prompt(session, "Please.")
    agent.prompt(session, "And more.")
    forked = agent.call("session/fork", named(session, folder, _meta=root))
    assert "turns" not in forked["_meta"]["cantrip"]
    agent.close()
    other = again(script)
    other.call("session/load", named(forked["sessionId"], folder))
    assert words(other) == []
    assert other.call("session/prompt", {"sessionId": forked["sessionId"], "prompt": []})["stopReason"] == "end_turn"
    assert words(other) == ["One answer."]
    path = forked["_meta"]["cantrip"]["loom"]
    # Of a fork that went on so, the same state can be had again; so it can by the turn's id.
    second = other.call("session/fork", named(forked["sessionId"], folder, _meta=root))["sessionId"]
    assert other.call("session/prompt", {"sessionId": second, "prompt": []})["stopReason"] == "end_turn"
    assert words(other) == ["One answer.", "One answer."]
    other.close()
    with Loom.open(path, readonly=True) as loom:
        starts = [start for start, _ in loom.casts()]
        assert [start.intent for start in starts] == ["Please.", "Please."]
        assert starts[1].resumes == starts[0].id
        (call,) = [turn.id for turn in loom.turns() if turn.role == "call"]
    last = again(script)
    by_id = {"cantrip": {"turn": call, "resume": True}}
    third = last.call("session/fork", named(forked["sessionId"], folder, _meta=by_id))["sessionId"]
    assert last.call("session/prompt", {"sessionId": third, "prompt": []})["stopReason"] == "end_turn"
    assert words(last, "user_message_chunk") == []
    # Without ``resume`` it is a session in which nobody has said anything.
    empty = last.call("session/fork", named(forked["sessionId"], folder, _meta={"cantrip": {"turn": 0}}))
    assert "turns" not in empty["_meta"]["cantrip"]
    assert last.prompt(empty["sessionId"], "Hello.")["stopReason"] == "end_turn"


def test_a_prompt_that_was_cut_before_a_word_goes_on_in_a_fork(again: Open, folder: Path, state: Path) -> None:
    script = [{"content": "Late.", "delay_ms": 3_000}]
    agent = again(script)
    session = agent.session(folder)
    asked = agent.start_prompt(session, "Please.")
    wait_for(lambda: in_a_loom(state, "Please."))
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(asked)["result"]["stopReason"] == "cancelled"
    forked = agent.call("session/fork", named(session, folder, _meta={"cantrip": {"resume": True}}))["sessionId"]
    assert agent.call("session/prompt", {"sessionId": forked, "prompt": []})["stopReason"] == "end_turn"
    assert words(agent)[-1] == "Late."


def test_a_fork_that_goes_on_without_a_message(again: Open, folder: Path, state: Path) -> None:
    """``_meta.cantrip.resume`` and an empty prompt: the crystal is asked again, and nobody has said anything more."""
    script = [
        {"tool_calls": [{"gate": "echo", "args": {"text": "one"}}]},
        {"content": "The original."},
        {"content": "Another answer."},
    ]
    agent = again(script)
    session = agent.session(folder)
    assert agent.error("session/prompt", {"sessionId": session, "prompt": []})["code"] == -32602
    agent.prompt(session, "Please.")
    assert agent.error("session/prompt", {"sessionId": session, "prompt": []})["code"] == -32602
    for wrong, where in ((99, "turn"), (1, "resume")):
        meta = {"turn": wrong, "resume": "yes" if where == "resume" else True}
        error = agent.error("session/fork", named(session, folder, _meta={"cantrip": meta}))
        assert (error["code"], where in str(error)) == (-32602, True)
    forked = agent.call("session/fork", named(session, folder, _meta={"cantrip": {"turn": 1, "resume": True}}))[
        "sessionId"
    ]
    # It outlives the process, as every session does.
    agent.close()
    other = again(script)
    other.call("session/load", named(forked, folder))
    assert words(other, "user_message_chunk") == ["Please."]
    assert other.call("session/prompt", {"sessionId": forked, "prompt": []})["stopReason"] == "end_turn"
    assert words(other)[-1] == "The original."
    assert words(other, "user_message_chunk") == ["Please."]
    (path,) = [p for p in state.rglob("*.loom.jsonl") if forked in p.name]
    other.close()
    with Loom.open(path, readonly=True) as loom:
        starts = [start for start, _ in loom.casts()]
        assert [start.intent for start in starts] == ["Please.", "Please."]
        assert starts[1].resumes == starts[0].id
