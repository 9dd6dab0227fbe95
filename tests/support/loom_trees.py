"""A loom with all that threads can be: an original, two forks, a child, another cast of the same cantrip."""

from __future__ import annotations

from typing import Any

from cantrip_acp import Loom, Turn
from cantrip_acp.types.records import CastRecord, ForkRecord, GateRecord, Observation, Output, TurnMetadata, Utterance

EVIL = "Fix\x1b]0;owned\x07 the\u202e bug \x9b31m"
"""An intent that would write to a terminal's title, turn a line around and colour what follows."""


def moment(minute: int) -> str:
    return f"2026-03-04T05:{minute:02d}:00.000000Z"


def turn(name: str, parent: str | None, entity: str, cast: str | None, minute: int = 0, **more: Any) -> Turn:
    about = TurnMetadata(100, 10, 5, more.pop("cost", 0.25), 500.0, moment(minute), more.pop("model", "m-1"))
    results = tuple(GateRecord(g, {"q": 1}, "out", failed) for g, failed in more.pop("gates", ()))
    seen = Observation(results, more.pop("output", None))
    said = Utterance(more.pop("said", None), code=more.pop("code", None))
    names = tuple(r.gate for r in results)
    return Turn(
        name, parent, "c", entity, cast, metadata=about, observation=seen, utterance=said, gate_calls=names, **more
    )


def start(cast: str, entity: str, intent: str, minute: int, *, spawned_by: str | None = None) -> CastRecord:
    return CastRecord(
        cast, "start", entity, "c", timestamp=moment(minute), intent=intent, attributes={"model": "m-1"},
        parent_turn_id=spawned_by,
    )  # fmt: skip


def end(cast: str, entity: str, minute: int, reason: str, turns: int, **usage: Any) -> CastRecord:
    done = reason in ("done", "text")
    used = {
        "prompt_tokens": 100 * turns,
        "completion_tokens": 10 * turns,
        "cached_tokens": 5 * turns,
        "cost": 0.25 * turns,
    }
    return CastRecord(
        cast, "end", entity, "c", timestamp=moment(minute), reason=reason, terminated=done, truncated=not done, turns=turns,
        usage=used | usage,
    )  # fmt: skip


def grow(loom: Loom, intent: str = "Fix the bug") -> Loom:
    """The original t1 t2 t3 (done), the forks of t1: u2 u3 (max_turns) and v2 (goes on), t2's child w1, and the cast x1."""
    for record in (
        Turn("root", None, "c", "e1", None, role="call"),
        start("k1", "e1", intent, 1),
        turn("t1", "root", "e1", "k1", 2, gates=[("search", False)], said="Looking."),
        turn("t2", "t1", "e1", "k1", 3, gates=[("call_agent", False), ("search", True)]),
        Turn("call4", "t2", "c4", "e4", None, role="call"),
        start("k4", "e4", "Read the log", 3, spawned_by="t2"),
        turn("w1", "call4", "e4", "k4", 4, gates=[("done", False)], terminated=True, reason="done"),
        end("k4", "e4", 4, "done", 1),
        turn("t3", "t2", "e1", "k1", 5, gates=[("done", False)], terminated=True, reason="done"),
        end("k1", "e1", 6, "done", 3, prompt_tokens=400, children={"prompt_tokens": 100}),
        ForkRecord("f2", "t1", "e2", "none"),
        start("k2", "e2", intent, 10),
        turn("u2", "t1", "e2", "k2", 11, code="ls", output=Output(stderr="no", exit_code=2)),
        turn("u3", "u2", "e2", "k2", 12, said="Deep in the NEEDLE stack", truncated=True, reason="max_turns"),
        end("k2", "e2", 13, "max_turns", 2),
        ForkRecord("f3", "t1", "e3", "snapshot"),
        start("k3", "e3", "Fix it otherwise", 20),
        turn("v2", "t1", "e3", "k3", 21, cost=None, model="m-2"),
        start("k5", "e5", "Other", 30),
        turn("x1", "root", "e5", "k5", 31, said="No.", terminated=True, reason="text"),
        end("k5", "e5", 32, "text", 1),
    ):
        loom.append(record)
    return loom
