"""Entities that load modules of their own, in real sandboxes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.core.entity import Entity
from cantrip_acp.gates.loaded.modules import LoadedModules
from cantrip_acp.telemetry.tracing import trace_from
from cantrip_acp.types.records import GateRecord
from tests.sandbox.integration.conftest import _bubblewrap, back_end

__all__ = ["_bubblewrap", "back_end"]

KIT = '''
"""Words."""
from typing import Literal
calls = 0

def count_words(text: str, least: int = 1, how: Literal["all", "once"] = "all") -> dict[str, int]:
    """Count the words of a text.

    Those of at least so many letters.
    """
    global calls
    calls += 1
    words = [w for w in text.split() if len(w) >= least]
    return {"words": len(words if how == "all" else set(words)), "calls": calls}

def fail(why: str):
    print("on the way")
    raise ValueError(why)

def _hidden(): ...
'''
FAIL_LINE = 18


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sandbox)


class Loader:
    """An entity, and its gates called as its medium would."""

    def __init__(self, entity: Entity) -> None:
        self.entity = entity
        self._calls = 0

    async def call(self, gate: str, **args: Any) -> GateRecord:
        self._calls += 1
        return await self.entity.executor.execute(
            gate, args, call_id=f"x.{self._calls}", entity_id=self.entity.id, cast_id="c", trace=trace_from(None)
        )

    async def load(self, module: str = "textkit", source: str | None = KIT, **args: Any) -> GateRecord:
        if source is not None:
            args["source"] = source
        return await self.call("compile_and_load", module=module, **args)

    async def loaded(self, module: str, source: str) -> Any:
        record = await self.load(module, source)
        assert not record.is_error, record.result
        return record.result

    @property
    def modules(self) -> LoadedModules:
        session = self.entity.executor._sessions["compile_and_load"]
        assert isinstance(session, LoadedModules)
        return session

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self.modules._process.pid


Make = Callable[..., Awaitable[Loader]]


def cantrip(
    responses: Sequence[Mapping[str, Any]] = (),
    *,
    medium: str = "conversation",
    gates: Sequence[Any] = ("done", "compile_and_load"),
    workspace: Path | None = None,
    **wards: Any,
) -> Cantrip:
    wards = {"max_turns": 9, **wards}
    circle = Circle(medium, gates, wards, workspace=workspace)
    return Cantrip(ScriptedCrystal(list(responses)), circle=circle, loom=Loom.memory())


@pytest.fixture
async def make(back_end: str) -> AsyncIterator[Make]:
    entities: list[Entity] = []

    async def made(**options: Any) -> Loader:
        entity = cantrip(**options).invoke()
        entities.append(entity)
        return Loader(entity)

    yield made
    for entity in entities:
        await entity.close()


@pytest.fixture
async def loader(make: Make) -> Loader:
    """An entity that may load textkit and other."""
    return await make(allow_compile_modules=["textkit", "other"])
