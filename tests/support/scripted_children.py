"""Small ways to make parents and children, and to look at what they left."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from cantrip_acp import Call, Cantrip, Circle, Loom, RetryPolicy, ScriptedCrystal
from cantrip_acp.types.records import CastRecord, Turn

GATES = ("done", "echo", "call_agent", "call_agent_batch")


async def no_wait(seconds: float) -> None:
    """Time that passes at once."""


def done(answer: Any = "ok") -> dict[str, Any]:
    return {"tool_calls": [{"gate": "done", "args": {"answer": answer}}]}


def call(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


def calls(*each: tuple[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": dict(args)} for gate, args in each]}


def parent(
    *responses: Mapping[str, Any],
    children: Iterable[Any] = (),
    medium: str = "conversation",
    gates: Any = GATES,
    wards: Iterable[Mapping[str, Any]] = (),
    workspace: Path | None = None,
    prompt: str | None = None,
    loom: Loom | None = None,
    usage: Mapping[str, Any] | None = None,
    **more: Any,
) -> Cantrip:
    return Cantrip(
        ScriptedCrystal(responses, children=list(children), usage=usage, record_inputs=True),
        Call(system_prompt=prompt),
        Circle(medium, gates, [{"max_turns": 10}, *wards], workspace=workspace),
        loom=loom,
        retry=RetryPolicy(sleep=no_wait),
        **more,
    )


def turns(cantrip: Cantrip) -> list[Turn]:
    """The crystals' turns in the order of writing."""
    return [turn for turn in cantrip.loom.turns() if turn.role == "crystal"]


def results(cantrip: Cantrip) -> list[Any]:
    """Gate results of all turns, in the order of writing."""
    return [record.result for turn in turns(cantrip) for record in turn.observation.results]


def of_root(cantrip: Cantrip) -> list[Turn]:
    root = turns(cantrip)[0].entity_id
    return [turn for turn in turns(cantrip) if turn.entity_id == root]


def first_result(cantrip: Cantrip) -> Any:
    """What the root's first gate call came to."""
    return next(record for turn in of_root(cantrip) for record in turn.observation.results)


def ends(cantrip: Cantrip) -> list[CastRecord]:
    """How casts ended, in the order of writing."""
    return [r for r in cantrip.loom.records() if isinstance(r, CastRecord) and r.event == "end"]
