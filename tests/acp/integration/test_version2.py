"""The draft of version 2, negotiated: the same sessions in other words. Each message is checked against its published schema."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.server import make_agent
from cantrip_acp.acp.v2.render import render
from tests.support.acp_client import RawClient
from tests.support.fixtures.acp import DONE, Start

INFO = {"name": "tests", "version": "1"}
WRITE = {"tool_calls": [{"gate": "write_file", "args": {"path": "a.txt", "content": "new\n"}}]}
FILES: dict[str, Any] = {
    "gates": ["done", "echo", "write_file", "plan", "call_agent"],
    "wards": [{"max_turns": 9}, {"max_depth": 1}, {"bash_writable_paths": ["."]}],
}


@pytest.fixture
def begin(start: Start) -> Callable[..., RawClient]:
    """Starts an agent that speaks version 2."""

    def begin(responses: Any = (DONE,), *arguments: str, capabilities: Any = None, **options: Any) -> RawClient:
        agent = start(responses, *arguments, initialized=False, **options)
        assert agent.initialize_v2(**(capabilities or {}))["protocolVersion"] == 2
        return agent

    return begin


def of(agent: RawClient, session: str, *kinds: str, since: int = 0) -> list[dict[str, Any]]:
    messages = [m["params"] for m in agent.seen[since:] if m.get("method") == "session/update"]
    updates = [m["update"] for m in messages if m["sessionId"] == session]
    return [each for each in updates if not kinds or each["sessionUpdate"] in kinds]


def until_idle(agent: RawClient, session: str) -> dict[str, Any]:
    """Read until the session is idle after the last prompt; the state with its stop reason."""

    def idle(message: dict[str, Any]) -> bool:
        params = message.get("params", {})
        return params.get("sessionId") == session and params.get("update", {}).get("state") == "idle"

    known = of(agent, session, "state_update")
    if known and known[-1]["state"] == "idle":
        # A prompt can end before its request is answered.
        return known[-1]
    update: dict[str, Any] = agent.until(idle)["params"]["update"]
    return update


def states(agent: RawClient, session: str) -> list[tuple[str, str | None]]:
    return [(each["state"], each.get("stopReason")) for each in of(agent, session, "state_update")]


# --- negotiation


@pytest.mark.parametrize("first", [True, False])
def test_who_asks_in_the_words_of_version_2_gets_it(start: Start, folder: Path, first: bool) -> None:
    agent = start([DONE], initialized=not first)
    answer = agent.initialize_v2()
    assert (answer["protocolVersion"], answer["info"]["name"]) == (2, "cantrip-acp")
    assert answer["capabilities"]["session"]["mcp"] == {"stdio": {}, "http": {}}
    assert answer["authMethods"][0]["methodId"] == "environment"
    assert agent.prompt(agent.session(folder)).keys() == {"messageId"}
    for method in ("session/load", "session/set_mode", "authenticate", "session/set_model"):
        assert agent.error(method, {})["code"] == -32601
    assert agent.error("initialize", {"protocolVersion": 1})["code"] == -32600


@pytest.mark.parametrize(
    "hello",
    [
        {"protocolVersion": 2, "clientInfo": INFO}, {"protocolVersion": 99}, {"protocolVersion": 1, "info": INFO},
        {"protocolVersion": 2, "info": {"name": "no version"}},
    ],
)  # fmt: skip
def test_who_does_not_gets_version_1(start: Start, folder: Path, hello: dict[str, Any]) -> None:
    agent = start([DONE], initialized=False)
    assert agent.call("initialize", hello)["protocolVersion"] == 1
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"


def test_version_2_costs_nothing_at_the_start_of_version_1() -> None:
    code = "import sys; import cantrip_acp.acp.server; print([m for m in sys.modules if 'acp.v2' in m])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


# --- prompts


def test_a_call_of_a_child_offers_no_cancel() -> None:
    """The child's session is not one that a client can send requests for."""
    began = acp.ToolCallUpdate(tool_call_id="t1.0", status="in_progress")
    ended = acp.ToolCallUpdate(tool_call_id="t1.0", status="completed")
    for of_child, offered in ((False, [{"cancel": {}}, None]), (True, ["none", "none"])):
        found = [each for update in (began, ended) for _, each in render("s", update, of_child=of_child)]
        assert [each.get("capabilities", "none") for each in found] == offered


