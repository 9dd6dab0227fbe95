"""Spans of a real `cantrip-acp`, as an OTLP receiver of the tests gets them over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.acp_client import SOON, RawClient
from tests.support.fixtures.acp import DONE
from tests.support.otlp_receiver import Receiver, attributes

ID = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def test_a_prompts_spans_join_the_clients_trace(
    start_process: Callable[..., RawClient], folder: Path, receiver: Receiver
) -> None:
    usage = {"prompt_tokens": 12, "completion_tokens": 3}
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    agent = start_process([{**DONE, "usage": usage}], process={"env": env})
    session = agent.session(folder)
    result = agent.prompt(session, _meta={"traceparent": f"00-{ID}-{SPAN}-01"})
    assert result["stopReason"] == "end_turn"
    spans = receiver.spans(3)
    cast = next(span for name, span in spans.items() if name.startswith("invoke_agent"))
    assert (cast.trace_id.hex(), cast.parent_span_id.hex()) == (ID, SPAN)
    assert {s.trace_id.hex() for s in spans.values()} == {ID}
    assert spans["chat scripted"].parent_span_id == spans["execute_tool done"].parent_span_id == cast.span_id
    said = attributes(spans["chat scripted"])
    assert said["gen_ai.conversation.id"] == session
    assert (said["gen_ai.usage.input_tokens"], said["gen_ai.usage.output_tokens"]) == (12, 3)
    assert said["gen_ai.response.finish_reasons"] == ["tool_call"]
    assert not any("messages" in key for key in said)
    about = attributes(receiver.requests[0].resource_spans[0].resource)
    assert about["service.name"] == "cantrip-acp"
    assert about["service.version"]


def test_the_last_spans_leave_with_the_process(
    start_process: Callable[..., RawClient], folder: Path, receiver: Receiver
) -> None:
    env = {
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{receiver.url}/v1/traces",
        "OTEL_BSP_SCHEDULE_DELAY": "600000",
        "OTEL_SERVICE_NAME": "mine",
    }
    agent = start_process([DONE], process={"env": env})
    agent.prompt(agent.session(folder))
    assert not receiver.requests
    agent.hang_up()
    receiver.spans(3)
    assert attributes(receiver.requests[0].resource_spans[0].resource)["service.name"] == "mine"


def test_a_collector_that_is_not_there_costs_nothing(start_process: Callable[..., RawClient], folder: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_BSP_SCHEDULE_DELAY": "50"}
    agent = start_process([DONE, DONE], process={"env": env})
    session = agent.session(folder)
    assert agent.prompt(session)["stopReason"] == "end_turn"
    time.sleep(0.3)
    assert agent.prompt(session)["stopReason"] == "end_turn"
    took = agent.hang_up()
    assert took < SOON, f"{took:.1f} s"


@pytest.mark.parametrize("off", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_TRACES_EXPORTER": "none"}])
def test_switched_off(
    start_process: Callable[..., RawClient], folder: Path, receiver: Receiver, off: dict[str, str]
) -> None:
    agent = start_process([DONE], process={"env": {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, **off}})
    agent.prompt(agent.session(folder))
    agent.hang_up()
    assert not receiver.requests


def test_console_writes_to_stderr_alone(start_process: Callable[..., RawClient], folder: Path) -> None:
    agent = start_process(
        [DONE], process={"env": {"OTEL_TRACES_EXPORTER": "console", "OTEL_BSP_SCHEDULE_DELAY": "100"}}
    )
    agent.prompt(agent.session(folder))
    agent.hang_up()
    assert "execute_tool done" in agent.stderr()


@pytest.mark.sandbox
@pytest.mark.parametrize("meta", ["traceparent", "cantrip_trace_id"])
def test_one_trace_from_the_request_into_a_childs_sandbox_and_out_to_the_collector(
    start_process: Callable[..., RawClient], folder: Path, receiver: Receiver, meta: str
) -> None:
    call = {"intent": "say your trace", "medium": "bash", "gates": ["done"]}
    agent = start_process(
        [{"tool_calls": [{"gate": "call_agent", "args": call}]}, DONE],
        gates=["done", "call_agent"],
        wards=[{"max_turns": 5}, {"max_depth": 1}],
        crystal={"children": [[{"bash": "sh -c 'cantrip_done \"$TRACEPARENT\"'"}]]},
        process={"env": {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}},
    )
    session = agent.session(folder)
    given = {"traceparent": f"00-{ID}-{SPAN}-01"} if meta == "traceparent" else {meta: ID}
    result = agent.prompt(session, _meta=given)
    assert (result["stopReason"], result["_meta"]["cantrip_trace_id"]) == ("end_turn", ID)
    # The loom: each turn of parent and child alike.
    loom = Path(result["_meta"]["cantrip"]["loom"])
    turns = [
        r for r in map(json.loads, loom.read_text().splitlines()) if r["type"] == "turn" and r["role"] == "crystal"
    ]
    assert len({turn["entity_id"] for turn in turns}) == 2
    assert {turn["metadata"]["trace_id"] for turn in turns} == {ID}
    # The process inside the child's sandbox: below the command's own span.
    calls = [r for turn in turns for r in turn["observation"]["results"] if r["gate"] == "call_agent"]
    _version, trace_id, span_id, _flags = calls[0]["result"].split("-")
    assert trace_id == ID
    agent.hang_up()
    # The collector: one tree, from the client's span down to that command.
    receiver.spans(6)
    every = {s.span_id.hex(): s for s in receiver.all()}
    assert {s.trace_id.hex() for s in every.values()} == {ID}
    line = []
    at = span_id
    while at in every:
        line.append(every[at].name.split()[0])
        at = every[at].parent_span_id.hex()
    assert line == ["execute_tool", "invoke_agent", "execute_tool", "invoke_agent"], [s.name for s in every.values()]
    if meta == "traceparent":
        assert at == SPAN
