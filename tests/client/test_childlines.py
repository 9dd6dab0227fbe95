"""What children do, told once each, from views that are replaced; the views are those that our own agent makes."""

from typing import Any

from cantrip_acp.acp.render.subagent_view import Family
from cantrip_acp.cli.render.child_output import ChildLines
from cantrip_acp.core import events
from tests.client.test_transcript import content, more, shown, tool


class Agent:
    """The agent's side: what a child does, and how the call's content then reads."""

    def __init__(self) -> None:
        self.family = Family()
        self.lines = ChildLines()

    def did(self, inner: Any, *path: str, index: int | None = None) -> None:
        calls = ("g", *(f"c{n}" for n in range(1, len(path))))
        self.family.heard(
            events.ChildEvent(
                entity_id=path[-1], cast_id="k", depth=len(path), path=path, calls=calls, inner=inner, index=index
            )
        )

    def told(self) -> list[tuple[str, str, str]]:
        blocks, _ = self.family.content("g")
        found = self.lines.take(blocks[0].content.text)  # type: ignore[union-attr]
        assert found is not None
        return [(line.number, line.kind, line.words) for line in found]


IDS: dict[str, Any] = {"entity_id": "e", "cast_id": "k", "depth": 1}


def started(intent: str) -> events.CastStarted:
    return events.CastStarted(**IDS, intent=intent, trace_id="0" * 32)


def called(title: str) -> events.GateCalled:
    return events.GateCalled(**IDS, call_id="x", gate="read_file", args={}, title=title)


def ended(**how: Any) -> events.CastEnded:
    plain: dict[str, Any] = {"result": "r", "terminated": True, "truncated": False, "reason": "done"} | how
    return events.CastEnded(**IDS, usage={}, trace_id="0" * 32, turns=1, **plain)


def said(delta: str) -> events.Text:
    return events.Text(**IDS, delta=delta, message_id="m")


def test_a_child_is_told_as_it_works_and_each_thing_once() -> None:
    agent = Agent()
    agent.did(started("Count"), "a")
    assert agent.told() == [("", "asked", "Count")]
    agent.did(said("I look\n\nat it"), "a")
    assert agent.told() == []
    agent.did(said(" now."), "a")
    assert agent.told() == []
    agent.did(called("Read `a`.py"), "a")
    assert agent.told() == [("", "said", "I look\n\nat it now."), ("", "did", "Read `a`.py")]
    assert agent.told() == []
    agent.did(events.GateFinished(**IDS, call_id="x", gate="read_file", result="no such file", is_error=True), "a")
    assert agent.told() == [("", "failed", "read_file failed: no such file")]
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
    assert [words for _, kind, words in told if kind == "did"] == [f"Read {n}" for n in range(200)]


def test_the_same_thing_done_twice_is_told_twice() -> None:
    agent = Agent()
    agent.did(started("again"), "a")
    agent.did(called("Read a"), "a")
    agent.did(called("Read b"), "a")
    agent.told()
    agent.did(called("Read a"), "a")
    agent.did(called("Read b"), "a")
    assert agent.told() == [("", "did", "Read a"), ("", "did", "Read b")]


def test_children_of_children_and_one_that_was_stopped() -> None:
    agent = Agent()
    agent.did(started("one"), "a", index=0)
    agent.did(started("two"), "b", index=1)
    agent.did(started("below"), "b", "c")
    agent.did(ended(terminated=False, truncated=True, reason="max_turns"), "b", "c")
    assert agent.told() == [
        ("1", "asked", "one"),
        ("2", "asked", "two"),
        ("2.1", "asked", "below"),
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


def test_no_view_of_children_is_left_alone() -> None:
    for text in ("", "done", "**Child", "a\n**Child 1** (running): x", "Earlier children: 3 done."):
        assert ChildLines().take(text) is None


def test_in_a_transcript_they_stand_below_their_call_though_a_command_made_it() -> None:
    inner = {"cantrip": {"via": "t"}}
    first = "**Child 1** (running): one\n\n- `Read a`"
    then = "**Child 1** (done): one\n\n- `Read a`\n\n> Well.\n\n**Child 1.1** (done): deep"
    told = shown(
        [
            tool(title="sh", kind="execute", status="in_progress", rawInput={"command": "sh"}),
            tool("g", title="2 children", status="in_progress", _meta=inner),
            more("g", content=content(first)),
            more("g", content=content(then)),
            more("g", status="completed", content=[*content(then), *content('["r"]')]),
            more(status="completed"),
        ]
    )
    assert told.splitlines()[1:-1] == [
        "    1 ❯ one",
        "    1 ▸ Read a",
        "    1 ● Well.",
        "    1 ✓ done",
        "      1.1 ❯ deep",
        "      1.1 ✓ done",
        "  ↳ 2 children  ✓ completed",
    ]
