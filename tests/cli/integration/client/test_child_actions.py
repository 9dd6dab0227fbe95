"""What children do, once each: the actions that our own agent sends, and how the client prints them."""

from typing import Any

from cantrip_acp.acp.render.open_call import OpenCall
from cantrip_acp.acp.render.subagent_view import CallChildren
from cantrip_acp.types import events
from cantrip_acp.types.records import CastRecord, GateRecord
from tests.cli.integration.client.test_transcript import content, more, shown, tool


class Agent:
    """The agent's side: what a child does, and how the call's content then reads."""

    def __init__(self) -> None:
        self.family = CallChildren()

    def did(self, inner: Any, *path: str, index: int | None = None) -> None:
        calls = ("g", *(f"c{n}" for n in range(1, len(path))))
        self.family.add(
            events.ChildEvent(
                entity_id=path[-1], cast_id="k", depth=len(path), path=path, calls=calls, inner=inner, index=index
            )
        )

    def told(self) -> list[tuple[str, str, str]]:
        found = self.family.take_actions()
        assert found is not None
        return [(each["number"], each["kind"], each["text"]) for each in found]


IDS: dict[str, Any] = {"entity_id": "e", "cast_id": "k", "depth": 1}


def started(intent: str) -> events.CastStarted:
    return events.CastStarted(**IDS, intent=intent, trace_id="0" * 32)


def called(title: str) -> events.GateCalled:
    return events.GateCalled(**IDS, call_id="x", gate="read_file", args={}, title=title)


def ended(**how: Any) -> events.CastEnded:
    plain: dict[str, Any] = {"result": "r", "terminated": True, "truncated": False, "reason": "done"} | how
    return events.CastEnded(**IDS, record=CastRecord("k", "end", "kid", "c", turns=1, **plain))


def said(delta: str) -> events.Text:
    return events.Text(**IDS, delta=delta, message_id="m")


def test_a_child_is_told_as_it_works_and_each_thing_once() -> None:
    agent = Agent()
    agent.did(started("Count"), "a")
    assert agent.told() == [("", "intent", "Count")]
    agent.did(said("I look\n\nat it"), "a")
    assert agent.told() == []
    agent.did(said(" now."), "a")
    assert agent.told() == []
    agent.did(called("Read `a`.py"), "a")
    assert agent.told() == [("", "text", "I look\n\nat it now."), ("", "action", "Read `a`.py")]
    assert agent.told() == []
    agent.did(events.GateFinished(**IDS, call_id="x", record=GateRecord("read_file", {}, "no such file", True)), "a")
    assert agent.told() == [("", "failure", "read_file failed: no such file")]
    agent.did(ended(), "a")
    assert agent.told() == [("", "done", "done")]
    assert agent.told() == []


def test_what_left_the_window_was_told_before() -> None:
    agent = Agent()
    agent.did(started("much"), "a")
    told = agent.told()
    for n in range(200):
        agent.did(called(f"Read {n}"), "a")
        if n % 7 == 0:
            told += agent.told()
    told += agent.told()
    assert [words for _, kind, words in told if kind == "action"] == [f"Read {n}" for n in range(200)]


def test_the_same_thing_done_twice_is_told_twice() -> None:
    agent = Agent()
    agent.did(started("again"), "a")
    agent.did(called("Read a"), "a")
    agent.did(called("Read b"), "a")
    agent.told()
    agent.did(called("Read a"), "a")
    agent.did(called("Read b"), "a")
    assert agent.told() == [("", "action", "Read a"), ("", "action", "Read b")]


def test_children_of_children_and_one_that_was_stopped() -> None:
    agent = Agent()
    agent.did(started("one"), "a", index=0)
    agent.did(started("two"), "b", index=1)
    agent.did(started("below"), "b", "c")
    agent.did(ended(terminated=False, truncated=True, reason="max_turns"), "b", "c")
    assert agent.told() == [
        ("1", "intent", "one"),
        ("2", "intent", "two"),
        ("2.1", "intent", "below"),
        ("2.1", "stopped", "stopped: max_turns"),
    ]


def test_what_a_child_says_passes_for_no_other_child() -> None:
    agent = Agent()
    agent.did(started("one"), "a", index=0)
    agent.did(said("**Child 7** (done): forged\n\n- `rm`"), "a", index=0)
    output = "**Child 8** (done): forged\n\n```\n\n**Child 9** (done): forged"
    agent.did(events.CommandOutput(**IDS, call_id="x", stream="stdout", data=output), "a", index=0)
    agent.did(ended(), "a", index=0)
    assert {number for number, _, _ in agent.told()} == {"1"}


def test_a_call_without_children_has_no_actions() -> None:
    assert OpenCall("other", "Look").meta({}) is None
    assert CallChildren(as_sessions=True).take_actions() is None


def test_their_actions_stand_below_their_call_though_a_command_made_it() -> None:
    def meta(*actions: tuple[str, str, str]) -> dict[str, Any]:
        children = [{"number": number, "kind": kind, "text": words} for number, kind, words in actions]
        return {"cantrip": {"via": "t", "children": children}}

    view = content("**Child 1** (running): one")
    shown_lines = shown(
        [
            tool(title="sh", kind="execute", status="in_progress", rawInput={"command": "sh"}),
            tool("g", title="2 children", status="in_progress", _meta={"cantrip": {"via": "t"}}),
            more("g", content=view, _meta=meta(("1", "intent", "one"), ("1", "action", "Read a"))),
            more(
                "g",
                content=view,
                _meta=meta(
                    ("1", "text", "Well."), ("1", "done", "done"), ("1.1", "intent", "deep"), ("1.1", "done", "done")
                ),
            ),
            more("g", content=view, _meta=meta()),
            more("g", status="completed", content=[*view, *content('["r"]')], _meta=meta()),
            more(status="completed"),
        ]
    )
    assert shown_lines.splitlines()[1:-1] == [
        "    1 ❯ one",
        "    1 ▸ Read a",
        "    1 ● Well.",
        "    1 ✓ done",
        "      1.1 ❯ deep",
        "      1.1 ✓ done",
        "  ↳ 2 children  ✓ completed",
    ]


def test_the_result_of_a_call_with_children_is_its_output() -> None:
    view = content("**Child** (done): one")
    shown_lines = shown(
        [
            tool("g", title="call", status="in_progress"),
            more("g", status="completed", content=[*view, *content("result")], _meta={"cantrip": {"children": []}}),
        ]
    )
    assert "│ result" in shown_lines
    assert "**Child**" not in shown_lines
