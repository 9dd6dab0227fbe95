"""Real workers in real sandboxes, one session a test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Circle
from cantrip_acp.gates.contract import Gate
from cantrip_acp.gates.wards import Wards
from cantrip_acp.mediums.code.medium import CodeMedium
from cantrip_acp.mediums.code.session import CodeSession
from cantrip_acp.types.context_block import ContextBlock
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.events import Event
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import GateRecord, Output
from tests.sandbox.integration.conftest import _bubblewrap, back_end, sandboxed

__all__ = ["_bubblewrap", "back_end"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Turn:
    """A turn that keeps what happens in it; ``gates`` answer by name."""

    entity_id = "e_test"
    cast_id = "c_test"
    trace_id = "0" * 31 + "1"
    traceparent = f"00-{trace_id}-{'0' * 15}1-00"
    depth = 0
    folded = 0
    ends_when_cut = False

    def __init__(self, wards: Wards, gates: Mapping[str, Callable[..., Any]]) -> None:
        self.wards = wards
        self.gates = gates
        self.finished = False
        self.listening = True
        self.calls: list[tuple[str, Any]] = []
        self.answers: list[Any] = []
        self.events: list[Event] = []
        self.partial: Output | None = None
        self.context: tuple[ContextBlock, ...] = ()
        self.turns: list[Any] = []

    def shared_network(self) -> None:
        return None

    def history(self, start: int, count: int) -> tuple[int, list[Any]]:
        return len(self.turns), self.turns[start : start + count]

    async def gate(
        self, name: str, args: Mapping[str, Any] | str, *, via: str | None = None, own: Gate | None = None
    ) -> GateRecord:
        self.calls.append((name, args))
        try:
            if name == "done":
                result, failed = args["answer"], False  # type: ignore[index]
                self.finished = True
                self.answers.append(result)
            else:
                result, failed = self.gates[name](**args), False  # type: ignore[arg-type]
                if hasattr(result, "__await__"):
                    result = await result
        except (GateError, KeyError, TypeError) as error:
            result, failed = f"{error}", True
        return GateRecord(name, args, result, failed)

    async def emit(self, event: Event) -> None:
        self.events.append(event)

    def interrupted(self, output: Output, report: object) -> None:
        self.partial = output


class Python:
    """A session, and one method: run a cell in it."""

    def __init__(self, session: CodeSession, circle: Circle, gates: Mapping[str, Callable[..., Any]]) -> None:
        self.session = session
        self.turn = Turn(circle.wards, gates)
        self._numbers = itertools.count(1)

    async def __call__(self, code: str) -> Output:
        call = ToolCall(f"t.{next(self._numbers)}", "python", msgspec.json.encode({"code": code}).decode())
        return await self.session.run(call, self.turn)

    async def value(self, code: str) -> str | None:
        """The value of a cell that must not fail."""
        output = await self(code)
        assert output.error is None, output.error
        return output.value

    @property
    def worker(self) -> Any:
        """The worker behind it."""
        return self.session._worker


Make = Callable[..., Awaitable[Python]]


def _echo(text: str) -> str:
    return text


@pytest.fixture
async def make(back_end: str) -> AsyncIterator[Make]:
    """Make sessions: wards, and gates as plain functions by name."""
    sessions: list[CodeSession] = []

    async def made(
        wards: Mapping[str, Any] | None = None,
        *,
        workspace: Path | None = None,
        medium: CodeMedium | None = None,
        **gates: Callable[..., Any],
    ) -> Python:
        functions = {"echo": _echo, **gates}
        declared = [Gate.of(f, name=n) for n, f in functions.items()]
        circle = Circle(
            medium or CodeMedium(), ["done", *declared], {"max_turns": 5, **(wards or {})}, workspace=workspace
        )
        session = await circle.medium.open(circle, "e_test")
        assert isinstance(session, CodeSession)
        sessions.append(session)
        return Python(session, circle, functions)

    yield made
    for session in sessions:
        await session.close()
    assert sandboxed() == []


@pytest.fixture
async def python(make: Make) -> Python:
    """A session with the gates done and echo."""
    return await make()
