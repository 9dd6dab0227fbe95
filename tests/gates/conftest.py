"""Calling a gate as the executor does: the handler with a context, awaited where it wants that."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp.core.wards import Wards
from cantrip_acp.gates.contract import Gate, GateContext, GateReply


def context_of(workspace: Path | None, wards: Any = (), **dependencies: Any) -> GateContext:
    return GateContext(dependencies, Wards.of(wards, base=workspace), workspace, "entity", "cast", "trace", "call")


def call_in(context: GateContext, gate: Gate, **args: Any) -> GateReply:
    async def called() -> GateReply:
        result = gate.handler(args, context)
        return await result if inspect.isawaitable(result) else result

    return anyio.run(called)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """An empty workspace; beside it lies a folder with what nobody inside may reach."""
    folder = tmp_path / "workspace"
    folder.mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("the outside secret\n")
    return folder


@pytest.fixture
def call(workspace: Path) -> Callable[..., GateReply]:
    """``call(GATE, **arguments)`` in the workspace."""
    context = context_of(workspace)
    return lambda gate, **args: call_in(context, gate, **args)
