"""What clients of several makers show of a session: objects as results, breaks between messages, whole updates, a whole past."""

from pathlib import Path
from typing import Any

from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import Start


def calls(*given: tuple[str, dict[str, Any]], content: str = "") -> dict[str, Any]:
    return {"content": content, "tool_calls": [{"gate": gate, "args": args} for gate, args in given]}


EDIT = ("edit_file", {"path": "greet.py", "old_text": "old", "new_text": "new"})
PLAN = ("plan", {"entries": [{"content": "Look", "status": "completed"}, {"content": "Mend", "priority": "high"}]})
QUESTION = ("ask_user", {"question": "Which way: left or right?", "choices": ["left", "right"]})
SCRIPT = [
    calls(PLAN, ("list_dir", {"path": "."}), content="I look at the files."),
    calls(EDIT, content="Now the edit."),
    calls(QUESTION, content="One question."),
    {"content": "I wait."},
]
GATES = ["done", "plan", "list_dir", "edit_file", "ask_user"]
REPLAYED = ("title", "kind", "status", "content", "locations", "rawOutput")


def final_calls(updates: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Each tool call as a client has it in the end."""
    found: dict[str, dict[str, Any]] = {}
    for update in updates:
        if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
            known = found.setdefault(update["toolCallId"], {})
            known.update({key: update[key] for key in REPLAYED if key in update})
    return found


def words(updates: list[dict[str, Any]]) -> str:
    """What a client shows that joins the pieces and looks at no id."""
    return "".join(u["content"]["text"] for u in updates if u["sessionUpdate"] == "agent_message_chunk")


def told(agent: RawClient) -> list[dict[str, Any]]:
    return [m["params"]["update"] for m in agent.seen if m.get("method") == "session/update"]


def test_the_live_session_and_the_loaded_one(start: Start, folder: Path) -> None:
    (folder / "greet.py").write_text("a\nold\n")
    agent = start(SCRIPT, gates=GATES)
    session = agent.session(folder)
    assert agent.prompt(session)["stopReason"] == "end_turn"
    live = told(agent)

    # Results are objects, and each update says what it is about.
    for update in live:
        if update["sessionUpdate"] in ("tool_call", "tool_call_update"):
            assert isinstance(update.get("rawOutput", {}), dict), update
            assert update["title"], update
            assert update["kind"], update
            assert ": " not in update["title"], update
            assert all(Path(place["path"]).is_file() for place in update.get("locations", ())), update
    ended = final_calls(live)
    assert all(call["status"] == "completed" for call in ended.values()), ended
    assert "Edit greet.py (+1 −1)" in [call["title"] for call in ended.values()]

    # Messages are apart for those who look at the id, and for those who do not.
    said = [u for u in live if u["sessionUpdate"] == "agent_message_chunk"]
    assert len({u["messageId"] for u in said}) == 5
    assert words(live) == (
        "I look at the files.\n\nNow the edit.\n\nOne question.\n\nWhich way: left or right?\n- left\n- right\n\nI wait."
    )

    agent.hang_up()
    again = start(SCRIPT, gates=GATES)
    again.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    loaded = told(again)
    assert final_calls(loaded) == ended
    assert words(loaded) == words(live)
    for kind in ("plan", "session_info_update"):
        last, before = (
            [{**u, "updatedAt": None} for u in told if u["sessionUpdate"] == kind][-1:] for told in (loaded, live)
        )
        assert last == before
        assert last, kind


def test_what_a_permission_says(start: Start, folder: Path) -> None:
    (folder / "greet.py").write_text("a\nold\n")
    agent = start([calls(EDIT), {"content": "Done."}], gates=["done", "edit_file"])
    agent.permit = None
    prompt = agent.start_prompt(agent.session(folder))
    asked = agent.until(lambda m: m.get("method") == "session/request_permission")
    assert asked["params"]["toolCall"]["title"] == "Edit greet.py (+1 −1)"
    assert [option["name"] for option in asked["params"]["options"]] == [
        "Allow",
        "Always allow edits in this folder",
        "Reject",
        "Always reject edits in this folder",
    ]
    agent.decide(asked, "allow_once")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"


def test_an_empty_answer_for_a_missing_file(start: Start, folder: Path) -> None:
    """Some clients answer with an empty text for a file that they do not find."""
    script = [
        calls(("read_file", {"path": "missing.txt"})),
        calls(("write_file", {"path": "new.txt", "content": "one\n"})),
        {"content": "Done."},
    ]
    agent = start(script, gates=["done", "read_file", "write_file"], capabilities={"fs": {"readTextFile": True}})
    agent.services["fs/read_text_file"] = lambda params: {"content": ""}
    agent.prompt(agent.session(folder))
    read, written = final_calls(told(agent)).values()
    assert read["status"] == "failed"
    assert "missing.txt" in read["rawOutput"]["output"]
    assert written["title"] == "Write new.txt (new, +1)"
    assert "oldText" not in written["content"][0] or written["content"][0]["oldText"] is None


def test_the_older_models_field(start: Start, folder: Path) -> None:
    agent = start([{"content": "Hi."}])
    created = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})
    models = created["models"]
    (option,) = [each for each in created["configOptions"] if each["id"] == "model"]
    assert models["currentModelId"] == option["currentValue"]
    assert [m["modelId"] for m in models["availableModels"]] == [each["value"] for each in option["options"]]
    choose = {"sessionId": created["sessionId"], "modelId": models["currentModelId"]}
    assert agent.call("session/set_model", choose) == {}
    assert agent.error("session/set_model", {**choose, "modelId": "nothing:at-all"})["code"] == -32602
