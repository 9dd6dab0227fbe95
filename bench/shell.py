"""A bash medium to measure: the circle, a session in it, and the turn that it thinks it runs in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.gates.contract import Gate
from cantrip_acp.gates.wards import Wards
from cantrip_acp.mediums.contract import MediumSession
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.events import Event
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import GateRecord, Output


class Turn:
    """A turn with nobody watching; gates answer at once, so that what is measured is the way there and back."""

    entity_id = "e_bench"
    cast_id = "c_bench"
    trace_id = "0" * 31 + "1"
    traceparent = f"00-{trace_id}-{'0' * 15}1-00"
    depth = 0
    finished = False
    folded = 0
    ends_when_cut = False
    listening = False
    context: tuple[ContextBlock, ...] = ()

    def __init__(self, wards: Wards) -> None:
        self.wards = wards
        self.calls = 0

    def shared_network(self) -> None:
        return None

    def history(self, start: int, count: int) -> tuple[int, list[object]]:
        return 0, []

    async def gate(
        self, name: str, args: Mapping[str, object] | str, *, via: str | None = None, own: object = None
    ) -> GateRecord:
        self.calls += 1
        decoded = msgspec.json.decode(args) if isinstance(args, str) else args
        return GateRecord(name, decoded, decoded.get("text", ""), False, f"g{self.calls}")

    async def emit(self, event: Event) -> None:
        return None

    def interrupted(self, output: Output, report: object) -> None:
        return None


class Shell:
    """An open session, and one method: run a command in it."""

    def __init__(self, session: MediumSession, turn: Turn) -> None:
        self.session = session
        self.turn = turn
        self._count = 0

    async def run(self, command: str) -> Output:
        """One turn's command. Raises RuntimeError unless it exits 0: a benchmark of failures measures nothing."""
        self._count += 1
        call = ToolCall(f"tc_{self._count}", "bash", msgspec.json.encode({"command": command}).decode())
        output = await self.session.run(call, self.turn)
        if output.exit_code != 0:
            raise RuntimeError(f"{command!r} ended with {output.exit_code}: {output.stderr or output.error}")
        return output


def circle(workspace: Path, gates: tuple[Gate | str, ...] = ("done", "echo")) -> Circle:
    """A coding entity's circle: the workspace writable, network off."""
    wards: list[dict[str, object]] = [{"max_turns": 10}, {"bash_writable_paths": ["."]}]
    return Circle(medium="bash", gates=gates, wards=wards, workspace=workspace)


@asynccontextmanager
async def shell(workspace: Path) -> AsyncIterator[Shell]:
    """A session in a workspace, closed at the end."""
    made = circle(workspace)
    session = await made.medium.open(made, "e_bench")
    try:
        yield Shell(session, Turn(made.wards))
    finally:
        await session.close()
