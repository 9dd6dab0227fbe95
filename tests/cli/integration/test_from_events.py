"""What the terminal shows of an event: `EventTranslator`."""

from __future__ import annotations

from typing import Any

from cantrip_acp.cli.render.display import ChildAction, Note, ToolCall
from cantrip_acp.cli.render.from_events import EventTranslator
from cantrip_acp.types import events
from cantrip_acp.types.records import GateRecord, Output, Turn, TurnMetadata, Utterance

IDS: dict[str, Any] = {"entity_id": "e", "cast_id": "k"}
REJECTED = {"permission": "rejected", "error": "You rejected this."}


def test_a_rejected_command_shows_the_text_for_people() -> None:
    finished = events.CommandFinished(
        **IDS, call_id="c", tool="bash", record=Output(error="Do not try this again.", annotations=REJECTED)
    )
    heading, end = EventTranslator().translate(finished)
    assert isinstance(heading, ToolCall)
    assert heading.title == "not run"
    assert isinstance(end, ToolCall)
    assert (end.status, end.output) == ("failed", "You rejected this.\n")


def test_a_rejected_gate_shows_the_text_for_people() -> None:
    finished = events.GateFinished(
        **IDS,
        call_id="c",
        record=GateRecord("write_file", {}, "Do not try this again.", is_error=True, annotations=REJECTED),
    )
    (call,) = EventTranslator().translate(finished)
    assert isinstance(call, ToolCall)
    assert call.result == "You rejected this."


def test_a_refusal_that_nobody_was_asked_about_says_how_to_allow_the_call() -> None:
    advice = "nobody named the host; name it with --allow-host"
    annotations = {"permission": "refused", "error": "nobody named the host"}
    finished = events.GateFinished(
        **IDS, call_id="c", record=GateRecord("fetch", {}, advice, is_error=True, annotations=annotations)
    )
    (call,) = EventTranslator().translate(finished)
    assert isinstance(call, ToolCall)
    assert call.result == advice


def test_done_is_shown_as_a_call_only_when_it_fails() -> None:
    translator = EventTranslator()
    called = events.GateCalled(**IDS, call_id="d", gate="done", args={"answer": 1})
    assert not list(translator.translate(called))
    failed = events.GateFinished(**IDS, call_id="d", record=GateRecord("done", {}, "no", is_error=True))
    assert [type(item) for item in translator.translate(failed)] == [ToolCall, ToolCall]
    assert not list(translator.translate(called))
    assert not list(translator.translate(events.GateFinished(**IDS, call_id="d", record=GateRecord("done", {}, 1))))


def test_children_are_numbered_as_they_start() -> None:
    translator = EventTranslator()

    def child(*path: str) -> str:
        inner = events.CastStarted(**IDS, intent="x", trace_id="0" * 32)
        event = events.ChildEvent(**IDS, path=path, calls=tuple("g" for _ in path), inner=inner)
        (item,) = translator.translate(event)
        assert isinstance(item, ChildAction)
        return item.number

    assert [child("a"), child("b"), child("b", "c"), child("a")] == ["1", "2", "2.1", "1"]


def test_a_fold_is_a_note() -> None:
    fold = Turn("t", None, "k", "e", None, role="fold", utterance=Utterance("s"), metadata=TurnMetadata(folded=3))
    (note,) = EventTranslator().translate(events.Folded(**IDS, turn=fold))
    assert note == Note("turns 1 to 3 were folded")
