"""What a client is shown of a session that is loaded is what it was shown while it happened, in the same order."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from tests.support import postgres_server as pgserver
from tests.support.acp_client import RawClient
from tests.support.loom_stores import KEPT
from tests.support.waiting import wait_for

CALLED: dict[str, list[dict[str, Any]]] = {
    "conversation": [
        {"thinking": "Hm.", "content": "First.", "tool_calls": [
            {"gate": "write_file", "args": {"path": "a.txt", "content": "one\n"}},
            {"gate": "read_file", "args": {"path": "a.txt"}},
            {"gate": "read_file", "args": {"path": "none"}},
        ]},
        {"content": "Second.", "tool_calls": [
            {"gate": "call_agent", "args": {"intent": "Look."}},
            {"gate": "list_dir", "args": {}},
        ]},
        {"tool_calls": [{"gate": "done", "args": {"answer": "made it"}}]},
    ],
    "bash": [
        {"content": "First.", "bash": "echo hi; cantrip_write_file a.txt x; cantrip_read_file a.txt; cat none; exit 3"},
        {"tool_calls": [
            {"gate": "bash", "args": {"command": "echo one; cantrip_list_dir"}},
            {"gate": "read_file", "args": {"path": "a.txt"}},
            {"gate": "bash", "args": {"command": "cantrip_read_file a.txt; false"}},
        ]},
        {"bash": "cantrip_call_agent 'Look.'; cantrip_read_file a.txt"},
        {"bash": "cantrip_done fin"},
    ],
    "code": [
        {"content": "First.", "code": "write_file('a.txt', 'x')\nprint(read_file('a.txt'))\nread_file('none')"},
        {"tool_calls": [
            {"gate": "python", "args": {"code": "1 + 1"}},
            {"gate": "read_file", "args": {"path": "a.txt"}},
            {"gate": "python", "args": {"code": "call_agent('Look.')\nprint(read_file('a.txt'))\n7"}},
            {"gate": "python", "args": {"code": "list_dir()"}},
        ]},
        {"code": "done('fin')"},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def postgres() -> Iterator[pgserver.Server]:
    try:
        with pgserver.running() as server:
            yield server
    except pgserver.NoServer as why:
        pytest.skip(str(why))


def seen(agent: RawClient) -> tuple[list[tuple[str, str]], dict[str, dict[str, Any]]]:
    """What was said and called in order, and each call as it stood in the end."""
    order: list[tuple[str, str]] = []
    calls: dict[str, dict[str, Any]] = {}
    children: dict[str, list[dict[str, Any]]] = {}
    spoken = None
    for update in agent.updates():
        kind = update.pop("sessionUpdate")
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            text = update["content"]["text"]
            if spoken == (kind, update["messageId"]):
                order[-1] = (kind, order[-1][1] + text)
            else:
                order.append((kind, text))
            spoken = (kind, update["messageId"])
        elif kind == "tool_call":
            order.append((kind, update["toolCallId"]))
            calls[update["toolCallId"]] = update
            spoken = None
        elif kind == "tool_call_update":
            # An update has what children did since the last one.
            new = update.get("_meta", {}).get("cantrip", {}).pop("children", [])
            children.setdefault(update["toolCallId"], []).extend(new)
            calls[update["toolCallId"]].update(update)
        if kind == "tool_call":
            children[update["toolCallId"]] = update.get("_meta", {}).get("cantrip", {}).pop("children", [])
    for call_id, actions in children.items():
        # Children that ran beside each other are loaded one after the other.
        calls[call_id]["children"] = sorted(actions, key=lambda action: str(action["number"]))
    return order, calls


@pytest.mark.sandbox
@pytest.mark.parametrize("medium", list(CALLED))
def test_the_past_is_shown_as_it_was_live(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, medium: str
) -> None:
    path = recipe(
        CALLED[medium], medium=medium, gates=["done", "read_file", "write_file", "list_dir", "call_agent"],
        wards=[{"max_turns": 9}, {"max_depth": 1}, {"bash_writable_paths": ["workspace"]}],
        crystal={"children": [{"responses": [{"content": "Seen."}]}]},
    )  # fmt: skip
    shown = []
    session = ""
    for method in ("session/prompt", "session/load"):
        agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
        try:
            agent.initialize()
            if method == "session/prompt":
                session = agent.session(folder)
                agent.prompt(session, "Go.")
            else:
                agent.call(method, {"sessionId": session, "cwd": str(folder), "mcpServers": []})
            shown.append(seen(agent))
        finally:
            agent.close()
    (order, calls), (order_again, calls_again) = shown
    assert order_again == order
    assert calls_again == calls


def test_a_file_that_was_replaced_is_not_shown_as_a_new_one(
    recipe: Callable[..., str], folder: Path, tmp_path: Path
) -> None:
    (folder / "old at line 7.txt").write_text("one\ntwo\nthree\n")

    def wrote(path: str, content: str) -> dict[str, Any]:
        return {"tool_calls": [{"gate": "write_file", "args": {"path": path, "content": content}}]}

    edit = {"path": "old at line 7.txt", "old_text": "2\n", "new_text": "zwei\n"}
    path = recipe(
        [wrote("old at line 7.txt", "1\n2\n3\n"), wrote("old at line 7.txt", "1\n2\n3\n"), wrote("new.txt", "n\n"),
         {"tool_calls": [{"gate": "edit_file", "args": edit}]}, {"content": "Done."}],
        gates=["write_file", "edit_file", "done"],
    )  # fmt: skip
    agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
    try:
        agent.initialize()
        session = agent.session(folder)
        agent.prompt(session)
        _, live = seen(agent)
        agent.call("session/close", {"sessionId": session})
        agent.seen.clear()
        agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        loaded = agent.updates("tool_call")
    finally:
        agent.close()
    assert [[part["type"] for part in call["content"]] for call in live.values()] == [
        ["diff"], ["content"], ["diff"], ["diff"],
    ]  # fmt: skip
    assert [call["content"] for call in loaded] == [call["content"] for call in live.values()]
    (loom,) = (tmp_path / "state" / "looms").glob("*.loom.jsonl")
    _as_an_older_version_wrote(loom)
    agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
    try:
        agent.initialize()
        agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        replaced, same, new, edited = agent.updates("tool_call")
    finally:
        agent.close()
    assert replaced["content"][0]["content"]["text"].startswith("updated old at line 7.txt (3 lines")
    assert same["content"][0]["content"]["text"].startswith("unchanged: old at line 7.txt")
    # Nothing is guessed from the text of a result: no diff, no location.
    assert new["content"][0]["content"]["text"].startswith("created new.txt")
    assert "old at line 7.txt" in edited["content"][0]["content"]["text"]
    assert [call["title"] for call in (replaced, edited)] == ["write_file", "edit_file"]
    assert "locations" not in edited


def _as_an_older_version_wrote(loom: Path) -> None:
    """Take out of a loom what gate records did not keep once."""
    lines = []
    for line in loom.read_text().splitlines():
        record = json.loads(line)
        record.pop("sum", None)
        for call in record.get("observation", {}).get("results", []):
            for key in ("call_id", "parent_call_id", "title", "kind", "locations", "diffs"):
                call.pop(key, None)
        lines.append(json.dumps(record))
    loom.write_text("".join(f"{line}\n" for line in lines))
    loom.with_name(f"{loom.name}.index").unlink(missing_ok=True)


def write(path: str, text: str) -> str:
    return f"write_file({path!r}, {text!r})"


BESIDE = "from threading import Thread\nboth = [Thread(target=write_file, args=a) for a in [('a.txt', 'x'), ('b.txt', 'y')]]\n"
BESIDE += "[t.start() for t in both]\n[t.join() for t in both]"

ASKED: dict[str, list[dict[str, Any]]] = {
    "conversation": [
        {"tool_calls": [
            {"gate": "write_file", "args": {"path": "a.txt", "content": "x"}},
            {"gate": "write_file", "args": {"path": "b.txt", "content": "y"}},
            {"gate": "edit_file", "args": {"path": "long.txt", "old_text": "line 500", "new_text": "line five hundred"}},
            {"gate": "call_agent_batch", "args": {"requests": ["Look.", "Look."]}},
        ]},
        {"content": "Done."},
        {"tool_calls": [{"gate": "write_file", "args": {"path": "c.txt", "content": "z"}}]},
    ],
    "bash": [
        {"bash": "cantrip_write_file a.txt x & cantrip_write_file b.txt y & wait"},
        {"bash": "cantrip_edit_file long.txt 'line 500' 'line five hundred'"},
        {"bash": "cantrip_call_agent_batch '[\"Look.\", \"Look.\"]'"},
        {"content": "Done."},
        {"bash": "echo before; cantrip_write_file c.txt z"},
    ],
    "code": [
        {"code": BESIDE},
        {"code": "edit_file('long.txt', 'line 500', 'line five hundred')"},
        {"code": "call_agent_batch(['Look.', 'Look.'])"},
        {"content": "Done."},
        # What it prints after the cancel is shown too.
        {"code": "print('before')\ntry:\n    write_file('c.txt', 'z')\nfinally:\n    print('after')"},
    ],
}  # fmt: skip


@pytest.mark.sandbox
@pytest.mark.parametrize("store", KEPT)
@pytest.mark.parametrize("medium", list(ASKED))
def test_calls_beside_each_other_refused_and_cancelled_are_shown_again(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, medium: str, store: str, request: pytest.FixtureRequest
) -> None:
    loom: dict[str, Any] = {}
    if store == "sqlite":
        loom = {"store": f"sqlite:{tmp_path}/looms.db"}
    elif store == "postgres":
        loom = {"store": request.getfixturevalue("postgres").url(f"calls-{medium}")}
    (folder / "long.txt").write_text("".join(f"line {number}\n" for number in range(1000)))
    path = recipe(
        ASKED[medium], medium=medium, gates=["done", "write_file", "edit_file", "call_agent_batch"], loom=loom,
        wards=[{"max_turns": 9}, {"max_depth": 1}],
        crystal={"children": [{"responses": [{"content": "Slow.", "delay_ms": 500}]}, {"responses": [{"content": "Quick."}]}]},
    )  # fmt: skip
    agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"), permit=None)
    try:
        agent.initialize()
        session = agent.session(folder)
        prompt = agent.start_prompt(session, "Go.")
        writes: list[dict[str, Any]] = []
        while "answered" not in writes[-1:] and len(writes) < 3:
            message = agent.next()
            if message.get("id") == prompt and "method" not in message:
                break
            if message.get("method") != "session/request_permission":
                continue
            if "write_file" not in str(message["params"]["toolCall"].get("name", message["params"]["toolCall"])):
                agent.decide(message, "allow_once")
                continue
            if "each" in [option["optionId"] for option in message["params"]["options"]]:
                # Both edits in one question: each is looked at alone.
                agent.decide(message, "each")
                continue
            writes.append(message)
            if medium == "conversation":
                # The second is refused.
                agent.decide(message, "reject_once" if len(writes) == 2 else "allow_once")
            elif len(writes) == 2:
                # The call that came first ends last.
                agent.decide(writes[1], "reject_once")
                refused = writes[1]["params"]["toolCall"]["toolCallId"]
                agent.until(lambda m, refused=refused: refused in str(m) and "failed" in str(m))
                agent.decide(writes[0], "allow_once")
            if len(writes) == 2:
                agent.permit = "allow_once"
                agent.answer(prompt)
                break
        assert len(writes) == 2
        agent.permit = None
        prompt = agent.start_prompt(session, "Once more.")
        while True:
            message = agent.until(lambda m: m.get("method") == "session/request_permission")
            if (
                "c.txt" in str(message["params"])
                and "echo" not in str(message["params"])
                and "print" not in str(message["params"])
            ):
                break
            agent.decide(message, "allow_once")
        agent.tell("session/cancel", {"sessionId": session})
        agent.decide(message, "cancelled")
        assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
        live = seen(agent)
    finally:
        agent.close()
    again = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
    try:
        again.initialize()
        again.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        order, calls = seen(again)
    finally:
        again.close()
    assert order == live[0]
    assert calls == live[1]
    edits = [c for c in calls.values() if c["name"] == "edit_file"]
    assert edits[0]["content"][0]["newText"].splitlines()[500] == "line five hundred"
    assert edits[0]["locations"][0]["line"] == 501


def asked_for(intent: str, loom: str) -> bool:
    with Loom.open(loom, readonly=True) as held:
        return intent in [start.intent for start, _ in held.casts()]


@pytest.mark.parametrize("store", KEPT)
def test_children_and_unanswered_prompts_wherever_the_loom_is(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    loom: dict[str, Any] = {}
    if store == "sqlite":
        loom = {"store": f"sqlite:{tmp_path}/looms.db"}
    elif store == "postgres":
        loom = {"store": request.getfixturevalue("postgres").url("children")}
    asks = {"gate": "call_agent_batch", "args": {"requests": ["Look here.", "Look there."]}}
    path = recipe(
        [{"tool_calls": [asks]}, {"content": "All."}, {"content": "never", "delay_ms": 60_000}], loom=loom,
        gates=["done", "call_agent_batch"], wards=[{"max_turns": 9}, {"max_depth": 1}],
        crystal={"children": [{"responses": [{"content": "Seen here."}]}, {"responses": [{"content": "Seen there."}]}]},
    )  # fmt: skip
    shown = []
    sessions: list[str] = []
    for method in ("session/prompt", "session/load"):
        agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
        try:
            agent.initialize()
            if method == "session/prompt":
                sessions = [agent.session(folder) for _ in range(2)]
                first, _ = [agent.prompt(each, "Go.")["_meta"]["cantrip"]["loom"] for each in sessions]
                agent.seen.clear()
                agent.prompt(agent.session(folder), "Go.")
                shown.append(agent.updates("tool_call_update")[-1]["content"])
                agent.start_prompt(sessions[0], "Nobody answers.")
                # What is told of a server has no password.
                wait_for(partial(asked_for, "Nobody answers.", loom["store"] if store == "postgres" else first))
            else:
                agent.call(method, {"sessionId": sessions[0], "cwd": str(folder), "mcpServers": []})
                shown.append(agent.updates("tool_call")[0]["content"])
                asked = [update["content"]["text"] for update in agent.updates("user_message_chunk")]
                assert asked == ["Go.", "Nobody answers."]
        finally:
            agent.close()
    assert "Seen here." in str(shown[0])
    assert "Seen there." in str(shown[0])
    assert shown[1] == shown[0]


def test_sounds_and_pictures_are_there_again(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    path = recipe([{"content": "Heard."}])
    sound = {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}
    picture = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
    session = ""
    for method in ("session/prompt", "session/load"):
        agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
        try:
            agent.initialize()
            if method == "session/prompt":
                session = agent.session(folder)
                text = {"type": "text", "text": "What is this?"}
                agent.call(method, {"sessionId": session, "prompt": [text, sound, picture]})
            else:
                agent.call(method, {"sessionId": session, "cwd": str(folder), "mcpServers": []})
                chunks = agent.updates("user_message_chunk")
                assert [chunk["content"] for chunk in chunks] == [
                    {"type": "text", "text": "What is this?"}, sound, picture,
                ]  # fmt: skip
                assert len({chunk["messageId"] for chunk in chunks}) == 1
        finally:
            agent.close()


@pytest.mark.parametrize("store", KEPT)
def test_what_was_streamed_before_a_cancel_is_shown_again_and_known(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, store: str, request: pytest.FixtureRequest
) -> None:
    loom: dict[str, Any] = {}
    if store == "sqlite":
        loom = {"store": f"sqlite:{tmp_path}/looms.db"}
    elif store == "postgres":
        loom = {"store": request.getfixturevalue("postgres").url("partial")}
    slow = {"thinking": "Let me count.", "chunks": ["one ", "two ", *["more "] * 500], "delay_ms": 50}
    path = recipe([slow, {"content": "Then."}, {"content": "Well."}], loom=loom)
    shown = []
    session = ""
    for method in ("session/prompt", "session/load"):
        agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
        try:
            agent.initialize()
            if method == "session/prompt":
                session = agent.session(folder)
                prompt = agent.start_prompt(session, "Count.")
                agent.until(lambda message: "two " in str(message))
                agent.tell("session/cancel", {"sessionId": session})
                assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
                agent.prompt(session, "And then?")
            else:
                agent.call(method, {"sessionId": session, "cwd": str(folder), "mcpServers": []})
            shown.append(seen(agent)[0])
            if method == "session/load":
                agent.prompt(session, "Go on.")
        finally:
            agent.close()
    assert shown[0] == shown[1]
    assert shown[0][:2] != shown[0][1:3]
    assert "one two " in str(shown[1])


@pytest.mark.sandbox
@pytest.mark.parametrize("medium", ["conversation", "bash", "code"])
def test_gates_that_the_entity_loaded_are_there_after_a_load(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, medium: str
) -> None:
    source = "def shout(text: str) -> str: return text.upper()"
    load = {"module": "textkit", "source": source}
    scripts: dict[str, list[dict[str, Any]]] = {
        "conversation": [{"tool_calls": [{"gate": "compile_and_load", "args": load}]}, {"content": "Loaded."},
                         {"tool_calls": [{"gate": "shout", "args": {"text": "hello"}}]}, {"content": "Over."}],
        "bash": [{"tool_calls": [{"gate": "compile_and_load", "args": load}]}, {"content": "Loaded."},
                 {"bash": "shout hello"}, {"content": "Over."}],
        "code": [{"code": f"compile_and_load('textkit', source={source!r})"}, {"content": "Loaded."},
                 {"code": "print(shout('hello'))"}, {"content": "Over."}],
    }  # fmt: skip
    wards: list[dict[str, Any]] = [{"max_turns": 9}, {"allow_compile_modules": ["textkit"]}]
    if medium == "code":
        wards.append({"code_writable_paths": ["workspace"]})
    path = recipe(scripts[medium], medium=medium, gates=["done", "compile_and_load"], wards=wards)
    session = ""
    for method in ("session/new", "session/load"):
        agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
        try:
            agent.initialize()
            if method == "session/new":
                session = agent.session(folder)
            else:
                agent.call(method, {"sessionId": session, "cwd": str(folder), "mcpServers": []})
            agent.call("session/set_mode", {"sessionId": session, "modeId": "trusted"})
            agent.seen.clear()
            agent.prompt(session, "Go.")
            order, calls = seen(agent)
        finally:
            agent.close()
    assert ("agent_message_chunk", "Over.") in order
    assert "HELLO" in json.dumps(calls)
