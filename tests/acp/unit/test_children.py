"""Children in a session: live content of the call that spawned them, questions that name them, plans, and what they cost."""

from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.acp.protocol import ClientAbilities
from cantrip_acp.acp.render.event_translator import Translator
from cantrip_acp.acp.render.formatting import CONTENT_LIMIT
from cantrip_acp.acp.render.subagent_view import MAX_CHILDREN
from cantrip_acp.types import events
from cantrip_acp.types.records import CastRecord, GateRecord
from cantrip_acp.types.usage import Usage
from tests.acp.unit.test_event_translator import called, finished, shown
from tests.support.fixtures.acp import Start

ASK = "session/request_permission"
FAMILY: dict[str, Any] = {
    "gates": ["done", "echo", "write_file", "plan", "call_agent", "call_agent_batch"],
    "wards": [{"max_turns": 9}, {"max_depth": 2}, {"bash_writable_paths": ["."]}],
}


def say(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def done(answer: str = "ok") -> dict[str, Any]:
    return say("done", answer=answer)


def from_child(inner: Any, *path: str, index: int | None = None, call: str = "g") -> events.ChildEvent:
    path = path or ("kid",)
    calls = (call, *(f"c{n}" for n in range(1, len(path))))
    return events.ChildEvent(
        entity_id=path[-1], cast_id="k", depth=len(path), path=path, calls=calls, inner=inner, index=index
    )


def ids(entity_id: str = "kid") -> dict[str, Any]:
    return {"entity_id": entity_id, "cast_id": "k", "depth": 1}


def begun(intent: str, *path: str, index: int | None = None) -> events.ChildEvent:
    inner = events.CastStarted(**ids((path or ("kid",))[-1]), intent=intent, trace_id="0" * 32)
    return from_child(inner, *path, index=index)


def over(*path: str, index: int | None = None, **how: Any) -> events.ChildEvent:
    plain: dict[str, Any] = {"result": "r", "terminated": True, "truncated": False, "reason": "done"} | how
    record = CastRecord("k", "end", "kid", "c", turns=1, **plain)
    inner = events.CastEnded(**ids((path or ("kid",))[-1]), record=record)
    return from_child(inner, *path, index=index)


def text_of(update: dict[str, Any]) -> str:
    return "\n".join(c["content"]["text"] for c in update.get("content") or () if c["type"] == "content")


def spawned(translator: Translator, *happened: events.Event, gate: str = "call_agent", **args: Any) -> None:
    translator.translate(called(gate=gate, args=args))
    for event in happened:
        translator.translate(event)


def view(translator: Translator) -> dict[str, Any]:
    (update,) = shown(translator.flush())
    return update


def test_a_child_is_followed_in_the_content_of_its_call() -> None:
    translator = Translator(ClientAbilities())
    spawned(translator, begun("Count the files"))
    assert translator.dirty
    assert view(translator) == {
        "sessionUpdate": "tool_call_update", "toolCallId": "g", "title": "call_agent", "kind": "other",
        "content": [{"type": "content", "content": {"type": "text", "text": "**Child** (running): Count the files"}}],
        "_meta": {"cantrip": {"children": [{"number": "", "kind": "intent", "text": "Count the files", "child": "kid"}]}},
    }  # fmt: skip
    assert not translator.flush()
    for event in (
        events.Text(**ids(), delta="I look ", message_id="m"),
        events.Text(**ids(), delta="first.", message_id="m"),
        called("k1", title="Read a.py"),
        events.GateFinished(**ids(), call_id="k1", record=GateRecord("read_file", {}, "no such file", True)),
        events.CommandStarted(**ids(), call_id="k2", command="ls | wc -l", tool="bash"),
        events.CommandOutput(**ids(), call_id="k2", stream="stdout", data="17\n"),
    ):
        assert not translator.translate(from_child(event))
    assert text_of(view(translator)).split("\n\n") == [
        "**Child** (running): Count the files",
        "> I look first.",
        "- `Read a.py`",
        "- `read_file` failed: no such file",
        "- `$ ls | wc -l`",
        "```\n17\n```",
    ]
    translator.translate(over())
    (end,) = shown(translator.translate(finished(gate="call_agent", result="17 files")))[-1:]
    assert end["status"] == "completed"
    assert [c["content"]["text"].split("\n\n")[0] for c in end["content"]] == [
        "**Child** (done): Count the files", "17 files",
    ]  # fmt: skip
    assert not translator.flush()


def test_children_of_children_are_marked() -> None:
    translator = Translator(ClientAbilities())
    spawned(translator, begun("one", "a", index=0), begun("two", "b", index=1), gate="call_agent_batch")
    translator.translate(begun("below two", "b", "c"))
    translator.translate(begun("also below two", "b", "d"))
    translator.translate(begun("deep", "b", "c", "e"))
    heads = [line for line in text_of(view(translator)).split("\n\n") if line.startswith("**")]
    assert heads == [
        "**Child 1** (running): one", "**Child 2** (running): two", "**Child 2.1** (running): below two",
        "**Child 2.1.1** (running): deep", "**Child 2.2** (running): also below two",
    ]  # fmt: skip


def test_a_childs_plan_is_not_the_sessions() -> None:
    translator = Translator(ClientAbilities())
    entry = events.PlanEntry("Mine", "high", "in_progress")
    own = events.PlanChanged(entity_id="e", cast_id="c", entries=(entry,))
    assert len(shown(translator.translate(own))) == 1
    spawned(translator, begun("x"))
    plan = events.PlanChanged(**ids(), entries=(events.PlanEntry("The child's"),))
    assert not translator.translate(from_child(plan))
    assert "The child's (pending)" in text_of(view(translator))


def test_a_batch_stands_in_the_plan_while_it_works() -> None:
    translator = Translator(ClientAbilities())
    own = events.PlanChanged(entity_id="e", cast_id="c", entries=(events.PlanEntry("Mine"),))
    translator.translate(own)
    plans = []
    spawned(translator, gate="call_agent_batch", requests=["one", {"intent": "two"}])
    for event in (begun("one", "a", index=0), begun("two", "b", index=1), over("b", index=1),
                  over("a", index=0, terminated=False, truncated=True, reason="max_turns")):  # fmt: skip
        (update,) = shown(translator.translate(event))
        plans.append([(e["content"], e["status"]) for e in update["entries"]])
    assert plans[0] == [("Mine", "pending"), ("Child 1: one", "in_progress"), ("Child 2: two", "pending")]
    assert plans[2][2] == ("Child 2: two", "completed")
    assert plans[3][1] == ("Child 1: one (stopped: max_turns)", "completed")
    translator.translate(finished(gate="call_agent_batch", result=["r", {"is_error": True, "error": "x"}]))
    # What the entity plans next is the whole plan again.
    (update,) = shown(translator.translate(own))
    assert [e["content"] for e in update["entries"]] == ["Mine"]


def test_the_view_of_many_and_long_children_is_bounded() -> None:
    translator = Translator(ClientAbilities())
    translator.translate(called(gate="call_agent_batch", args={"requests": ["x"] * 1000}))
    for number in range(1000):
        who = f"kid{number}"
        translator.translate(begun(f"task {number}", who, index=number))
        for piece in range(30):
            words = events.Text(**ids(who), delta="é" * 5000 + "\n# no heading", message_id=f"m{piece}")
            translator.translate(from_child(words, who, index=number))
        if number < 990:
            translator.translate(over(who, index=number))
    text = text_of(view(translator))
    assert len(text) <= CONTENT_LIMIT
    assert "Earlier children: 976 done" in text
    assert text.count("**Child") == MAX_CHILDREN
    assert "**Child 1000** (running): task 999" in text
    # An entry each would be no plan.
    assert not any(type(u).__name__ == "Plan" for u in translator.translate(over("kid999", index=999)))


def test_changes_of_a_child_are_diffs_with_their_places() -> None:
    translator = Translator(ClientAbilities())
    spawned(translator, begun("x"))
    small, large = events.Diff("/w/a.py", "1\n", "2\n"), events.Diff("/w/b.py", None, "x" * 100_000)
    for number, diff in enumerate((small, large)):
        record = GateRecord("edit_file", {}, "ok")
        ended = events.GateFinished(**ids(), call_id=f"k{number}", record=record, diffs=(diff,))
        translator.translate(from_child(ended))
    update = view(translator)
    assert [c["path"] for c in update["content"] if c["type"] == "diff"] == ["/w/a.py"]
    assert update["locations"] == [{"path": "/w/a.py"}, {"path": "/w/b.py"}]


def test_a_stopped_prompt_leaves_what_was_seen() -> None:
    translator = Translator(ClientAbilities())
    spawned(translator, begun("x"))
    (update,) = shown(translator.close())
    assert (update["status"], text_of(update)) == ("failed", "**Child** (running): x")
    assert not translator.close()


def test_what_children_cost_is_told_by_the_next_turn_or_the_end() -> None:
    translator = Translator(ClientAbilities())
    usage: dict[str, Any] = {"usage": Usage(cost=0.5), "cumulative": Usage(cost=0.5), "used": 100, "size": 1000}
    translator.translate(events.UsageReported(entity_id="e", cast_id="c", **usage))
    spawned(translator, begun("x"))
    below = events.UsageReported(**ids(), usage=Usage(cost=0.25), cumulative=Usage(cost=9), used=7, size=9)
    for _ in range(100):
        assert translator.translate(from_child(below)) == []
    record = CastRecord("c", "end", "e", "k", truncated=True, reason="max_turns", turns=1)
    ended = events.CastEnded(entity_id="e", cast_id="c", record=record)
    (update,) = shown(translator.translate(ended))
    assert (update["used"], update["size"], update["cost"]["amount"]) == (100, 1000, 25.5)
    # What was told is not told again.
    assert translator.translate(ended) == []
    translator.translate(from_child(below))
    usage["cumulative"] = Usage(cost=30.0)
    (update,) = shown(translator.translate(events.UsageReported(entity_id="e", cast_id="c", **usage)))
    assert update["cost"]["amount"] == 30.0
    assert translator.translate(ended) == []


def test_live_over_the_wire(start: Start, folder: Path) -> None:
    child = [
        {"chunks": ["I begin", " now."], "delay_ms": 300, **say("echo", text="hi")},
        {"delay_ms": 300, **done("A")},
    ]
    agent = start(
        [say("call_agent_batch", requests=["first", "second"]), done("all")],
        crystal={"children": [child, [done("B")]]},
        **FAMILY,
    )
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
    batch = agent.updates("tool_call")[0]
    assert [c["name"] for c in agent.updates("tool_call")] == ["call_agent_batch", "done"]
    views = [u for u in agent.updates("tool_call_update") if u["toolCallId"] == batch["toolCallId"]]
    live = [text_of(u) for u in views if "status" not in u]
    assert any("**Child 1** (running): first" in text for text in live)
    assert any("I begin" in text for text in live)
    last = text_of(views[-1])
    assert (views[-1]["status"], views[-1]["rawOutput"]["output"]) == ("completed", ["A", "B"])
    assert last.index("**Child 1** (done): first") < last.index("**Child 2** (done): second")
    words = "".join(u["content"]["text"] for u in agent.updates("agent_message_chunk"))
    assert words == "all"
    assert [e["status"] for e in agent.updates("plan")[-1]["entries"]] == ["completed", "completed"]


@pytest.mark.parametrize("answer", ["allow_once", "reject_once"])
def test_a_childs_write_asks_and_names_the_child(start: Start, folder: Path, answer: str) -> None:
    agent = start(
        [say("call_agent", intent="Make a.txt"), done("all")],
        crystal={"children": [[say("write_file", path="a.txt", content="new\n"), done("made")]]},
        **FAMILY,
    )
    agent.permit = None
    prompt = agent.start_prompt(agent.session(folder, mode="ask"))
    message = agent.until(lambda m: m.get("method") == ASK)
    call = message["params"]["toolCall"]
    parent, own = agent.updates("tool_call")
    assert call["title"] == own["title"] == "Write a.txt (new, +1) (child)"
    assert (call["toolCallId"], call["content"][0]["type"]) == (own["toolCallId"], "diff")
    assert own["_meta"]["cantrip"]["via"] == parent["toolCallId"]
    assert own["status"] == "pending"
    agent.decide(message, answer)
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    states = [u["status"] for u in agent.updates("tool_call_update") if u["toolCallId"] == own["toolCallId"]]
    assert states == ["in_progress", "completed" if answer == "allow_once" else "failed"]
    assert (folder / "a.txt").exists() is (answer == "allow_once")


def test_words_of_children_are_sent_as_views(start: Start, folder: Path) -> None:
    words = [{"chunks": ["x" * 50] * 200, **say("echo", text="again")} for _ in range(4)]
    agent = start(
        [say("call_agent_batch", requests=["talk"] * 8), done("all")],
        crystal={"children": [[*words, done()]] * 8},
        **FAMILY,
    )
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
    # 6,400 pieces; a view replaces the one before, ten times a second at most.
    assert len(agent.updates("tool_call_update")) < 200


def test_a_session_that_is_loaded_shows_its_children(start: Start, folder: Path, tmp_path: Path) -> None:
    below = {"responses": [say("call_agent", intent="deeper"), done("A")], "children": [[done("deep")]]}
    agent = start(
        [say("call_agent_batch", requests=["first", {"intent": "first"}, "never"]), done("all")],
        "--state-dir",
        str(tmp_path / "state"),
        crystal={"children": [below, [{"content": "Words.", **say("echo")}, done("B")], [say("echo", text="x")] * 9]},
        **{**FAMILY, "wards": [{"max_turns": 3}, {"max_depth": 2}]},
    )
    session = agent.session(folder)
    agent.prompt(session)
    (live,) = [u for u in agent.updates("tool_call_update") if u.get("rawOutput", {}).get("output", [None])[0] == "A"]
    call = next(c for c in agent.updates("tool_call") if c["name"] == "call_agent_batch")
    assert call["title"] == "3 children"
    agent.call("session/close", {"sessionId": session})
    seen = len(agent.seen)
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    updates = [m["params"]["update"] for m in agent.seen[seen:] if m.get("method") == "session/update"]
    (past,) = [u for u in updates if u.get("name") == "call_agent_batch"]
    text = text_of(past)
    heads = [line for line in text.split("\n\n") if line.startswith("**")]
    assert heads == [line for line in text_of(live).split("\n\n") if line.startswith("**")] == [
        "**Child 1** (done): first", "**Child 1.1** (done): deeper", "**Child 2** (done): first",
        "**Child 3** (stopped: max_turns): never",
    ]  # fmt: skip
    assert "> Words." in text
    assert "- `echo` failed: " in text


# --- children as sessions of their own, for clients that ask


def in_session(agent: Any, session: str, since: int = 0) -> list[dict[str, Any]]:
    messages = [m["params"] for m in agent.seen[since:] if m.get("method") == "session/update"]
    return [m["update"] for m in messages if m["sessionId"] == session]


def told(updates: list[dict[str, Any]]) -> list[Any]:
    """Kinds of updates with what matters of each, without those that come at any time."""
    shown: list[Any] = []
    for update in updates:
        match update["sessionUpdate"]:
            case "subagent_update":
                shown.append((update["state"]["state"], update["state"].get("stopReason"), update.get("title")))
            case "session_message":
                shown.append(update["content"][0]["text"])
            case "agent_message_chunk" | "tool_call":
                shown.append(update["sessionUpdate"])
    return shown


def test_children_are_sessions_if_the_client_asks(start: Start, folder: Path) -> None:
    below = {"responses": [say("call_agent", intent="deeper"), done("A")], "children": [[done("deep")]]}
    agent = start(
        [say("call_agent_batch", requests=["first", "second"]), done("all")],
        capabilities={"subagents": {}},
        crystal={"children": [below, [{"content": "Words.", **done("B")}]]},
        **FAMILY,
    )
    session = agent.session(folder)
    agent.prompt(session)
    children = {
        u["title"]: u["sessionId"]
        for message in agent.seen
        if (u := message.get("params", {}).get("update", {})).get("sessionUpdate") == "subagent_update" and "title" in u
    }
    first, second, deeper = children["first"], children["second"], children["deeper"]

    def check(since: int) -> None:
        own = told(in_session(agent, session, since))
        assert [each for each in own if isinstance(each, tuple)].count(("idle", "end_turn", None)) == 2
        assert {"first", "second", "A", "B"} <= {each for each in own if isinstance(each, str)}
        assert told(in_session(agent, deeper, since)) == ["deeper", "tool_call", "agent_message_chunk", "deep"]
        assert told(in_session(agent, first, since)) == [
            "first", "tool_call", ("running", None, "deeper"), "deeper", ("idle", "end_turn", None), "deep", "tool_call",
            "agent_message_chunk", "A",
        ]  # fmt: skip
        assert "agent_message_chunk" in told(in_session(agent, second, since))
        # The call that started them does not show them again.
        assert "Child" not in str(agent.updates("tool_call_update", session))
        # Each child is announced before anything names it.
        names = [str(m["params"]) for m in agent.seen[since:] if m.get("method") == "session/update"]
        for child in (first, second, deeper):
            assert "subagent_update" in next(text for text in names if child in text)

    check(0)
    sent = [u for u in in_session(agent, session) if u["sessionUpdate"] == "session_message"]
    received = in_session(agent, first)[0]
    (outgoing,) = [u for u in sent if u["recipientSessionId"] == first]
    assert (outgoing["senderSessionId"], received["senderMessageId"]) == (session, outgoing["messageId"])
    assert outgoing["recipientMessageId"] == received["messageId"]
    for method in ("session/prompt", "session/close", "session/set_title"):
        params = {"sessionId": first, "prompt": [{"type": "text", "text": "x"}], "title": "x"}
        assert agent.error(method, params)["code"] == -32002
    agent.call("session/close", {"sessionId": session})
    since = len(agent.seen)
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    check(since)


def test_a_childs_question_is_asked_in_its_session(start: Start, folder: Path) -> None:
    agent = start(
        [say("call_agent", intent="Make a.txt"), done("all")],
        capabilities={"subagents": {}},
        crystal={"children": [[say("write_file", path="a.txt", content="new\n"), done("made")]]},
        **FAMILY,
    )
    agent.permit = None
    session = agent.session(folder, mode="ask")
    prompt = agent.start_prompt(session)
    message = agent.until(lambda m: m.get("method") == ASK)
    child = message["params"]["sessionId"]
    assert child != session
    (call, *_) = [u for u in in_session(agent, child) if u["sessionUpdate"] == "tool_call"]
    assert call["toolCallId"] == message["params"]["toolCall"]["toolCallId"]
    assert message["params"]["toolCall"]["title"] == "Write a.txt (new, +1)"
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    assert told(in_session(agent, session))[-1] == ("idle", "cancelled", None)
    (last,) = [u for u in in_session(agent, child) if u["sessionUpdate"] == "tool_call_update" and "status" in u][-1:]
    assert last["status"] == "failed"