@pytest.mark.sandbox
@pytest.mark.parametrize("method", ["tool_call/cancel", "_cantrip/tool_call/cancel"])
def test_one_call_is_stopped_and_the_prompt_goes_on(start_process: Start, folder: Path, method: str) -> None:
    """The draft's own method, and the extension that version 1 has too. Such a call was cancelled; it did not fail."""
    agent = start_process([{"bash": "echo begun; sleep 60"}, {"content": "I go on."}], medium="bash", initialized=False)
    about = agent.initialize_v2()["capabilities"]
    assert about["_meta"]["cantrip"]["toolCallCancel"] is True
    session = agent.session(folder)
    agent.answer(agent.start_prompt(session, "work"))
    began = agent.until(lambda message: message.get("params", {}).get("update", {}).get("status") == "in_progress")
    params = {"sessionId": session, "toolCallId": began["params"]["update"]["toolCallId"]}
    assert began["params"]["update"]["capabilities"] == {"cancel": {}}
    assert agent.call(method, params) == {}
    assert until_idle(agent, session)["stopReason"] == "end_turn"
    calls = [each for each in of(agent, session, "tool_call_update") if each["toolCallId"] == params["toolCallId"]]
    assert (calls[-1]["status"], calls[-1]["_meta"]["cantrip"]["stopped"]) == ("cancelled", True)
    # It offers that no more, and the client learns that it was too late.
    assert [each["capabilities"] for each in calls if "capabilities" in each] == [{"cancel": {}}, None]
    assert agent.error(method, params)["code"] == -32602
    assert agent.error(method, {**params, "toolCallId": "none"})["code"] == -32602


