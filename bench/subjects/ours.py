"""cantrip-acp: one cast in the conversation medium, its loom a file."""

from __future__ import annotations

import anyio

from bench.subjects.report import ARGUMENT, Clock, arguments, finish
from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.crystals.contract import Emit, Query, Response


class Instant(ScriptedCrystal):
    """The scripted crystal, with a tick at every query."""

    clock: Clock

    async def query(self, query: Query, emit: Emit) -> Response:
        self.clock.tick()
        return await super().query(query, emit)


async def main() -> None:
    turns, folder = arguments()
    clock = Clock()
    responses = [{"tool_calls": [{"gate": "echo", "args": {"text": ARGUMENT}}]} for _ in range(turns)]
    crystal = Instant(responses=[*responses, {"tool_calls": [{"gate": "done", "args": {"answer": "finished"}}]}])
    crystal.clock = clock
    circle = Circle(medium="conversation", gates=["done", "echo"], wards=[{"max_turns": turns + 1}])
    loom = Loom.open(folder / "turns.loom.jsonl")
    result = await Cantrip(crystal, Call(), circle, loom=loom).cast("go")
    if not result.terminated:
        raise SystemExit(f"the cast ended with {result.reason} after {result.turns} turns")
    finish(clock, turns, folder)


if __name__ == "__main__":
    anyio.run(main)
