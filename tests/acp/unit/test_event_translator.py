"""Events to updates, one table: `check(events, expected updates)`. Every update is held against the published schema."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from cantrip_acp.acp.protocol import ClientAbilities, SessionNotification
from cantrip_acp.acp.render.event_translator import Translator
from cantrip_acp.acp.render.formatting import CONTENT_LIMIT
from cantrip_acp.acp.render.open_call import OUTPUT_LIMIT
from cantrip_acp.types import events
from cantrip_acp.types.records import CastRecord, GateRecord, Output
from cantrip_acp.types.usage import NO_USAGE, Usage
from tests.support.acp_schema_check import check as check_schema

IDS: dict[str, Any] = {"entity_id": "e", "cast_id": "c"}
PLAIN = ClientAbilities()
TERMINAL = ClientAbilities(display_terminal=True)


def shown(updates: Sequence[Any]) -> list[dict[str, Any]]:
    plain = []
    for update in updates:
        notification = msgspec.json.decode(msgspec.json.encode(SessionNotification("s", update)))
        check_schema("SessionNotification", notification)
        plain.append(notification["update"])
    return plain


def translate(*happened: events.Event, client: ClientAbilities = PLAIN) -> list[dict[str, Any]]:
    translator = Translator(client)
    return shown([update for event in happened for update in translator.translate(event)])


def called(call_id: str = "g", **more: Any) -> events.GateCalled:
    return events.GateCalled(**IDS, call_id=call_id, **{"gate": "read_file", "args": {"path": "a"}, **more})


def finished(call_id: str = "g", **more: Any) -> events.GateFinished:
    shown = {name: more.pop(name) for name in ("diffs",) if name in more}
    record = GateRecord(**{"gate": "read_file", "args": {}, "result": "text", **more})
    return events.GateFinished(**IDS, call_id=call_id, record=record, **shown)


def command(call_id: str = "b", text: str = "make", **more: Any) -> events.CommandStarted:
    return events.CommandStarted(**IDS, call_id=call_id, command=text, tool="bash", **more)


def output(data: str, call_id: str = "b") -> events.CommandOutput:
    return events.CommandOutput(**IDS, call_id=call_id, stream="stdout", data=data)


def ended(call_id: str = "b", exit_code: int | None = 0, **more: Any) -> events.CommandFinished:
    return events.CommandFinished(**IDS, call_id=call_id, tool="bash", record=Output(exit_code=exit_code, **more))


def fenced(text: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": f"```\n{text}\n```"}}]


def test_a_gate_with_its_place_and_title() -> None:
    place = (events.Location("/w/a.py", 3),)
    pending, running, done = translate(
        called(kind="read", title="Read a.py", locations=place),
        events.GateStarted(**IDS, call_id="g", gate="read_file"),
        finished(result="x = 1", title="Read a.py (1 line)", locations=place),
    )
    assert pending == {
        "sessionUpdate": "tool_call", "toolCallId": "g", "title": "Read a.py", "name": "read_file", "kind": "read",
        "status": "pending", "locations": [{"path": "/w/a.py", "line": 3}], "rawInput": {"path": "a"},
    }  # fmt: skip
    assert running == {
        "sessionUpdate": "tool_call_update", "toolCallId": "g", "title": "Read a.py", "kind": "read", "status": "in_progress",
    }  # fmt: skip
    assert done == {
        "sessionUpdate": "tool_call_update", "toolCallId": "g", "status": "completed",
        "title": "Read a.py (1 line)", "kind": "read",
        "content": fenced("x = 1"), "locations": [{"path": "/w/a.py", "line": 3}], "rawOutput": {"output": "x = 1"},
    }  # fmt: skip


def test_an_edit_is_a_diff() -> None:
    diff = events.Diff("/w/a.py", "old\n", "new\n")
    new = events.Diff("/w/b.py", None, "made\n")
    (done,) = translate(finished(gate="edit_file", result="ok", diffs=(diff, new)))
    assert done["content"] == [
        {"type": "diff", "path": "/w/a.py", "oldText": "old\n", "newText": "new\n"},
        {"type": "diff", "path": "/w/b.py", "oldText": None, "newText": "made\n"},
    ]
    assert done["rawOutput"] == {"output": "ok"}


def test_a_failed_gate_says_why() -> None:
    _, running, done = translate(called(kind="read"), finished(result="no such file: a", is_error=True))
    assert running["status"] == "in_progress"
    assert done["status"] == "failed"
    assert done["content"] == [{"type": "content", "content": {"type": "text", "text": "no such file: a"}}]


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ({"a": [1]}, '{\n  "a": [\n    1\n  ]\n}'),
        (5, "5"),
        (True, "true"),
        (None, None),
        ("", None),
        ("``` x", "``` x"),
    ],
)
def test_results_of_any_kind(result: Any, text: str | None) -> None:
    (done,) = translate(finished(result=result))
    assert done.get("content", [{}])[0].get("content", {}).get("text") == text


def test_a_result_that_holds_a_fence_gets_a_longer_one() -> None:
    done = translate(called(kind="read"), finished(result="a\n```\nb\n````\nc"))[-1]
    assert done["content"][0]["content"]["text"].startswith("`````\na")


def test_a_long_result_is_shown_in_part_and_given_whole() -> None:
    (done,) = translate(finished(result="x" * 100_000))
    shown_text = done["content"][0]["content"]["text"]
    assert len(shown_text) < CONTENT_LIMIT + 100
    assert "67232 more characters" in shown_text
    assert len(done["rawOutput"]["output"]) == 100_000


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("make test", "make test"),
        ("cd src\nmake", "cd src …"),
        ("  a   b\t c ", "a b c"),
        ("x" * 500, "x" * 160 + " …"),
        ("\n\n", "(empty)"),
        ("one\n\n", "one"),
    ],
)
def test_titles_are_one_line(text: str, title: str) -> None:
    assert translate(command(text=text))[0]["title"] == title


def test_a_command_as_content() -> None:
    translator = Translator(PLAIN)
    pending, running = shown(translator.translate(command(cwd="/w")))
    assert (pending["kind"], pending["status"], pending["rawInput"]) == ("execute", "pending", {"command": "make"})
    assert "content" not in pending
    assert running["status"] == "in_progress"
    assert translator.translate(output("one\n")) == []
    assert translator.dirty
    (view,) = shown(translator.flush())
    assert view["content"] == fenced("one")
    assert "status" not in view
    assert not translator.dirty
    assert translator.flush() == []
    translator.translate(output("two\n"))
    (done,) = shown(translator.translate(ended()))
    assert (done["status"], done["content"]) == ("completed", fenced("one\ntwo"))
    assert done["rawOutput"] == {
        "output": "one\ntwo\n", "exit_code": 0, "signal": None, "timed_out": False, "truncated": False,
    }  # fmt: skip
    assert translator.flush() == []


def test_a_command_in_a_display_terminal() -> None:
    pending, running, piece, done = translate(command(cwd="/w"), output("one\n"), ended(exit_code=3), client=TERMINAL)
    assert pending["content"] == [{"type": "terminal", "terminalId": "b"}]
    assert pending["_meta"] == {"terminal_info": {"terminal_id": "b", "cwd": "/w"}}
    assert running["status"] == "in_progress"
    assert piece == {
        "sessionUpdate": "tool_call_update", "toolCallId": "b", "title": "make", "kind": "execute",
        "_meta": {"terminal_output": {"terminal_id": "b", "data": "one\n"}},
    }  # fmt: skip
    assert done["status"] == "failed"
    assert done["_meta"] == {"terminal_exit": {"terminal_id": "b", "exit_code": 3, "signal": None}}
    assert "content" not in done


def test_a_traceback_is_seen_beside_what_was_printed() -> None:
    """No stream had it, and a client with a display terminal looks at the stream alone."""
    trace = "Traceback (most recent call last):\nZeroDivisionError: division by zero"
    cell = [command(text="1/0"), output("half a line"), ended(exit_code=1, error=trace)]
    *_, piece, done = translate(*cell, client=TERMINAL)
    assert piece["_meta"]["terminal_output"] == {"terminal_id": "b", "data": f"\n{trace}\n"}
    assert done["rawOutput"]["output"] == f"half a line\n{trace}\n"
    done = translate(*cell)[-1]
    assert done["content"] == fenced("half a line") + fenced(trace)
    assert done["rawOutput"]["output"] == f"half a line\n{trace}\n"
    *_, piece, done = translate(command(), ended(timed_out=True), client=TERMINAL)
    assert piece["_meta"]["terminal_output"]["data"] == "stopped: it ran longer than it may\n"


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (ended(), "completed"),
        (ended(exit_code=1), "failed"),
        (ended(exit_code=137), "failed"),
        (ended(timed_out=True), "failed"),
        (ended(error="no sandbox"), "failed"),
    ],
)
def test_how_a_command_ends(end: events.CommandFinished, status: str) -> None:
    assert translate(command(), end)[-1]["status"] == status


def test_done_ends_its_command_and_that_is_no_failure() -> None:
    updates = translate(
        command(),
        called("g", gate="done", args={"answer": "x"}, via="b"),
        finished("g", gate="done", result="x", parent_call_id="b"),
        ended(exit_code=137),
    )
    assert updates[-1]["status"] == "completed"


def test_a_flood_is_shown_by_its_beginning_and_its_end() -> None:
    translator = Translator(PLAIN)
    translator.translate(command())
    for n in range(200_000):
        translator.translate(output(f"line {n}\n"))
    (view,) = shown(translator.flush())
    text = view["content"][0]["content"]["text"]
    lines = text.splitlines()
    assert lines[1] == "line 0"
    assert text.endswith("line 199999\n```")
    gap = next(at for at, line in enumerate(lines) if line.startswith("[… "))
    missing = int(lines[gap + 1].split()[1]) - int(lines[gap - 1].split()[1]) - 1
    assert lines[gap].startswith(f"[… {missing:,} lines (")
    assert len(text) < CONTENT_LIMIT + 100
    (done,) = shown(translator.translate(ended()))
    assert OUTPUT_LIMIT - 100 < len(done["rawOutput"]["output"]) < OUTPUT_LIMIT + 100


def test_the_end_of_a_long_output_is_what_was_recorded_of_it() -> None:
    """Live, and after the session was loaded again: the same text."""
    translator = Translator(PLAIN)
    translator.translate(command())
    translator.translate(output("line 1\n[… 5 lines (30 bytes) not shown …]\nline 7\n"))
    whole = "line 1\n[… 8 lines (60 bytes) not shown …]\nBUILD OK\n"
    (done,) = shown(translator.translate(ended(truncated=True, stdout=whole)))
    assert done["rawOutput"]["output"] == whole
    assert done["content"][0]["content"]["text"] == f"```\n{whole.rstrip()}\n```"


def test_a_progress_bar_is_one_line_of_a_terminal_and_of_the_content() -> None:
    terminal = Translator(TERMINAL)
    terminal.translate(command())
    ids: dict[str, Any] = {**IDS, "call_id": "b"}
    pieces = [
        update["_meta"]["terminal_output"]["data"]
        for event in (
            output("begin\n"),
            events.CommandProgress(**ids, line="50 %"),
            events.CommandProgress(**ids, line="99 %"),
            output("100 %\n"),
            output("end\n"),
        )
        for update in shown(terminal.translate(event))
    ]
    assert pieces == ["begin\n", "\r\x1b[K50 %", "\r\x1b[K99 %", "\r\x1b[K100 %\n", "end\n"]
    plain = Translator(PLAIN)
    for event in (command(), output("begin\n"), events.CommandProgress(**ids, line="50 %")):
        plain.translate(event)
    assert shown(plain.flush())[0]["content"][0]["content"]["text"] == "```\nbegin\n50 %\n```"
    plain.translate(output("100 %\n"))
    assert shown(plain.flush())[0]["content"][0]["content"]["text"] == "```\nbegin\n100 %\n```"


def test_what_is_written_for_the_model_is_not_shown() -> None:
    """Content is for people, ``rawOutput`` for the model, and marks say what came of a call."""
    translator = Translator(PLAIN)
    translator.translate(called("g"))
    notes = {"error": "no such file: 'a'"}
    end = finished("g", result="no such file: 'a'. Did you mean 'b'?", is_error=True, annotations=notes)
    *_, done = shown(translator.translate(end))
    assert done["content"][0]["content"]["text"] == "no such file: 'a'"
    assert done["rawOutput"] == {"output": "no such file: 'a'. Did you mean 'b'?"}
    assert "_meta" not in done
    for client in (PLAIN, TERMINAL):
        translator = Translator(client)
        translator.translate(command())
        notes = {"permission": "rejected", "error": "you rejected this"}
        updates = shown(translator.translate(ended(exit_code=None, error="the user refused this", annotations=notes)))
        assert updates[-1]["_meta"]["cantrip"] == {"permission": "rejected"}
        assert "refused" not in str([{**each, "rawOutput": None} for each in updates])


def test_what_still_runs_at_the_end_has_failed() -> None:
    for client in (PLAIN, TERMINAL):
        translator = Translator(client)
        for event in (command(), output("half\n"), called("g", via="b")):
            translator.translate(event)
        one, two = shown(translator.close())
        assert one["status"] == two["status"] == "failed"
        assert {one["toolCallId"], two["toolCallId"]} == {"b", "g"}
        assert one.get("content") == (fenced("half") if client is PLAIN else None)
        marks = [one["_meta"]["cantrip"], two["_meta"]["cantrip"]]
        assert marks == [{"stopped": True}, {"stopped": True, "via": "b"}]
        assert ("terminal_exit" in one["_meta"]) is (client is TERMINAL)
        assert translator.close() == []


def test_words_and_thoughts() -> None:
    one, two, thought = translate(
        events.Text(**IDS, delta="Hel", message_id="m"),
        events.Text(**IDS, delta="lo", message_id="m"),
        events.Text(**IDS, delta="", message_id="m"),
        events.Thought(**IDS, delta="hm", message_id="m"),
    )
    assert one == {
        "sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "Hel"}, "messageId": "m",
    }  # fmt: skip
    assert two["messageId"] == "m"
    assert thought["sessionUpdate"] == "agent_thought_chunk"
    assert thought["messageId"] != "m"


def end_of_cast(result: Any, reason: str = "done") -> events.CastEnded:
    record = CastRecord("c", "end", "e", "k", result=result, terminated=reason == "done", reason=reason, turns=1)
    return events.CastEnded(**IDS, record=record)


@pytest.mark.parametrize(
    ("said", "end", "answer"),
    [
        (None, end_of_cast("the answer"), "the answer"),
        ("I am at it.", end_of_cast("the answer"), "the answer"),
        ("the answer\n", end_of_cast("the answer"), None),
        (None, end_of_cast({"n": 1}), '```json\n{\n  "n": 1\n}\n```'),
        (None, end_of_cast(None), None),
        (None, end_of_cast(""), None),
        ("words", end_of_cast("words", "text"), None),
        (None, end_of_cast(None, "cancelled"), None),
    ],
)
def test_the_answer_is_said_once(said: str | None, end: events.CastEnded, answer: str | None) -> None:
    before = [events.Text(**IDS, delta=said, message_id="m")] if said else []
    after = translate(*before, end)[len(before) :]
    assert [update["content"]["text"] for update in after] == ([answer] if answer else [])


@pytest.mark.parametrize(
    ("size", "cost", "expected"),
    [
        (200_000, 0.5, {"used": 7, "size": 200_000, "cost": {"amount": 0.5, "currency": "USD"}}),
        (100, 0, {"used": 7, "size": 100, "cost": {"amount": 0.0, "currency": "USD"}}),
    ],
)
def test_usage(size: int | None, cost: float | None, expected: dict[str, Any]) -> None:
    (update,) = translate(events.UsageReported(**IDS, usage=NO_USAGE, cumulative=Usage(cost=cost), used=7, size=size))
    assert update == {"sessionUpdate": "usage_update", **expected}


def test_no_usage_where_the_window_is_not_known() -> None:
    for cost in (None, 0.25):
        assert not translate(
            events.UsageReported(**IDS, usage=NO_USAGE, cumulative=Usage(cost=cost), used=7, size=None)
        )


def test_a_notice_only_where_it_was_offered() -> None:
    retry = events.RetryScheduled(**IDS, message_id="m", attempt=1, delay_s=1.25, error="overloaded", status=529)
    (notice,) = translate(retry, client=ClientAbilities(notices=True))
    assert (notice["sessionUpdate"], notice["severity"]) == ("notice", "warning")
    (thought,) = translate(retry)
    assert thought["sessionUpdate"] == "agent_thought_chunk"


@pytest.mark.parametrize(
    ("capabilities", "expected"),
    [
        ({"session": {"notices": {}}, "_meta": {"terminal_output": True}}, ClientAbilities(True, True)),
        ({"session": {"notices": None}, "_meta": {"terminal_output": "yes"}}, ClientAbilities()),
        ({"session": [], "_meta": 3}, ClientAbilities()),
        (None, ClientAbilities()),
        ("all of them", ClientAbilities()),
    ],
)
def test_what_a_client_can_do(capabilities: Any, expected: ClientAbilities) -> None:
    assert ClientAbilities.of(capabilities) == expected


def test_a_plan_is_told_whole() -> None:
    steps = (events.PlanEntry("Look", "high", "completed"), events.PlanEntry("Mend"))
    assert translate(events.PlanChanged(**IDS, entries=steps), events.PlanChanged(**IDS, entries=())) == [
        {
            "sessionUpdate": "plan",
            "entries": [
                {"content": "Look", "priority": "high", "status": "completed"},
                {"content": "Mend", "priority": "medium", "status": "pending"},
            ],
        },
        {"sessionUpdate": "plan", "entries": []},
    ]