def test_a_prompt_is_acknowledged_and_ends_with_a_state(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([{"content": "Words.", **DONE}])
    session = agent.session(folder)
    asked = agent.start_prompt(session, "Fix the parser")
    reply = agent.answer(asked)["result"]
    end = until_idle(agent, session)
    assert (end["stopReason"], end["_meta"]["cantrip"]["reason"]) == ("end_turn", "done")
    assert states(agent, session) == [("running", None), ("idle", "end_turn")]
    (message,) = of(agent, session, "user_message")
    assert message["messageId"] == reply["messageId"]
    assert message["content"] == [{"type": "text", "text": "Fix the parser"}]
    words = of(agent, session, "agent_message_chunk")
    # Nothing is added between messages: their ids tell them apart.
    assert [each["content"]["text"] for each in words] == ["Words.", "all done"]
    assert len({each["messageId"] for each in words}) == 2
    assert of(agent, session, "session_info_update")[0]["title"] == "Fix the parser"


def test_a_slash_command_and_a_failure(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([{"error": {"status": 400, "message": "no such thing"}}])
    session = agent.session(folder)
    command = agent.prompt(session, "/help")
    assert until_idle(agent, session)["stopReason"] == "end_turn"
    kinds = [each["sessionUpdate"] for each in of(agent, session, "user_message", "agent_message_chunk")]
    assert kinds == ["user_message", "agent_message_chunk"]
    assert of(agent, session, "user_message")[0]["messageId"] == command["messageId"]
    agent.prompt(session, "Now")
    end = until_idle(agent, session)
    assert end["stopReason"] == "error"
    assert "no such thing" in end["error"]["message"]


def test_a_prompt_during_another_waits(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([WRITE, DONE, {"content": "Second."}], **FILES)
    session = agent.session(folder, mode="ask")
    assert agent.error("session/prompt", {"sessionId": session, "prompt": []})["code"] == -32602
    agent.permit = None
    agent.start_prompt(session, "one")
    question = agent.until(lambda m: m.get("method") == "session/request_permission")
    second, third = agent.start_prompt(session, "two"), agent.start_prompt(session, "three")
    waiting = agent.call("_cantrip/queue/list", {"sessionId": session})["prompts"]
    assert [each["text"] for each in waiting] == ["two", "three"]
    # Neither was inserted, so neither is answered.
    assert len(of(agent, session, "user_message")) == 1
    agent.tell("$/cancel_request", {"requestId": third})
    assert agent.answer(third)["error"]["code"] == -32800
    agent.decide(question, "allow_once")
    reply = agent.answer(second)["result"]
    until_idle(agent, session)
    assert [each[0] for each in states(agent, session) if each[0] != "requires_action"] == [
        "running", "running", "idle", "running", "idle",
    ]  # fmt: skip
    assert of(agent, session, "user_message")[1]["messageId"] == reply["messageId"]
    assert not [m for m in agent.seen if m.get("method") == "_cantrip/queue_changed"]


def test_the_command_queue_is_answered_after_its_message(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([WRITE, DONE], capabilities={"_meta": {"cantrip": {"promptQueueing": True}}}, **FILES)
    agent.permit = None
    session = agent.session(folder, mode="ask")
    agent.start_prompt(session, "one")
    question = agent.until(lambda m: m.get("method") == "session/request_permission")
    agent.start_prompt(session, "two")
    since = len(agent.seen)
    reply(agent, agent.start_prompt(session, "/queue"))
    agent.decide(question, "allow_once")
    until_idle(agent, session)
    said = [m["params"]["update"] for m in agent.seen[since:] if m.get("method") == "session/update"]
    said = [each for each in said if each["sessionUpdate"] in ("user_message", "agent_message_chunk")]
    assert [each["sessionUpdate"] for each in said[:2]] == ["user_message", "agent_message_chunk"]
    assert "two" in said[1]["content"]["text"]


def test_a_cancel_answers_what_waits(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([WRITE, DONE], capabilities={"_meta": {"cantrip": {"promptQueueing": True}}}, **FILES)
    agent.permit = None
    session = agent.session(folder, mode="ask")
    agent.start_prompt(session, "one")
    agent.until(lambda m: m.get("method") == "session/request_permission")
    waiting = agent.start_prompt(session, "two")
    agent.until(lambda m: m.get("method") == "_cantrip/queue_changed")
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(waiting)["error"]["code"] == -32800
    assert until_idle(agent, session)["stopReason"] == "cancelled"


# --- tool calls and permissions


def test_a_write_is_one_kind_of_update_with_a_patch(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([WRITE, DONE], **FILES)
    agent.permit = None
    session = agent.session(folder, mode="ask")
    agent.start_prompt(session)
    question = agent.until(lambda m: m.get("method") == "session/request_permission")["params"]
    call = question["subject"]["toolCall"]
    assert question["title"] == call["title"] == "Write a.txt (new, +1)"
    path = str(folder / "a.txt")
    assert call["content"][0]["changes"] == [{"operation": "add", "path": path, "fileType": "text"}]
    agent.decide(agent.seen[-1], "allow_once")
    until_idle(agent, session)
    assert states(agent, session) == [
        ("running", None), ("requires_action", None), ("running", None), ("idle", "end_turn"),
    ]  # fmt: skip
    calls = [each for each in of(agent, session, "tool_call_update") if each["toolCallId"] == call["toolCallId"]]
    assert [each["status"] for each in calls] == ["pending", "in_progress", "completed"]
    assert calls[-1]["content"][0]["patch"]["text"].endswith("@@ -0,0 +1 @@\n+new\n")
    # Edits go to the disk: a client of version 2 has no files of its own.
    assert (folder / "a.txt").read_text() == "new\n"


CHANGES = [
    ("a\nb\nc\n", "a\nB\nc\n"), (None, "new\n"), (None, "no end"), ("x", "x\n"), ("x\n", "x"), ("", "a\r\nb"), ("a\n", ""),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), CHANGES)
def test_git_applies_the_patch(tmp_path: Path, old: str | None, new: str) -> None:
    update = acp.ToolCallUpdate(tool_call_id="c", content=[acp.Diff("/f.txt", old, new)])
    ((_, plain),) = render("s", update)
    patch = plain["content"][0]["patch"]["text"]
    if old is not None:
        (tmp_path / "f.txt").write_bytes(old.encode())
    subprocess.run(["git", "apply", "-"], input=patch.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "f.txt").read_bytes().decode() == new


def test_a_diff_without_a_patch() -> None:
    for old, new in (("same\n", "same\n"), ("a\n" * 5000, "b\n" * 5000)):
        ((_, plain),) = render("s", acp.ToolCallUpdate(tool_call_id="c", content=[acp.Diff("/f", old, new)]))
        assert plain["content"] == [
            {"type": "diff", "changes": [{"operation": "modify", "path": "/f", "fileType": "text"}]}
        ]


@pytest.mark.sandbox
def test_a_command_has_a_terminal_of_the_agent_and_is_cancelled(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([{"bash": "echo one; false"}, {"bash": "echo two; sleep 1000"}], medium="bash", gates=["done"])
    session = agent.session(folder)
    agent.prompt(session)
    agent.until(lambda m: "dHdv" in str(m))  # "two" in base64
    agent.tell("session/cancel", {"sessionId": session})
    assert until_idle(agent, session)["stopReason"] == "cancelled"
    first, second = [each for each in of(agent, session, "terminal_update") if "command" in each]
    assert first["command"] == "echo one; false"
    assert first["cwd"].startswith("/")
    pieces = [e for e in of(agent, session, "terminal_output_chunk") if e["terminalId"] == first["terminalId"]]
    assert b"".join(base64.b64decode(each["data"]) for each in pieces) == b"one\n"
    ends = {e["terminalId"]: e["exitStatus"] for e in of(agent, session, "terminal_update") if "exitStatus" in e}
    assert ends[first["terminalId"]] == {"exitCode": 1}
    assert set(ends) == {first["terminalId"], second["terminalId"]}
    shown = [each for each in of(agent, session, "tool_call_update") if each["toolCallId"] == first["terminalId"]]
    assert shown[0]["content"] == [{"type": "terminal", "terminalId": first["terminalId"]}]
    assert of(agent, session, "tool_call_update")[-1]["status"] == "cancelled"


def test_children_plans_and_their_states(begin: Callable[..., RawClient], folder: Path) -> None:
    plan = {"tool_calls": [{"gate": "plan", "args": {"entries": [{"content": "Look"}]}}]}
    spawn = {"tool_calls": [{"gate": "call_agent", "args": {"intent": "deeper"}}]}
    agent = begin([plan, spawn, DONE], crystal={"children": [[{"content": "Mine.", **DONE}]]}, **FILES)
    session = agent.session(folder)
    agent.prompt(session)
    until_idle(agent, session)
    assert of(agent, session, "plan_update")[0]["plan"]["entries"][0]["content"] == "Look"
    child = of(agent, session, "subagent_update")[0]["sessionId"]
    assert states(agent, child) == [("running", None), ("idle", "end_turn")]
    assert "Mine." in str(of(agent, child, "agent_message_chunk"))


# --- sessions


def test_a_session_is_resumed_with_and_without_its_history(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([{"content": "Words.", **DONE}, DONE])
    session = agent.session(folder)
    message = agent.prompt(session, "Fix the parser")["messageId"]
    until_idle(agent, session)
    for _ in range(2):
        # The second time it is not open.
        assert agent.call("session/close", {"sessionId": session}) == {}
    (listed,) = agent.call("session/list")["sessions"]
    assert (listed["sessionId"], listed["title"]) == (session, "Fix the parser")
    since = len(agent.seen)
    resumed = agent.call("session/resume", {"sessionId": session, "cwd": str(folder), "replayFrom": {"type": "start"}})
    assert {each["configId"] for each in resumed["configOptions"]} >= {"mode", "model", "reuse_results"}
    history = of(agent, session, since=since)
    asked = next(each for each in history if each["sessionUpdate"] == "user_message_chunk")
    assert (asked["messageId"], asked["content"]["text"]) == (message, "Fix the parser")
    said = [each["content"]["text"] for each in history if each["sessionUpdate"] == "agent_message_chunk"]
    assert said == ["Words.", "all done"]
    assert history[-1] == {"sessionUpdate": "state_update", "state": "idle"}
    agent.call("session/close", {"sessionId": session})
    since = len(agent.seen)
    agent.call("session/resume", {"sessionId": session, "cwd": str(folder)})
    before_reply = [each["sessionUpdate"] for each in of(agent, session, since=since)]
    assert before_reply == ["state_update"]
    wrong = {"sessionId": session, "cwd": str(folder), "replayFrom": {"type": "middle"}}
    assert agent.error("session/resume", wrong)["code"] == -32602
    agent.prompt(session)
    assert until_idle(agent, session)["stopReason"] == "end_turn"


def test_options_of_both_types(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin()
    session = agent.session(folder)

    def set_to(option: str, type: str, value: Any) -> Any:
        given = {"sessionId": session, "configId": option, "type": type, "value": value}
        return agent.answer(agent.ask("session/set_config_option", given))

    for option, type, value in (("mode", "id", "read-only"), ("reuse_results", "boolean", False)):
        options = set_to(option, type, value)["result"]["configOptions"]
        assert next(each for each in options if each["configId"] == option)["currentValue"] == value
    for wrong in (("mode", "boolean", True), ("mode", "other", "ask"), ("nothing", "id", "x"), ("mode", "id", True)):
        assert set_to(*wrong)["error"]["code"] == -32602
    agent.quiet(0.1)


def test_closing_ends_the_prompt_first(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([WRITE, DONE], **FILES)
    agent.permit = None
    session = agent.session(folder, mode="ask")
    agent.start_prompt(session)
    agent.until(lambda m: m.get("method") == "session/request_permission")
    closing = agent.ask("session/close", {"sessionId": session})
    seen = len(agent.seen)
    assert agent.answer(closing)["result"] == {}
    kinds = [m.get("params", {}).get("update", {}).get("stopReason") for m in agent.seen[seen:]]
    assert "cancelled" in kinds
    assert agent.call("session/delete", {"sessionId": session}) == {}


def test_extensions_are_there_too(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin(capabilities={"elicitation": {"form": {}}, "auth": {"terminal": {}}})
    system = {"systemPrompt": {"mode": "append", "content": [{"type": "text", "text": "Be brief."}]}}
    session = agent.session(folder, **system)
    assert agent.call("session/set_title", {"sessionId": session, "title": " Mine "}) == {"title": "Mine"}
    assert agent.call("session/fork", {"sessionId": session, "cwd": str(folder)})["sessionId"] != session
    assert {each["providerId"] for each in agent.call("providers/list")["providers"]} >= {"anthropic", "openai"}
    assert agent.error("auth/login", {"methodId": "nothing"})["code"] == -32602


# --- extensions of our own, the same as in version 1

HOLD: dict[str, Any] = {"tool_calls": [{"gate": "ask_user", "args": {"question": "Go on?"}}]}
"""The prompt waits until the test answers the form."""
ASKS: dict[str, Any] = {"gates": ["done", "ask_user"], "capabilities": {"elicitation": {"form": {}}}}


def held(agent: RawClient) -> Any:
    """Wait until the prompt waits for the user; the id of the form."""
    return agent.until(lambda message: message.get("method") == "elicitation/create")["id"]


def go_on(agent: RawClient, form: Any) -> None:
    agent.send({"jsonrpc": "2.0", "id": form, "result": {"action": "accept", "content": {"answer": "yes"}}})


def text(words: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": words}]


def conversation(agent: RawClient, session: str, since: int = 0) -> list[str]:
    """What the user sent and what the form asked, in order."""
    found = []
    for update in of(agent, session, since=since):
        if update["sessionUpdate"] == "user_message":
            found.append(update["content"][0]["text"])
        elif update["sessionUpdate"] == "user_message_chunk":
            found.append(update["content"]["text"])
        elif update.get("status") == "completed" and update.get("title", "").startswith("Ask"):
            found.append("asked")
    return found


def reply(agent: RawClient, request: Any) -> dict[str, Any]:
    """The reply to a request, also if it came before other messages that were read."""
    seen = [message for message in agent.seen if "method" not in message and message.get("id") == request]
    return seen[0] if seen else agent.answer(request)


def test_every_extension_of_version_1_is_served(start: Start, tmp_path: Path) -> None:
    agent = start([DONE], initialized=False)
    agent.initialize_v2()
    extensions = [name for name in make_agent(None, tmp_path).methods() if name.startswith(("_", "providers/"))]
    assert {"_session/steering", "_cantrip/context", "_cantrip/queue/send_now", "_cantrip/redo"} < set(extensions)
    for method in extensions:
        assert agent.answer(agent.ask(method, {})).get("error", {}).get("code") != -32601, method


def test_a_prompt_is_sent_into_the_running_one(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([HOLD, HOLD, DONE, DONE], **ASKS)
    session = agent.session(folder)
    agent.start_prompt(session, "one")
    form = held(agent)
    second, third = (
        agent.start_prompt(session, words, _meta={"cantrip": {"promptId": words[0]}}) for words in ("b", "c")
    )
    queue = agent.call("_cantrip/queue/send_now", {"sessionId": session, "id": "c"})["prompts"]
    assert queue == [{"id": "c", "text": "c", "sending": True}, {"id": "b", "text": "b"}]
    edit = {"sessionId": session, "id": "b", "prompt": text("better")}
    assert agent.call("_cantrip/queue/edit", edit)["prompts"][1]["text"] == "better"
    go_on(agent, form)
    # It is answered when the entity gets it, while the prompt that it was sent into still runs.
    steered = reply(agent, third)["result"]["messageId"]
    form = held(agent)
    (shown,) = of(agent, session, "user_message_chunk")
    assert (shown["messageId"], shown["_meta"]["cantrip"]["steering"]) == (steered, True)
    assert not [state for state in states(agent, session) if state[0] == "idle"]
    go_on(agent, form)
    edited = reply(agent, second)["result"]["messageId"]
    until_idle(agent, session)
    assert [each for each in states(agent, session) if each[0] != "requires_action"][-3:] == [
        ("idle", "end_turn"), ("running", None), ("idle", "end_turn"),
    ]  # fmt: skip
    assert [each[0] for each in states(agent, session)].count("idle") == 2
    assert of(agent, session, "user_message")[-1]["messageId"] == edited
    live = conversation(agent, session)
    assert live == ["one", "asked", "c", "asked", "better"]
    agent.call("session/close", {"sessionId": session})
    since = len(agent.seen)
    agent.call("session/resume", {"sessionId": session, "cwd": str(folder), "replayFrom": {"type": "start"}})
    assert conversation(agent, session, since) == live
    assert [each["messageId"] for each in of(agent, session, "user_message_chunk", since=since)][1:] == [
        steered, edited,
    ]  # fmt: skip


def test_a_prompt_that_comes_too_late_for_the_last_query_runs_next(
    begin: Callable[..., RawClient], folder: Path
) -> None:
    agent = begin([{"tool_calls": [*HOLD["tool_calls"], *DONE["tool_calls"]]}, DONE, DONE], **ASKS)
    session = agent.session(folder)
    agent.start_prompt(session, "one")
    form = held(agent)
    second, third = (
        agent.start_prompt(session, words, _meta={"cantrip": {"promptId": words}}) for words in ("two", "three")
    )
    agent.call("_cantrip/queue/send_now", {"sessionId": session, "id": "three"})
    go_on(agent, form)
    ids = [reply(agent, each)["result"]["messageId"] for each in (third, second)]
    until_idle(agent, session)
    messages = of(agent, session, "user_message")
    assert [each["content"][0]["text"] for each in messages] == ["one", "three", "two"]
    assert [each["messageId"] for each in messages[1:]] == ids


def test_steering(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([HOLD, HOLD, {"tool_calls": [*HOLD["tool_calls"], *DONE["tool_calls"]]}, DONE, DONE], **ASKS)
    session = agent.session(folder)

    def steer(words: str, **more: Any) -> Any:
        return agent.call("_session/steering", {"sessionId": session, "prompt": text(words), **more})

    required = {"_meta": {"steering": {"idleBehavior": "promptRequired"}}}
    assert steer("early", **required) == {"outcome": "promptRequired", "reason": "noRunningTurn"}
    agent.prompt(session, "one")
    form = held(agent)
    assert steer("use tabs") == {"outcome": "injected"}
    go_on(agent, form)
    form = held(agent)
    assert conversation(agent, session) == ["one", "asked", "use tabs"]
    go_on(agent, form)
    form = held(agent)
    # Too late for the last query: another cast of the same prompt.
    assert steer("and quickly") == {"outcome": "injected"}
    go_on(agent, form)
    until_idle(agent, session)
    assert [each[0] for each in states(agent, session)].count("idle") == 1
    # No prompt runs: it starts one, which is shown and ends like any other.
    assert steer("now this") == {"outcome": "startedNewTurn"}
    agent.until(lambda m: m.get("params", {}).get("update", {}).get("state") == "idle")
    live = conversation(agent, session)
    assert live == ["one", "asked", "use tabs", "asked", "asked", "and quickly", "now this"]
    assert states(agent, session)[-2:] == [("running", None), ("idle", "end_turn")]
    agent.call("session/close", {"sessionId": session})
    since = len(agent.seen)
    agent.call("session/resume", {"sessionId": session, "cwd": str(folder), "replayFrom": {"type": "start"}})
    assert conversation(agent, session, since) == live


def test_changed_files_are_reviewed_undone_and_restored(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([WRITE, DONE], **FILES)
    session = agent.session(folder)
    agent.prompt(session)
    turn = until_idle(agent, session)["_meta"]["cantrip"]["turn"]
    call: Callable[..., Any] = lambda name, **more: agent.call(f"_cantrip/{name}", {"sessionId": session, **more})  # noqa: E731
    written, deleted = ([{"path": "a.txt", "action": action}] for action in ("written", "deleted"))
    assert [(each["path"], each["status"]) for each in call("changes")["files"]] == [("a.txt", "added")]
    assert call("undo")["restored"] == deleted
    assert not (folder / "a.txt").exists()
    assert call("redo")["restored"] == written
    assert call("restore", turn=0)["restored"] == deleted
    assert call("restore", turn=turn)["restored"] == written
    assert (folder / "a.txt").read_text() == "new\n"
    assert call("keep") == {"kept": ["a.txt"]}
    assert call("changes")["files"] == []
    assert agent.error("_cantrip/undo", {"sessionId": "none"})["code"] == -32002


@pytest.mark.parametrize("by", ["/undo", "_cantrip/undo"])
def test_conflicts_of_an_undo_are_a_question(begin: Callable[..., RawClient], folder: Path, by: str) -> None:
    agent = begin([WRITE, DONE], **FILES)
    agent.permit = None
    session = agent.session(folder)
    agent.prompt(session)
    until_idle(agent, session)
    (folder / "a.txt").write_text("mine\n")
    for option in ("keep", "overwrite"):
        since = len(agent.seen)
        request = None if by == "/undo" else agent.ask(by, {"sessionId": session})
        if request is None:
            agent.start_prompt(session, by)
        asked = agent.until(lambda message: message.get("method") == "session/request_permission")
        assert (folder / "a.txt").read_text() == "mine\n"
        outcome = {"outcome": "selected", "optionId": option}
        agent.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}})
        if request is None:
            agent.until(lambda m: m.get("params", {}).get("update", {}).get("state") == "idle")
            assert [each[0] for each in states(agent, session)][-4:] == [
                "running",
                "requires_action",
                "running",
                "idle",
            ]
        else:
            assert agent.answer(request)["result"]["answer"] == option
        calls = [each["status"] for each in of(agent, session, "tool_call_update", since=since) if "status" in each]
        assert calls[-1] == "completed"
        assert (folder / "a.txt").exists() is (option == "keep")


def test_what_the_next_query_holds_and_mcp_servers(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin(gates=["done"])
    program = shutil.copy(Path(__file__).parents[2] / "support" / "plain_mcp_server.py", folder)
    server = {"type": "stdio", "name": "tools", "command": sys.executable, "args": [program], "env": []}
    session = agent.session(folder, mcpServers=[server])
    agent.prompt(session)
    until_idle(agent, session)
    told = agent.call("_cantrip/context", {"sessionId": session})
    assert told["tokens"] > 0
    assert told["rows"]
    for method, more in (("list", {}), ("restart", {"server": 0})):
        (listed,) = agent.call(f"_cantrip/mcp/{method}", {"sessionId": session, **more})["servers"]
        assert (listed["name"], listed["state"], bool(listed["tools"])) == ("tools", "running", True)


def test_plan_mode(begin: Callable[..., RawClient], folder: Path) -> None:
    planned = {"content": "I looked.\n\n# Plan\n\n1. Write a.txt."}
    agent = begin([WRITE, planned, planned, planned, WRITE, {"content": "Done."}],
                  capabilities={"elicitation": {"form": {}}}, **FILES)  # fmt: skip
    agent.permit = None
    session = agent.session(folder, mode="plan")

    def question() -> dict[str, Any]:
        return agent.until(lambda message: message.get("method") == "session/request_permission")

    def answer(asked: dict[str, Any], option: str, **notes: str) -> None:
        outcome = {"outcome": "selected", "optionId": option, "_meta": {"cantrip": notes}}
        agent.send({"jsonrpc": "2.0", "id": asked["id"], "result": {"outcome": outcome}})

    agent.prompt(session, "write it")
    asked = question()
    # The write before it was refused without a question.
    assert not (folder / "a.txt").exists()
    subject = asked["params"]["subject"]["toolCall"]
    assert (subject["kind"], subject["rawInput"]) == ("switch_mode", {"plan": "# Plan\n\n1. Write a.txt."})
    assert "# Plan" in str(subject["content"])
    assert of(agent, session, "state_update")[-1]["state"] == "requires_action"
    shown = of(agent, session, "tool_call_update")[-1]
    assert (shown["toolCallId"], shown["status"]) == (subject["toolCallId"], "pending")
    ids = [option["optionId"] for option in asked["params"]["options"]]
    assert ids == ["sandboxed", "ask", "trusted", "edit_plan", "return_with_comments", "plan"]
    # Returned with comments: in the outcome, and then in a form.
    answer(asked, "plan", reason="Not a.txt.")
    asked = question()
    answer(asked, "return_with_comments")
    form = agent.until(lambda message: message.get("method") == "elicitation/create")
    filled = {"action": "accept", "content": {"answer": "Shorter."}}
    agent.send({"jsonrpc": "2.0", "id": form["id"], "result": filled})
    asked = question()
    # Edited, in the outcome, and approved for a mode in which the write asks.
    answer(asked, "ask", plan="# Plan\n\n1. Write a.txt well.")
    write = question()
    assert write["params"]["subject"]["toolCall"]["name"] == "write_file"
    answer(write, "allow_once")
    end = until_idle(agent, session)
    assert end["stopReason"] == "end_turn"
    assert (folder / "a.txt").read_text() == "new\n"
    # One prompt, whatever was asked in it.
    assert [each[0] for each in states(agent, session)].count("idle") == 1
    done = [each for each in of(agent, session, "tool_call_update") if each.get("title", "").startswith("Plan")]
    assert [(each["title"], each["status"]) for each in done] == [
        ("Plan returned", "failed"), ("Plan returned", "failed"), ("Plan approved: Ask", "completed"),
    ]  # fmt: skip
    records = map(json.loads, Path(end["_meta"]["cantrip"]["loom"]).read_text().splitlines())
    intents = [each["intent"] for each in records if each["type"] == "cast" and each["event"] == "start"]
    assert intents[0] == "write it"
    assert [each.partition("\n\n")[2] for each in intents[1:]] == [
        "Not a.txt.", "Shorter.", "# Plan\n\n1. Write a.txt well.",
    ]  # fmt: skip
    # The mode is an option of the session.
    changed = of(agent, session, "config_option_update")[-1]["configOptions"]
    assert next(each for each in changed if each["configId"] == "mode")["currentValue"] == "ask"


def test_a_cancel_while_the_plan_waits(begin: Callable[..., RawClient], folder: Path) -> None:
    agent = begin([{"content": "# Plan\n\n1. Nothing."}, DONE])
    agent.permit = None
    session = agent.session(folder, mode="plan")
    agent.prompt(session)
    agent.until(lambda message: message.get("method") == "session/request_permission")
    agent.tell("session/cancel", {"sessionId": session})
    assert until_idle(agent, session)["stopReason"] == "cancelled"
    assert of(agent, session, "tool_call_update")[-1]["status"] in ("failed", "cancelled")
