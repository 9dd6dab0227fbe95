"""An entity's medium, prepared before its first turn: the worker waits, nothing is delayed, nothing is left."""

from __future__ import annotations

import signal
from pathlib import Path

import anyio
import psutil
import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.mediums.code.medium import CodeMedium
from cantrip_acp.mediums.code.session import CodeSession
from cantrip_acp.types.errors import DefinitionError
from tests.sandbox.integration.conftest import both_back_ends

pytestmark = pytest.mark.anyio


def entity(*code: str, medium: str | CodeMedium = "code", wards: dict | None = None, workspace: Path | None = None):
    circle = Circle(medium, ["done"], {"max_turns": 5, **(wards or {})}, workspace=workspace)
    return Cantrip(ScriptedCrystal([{"code": each} for each in code]), Call(), circle).invoke()


def tree(pid: int) -> list[psutil.Process]:
    """A sandbox's processes, by its first one."""
    first = psutil.Process(pid)
    return [first, *first.children(recursive=True)]


async def worker_of(made) -> tuple[CodeSession, int, int]:
    session = await made.session()
    assert isinstance(session, CodeSession)
    assert session._worker is not None
    return session, session._worker.first, session._worker.pid


@both_back_ends
async def test_the_first_cell_finds_its_worker(back_end: str) -> None:
    async with entity("import os; done(os.getpid())") as made:
        await made.warm()
        session, first, pid = await worker_of(made)
        assert psutil.Process(pid).status() == psutil.STATUS_STOPPED
        assert (await made.cast("go")).terminated
        assert session._worker is not None
        assert (session._worker.first, session._worker.pid) == (first, pid)
        family = tree(first)
    assert not psutil.wait_procs(family, 5)[1]


@both_back_ends
@pytest.mark.parametrize("moment", ["at once", 0.0, 0.01, 0.05, 0.2])
async def test_closing_meanwhile_leaves_nothing(
    back_end: str, moment: str | float, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    real = CodeSession._start

    async def start(self: CodeSession):
        worker = await real(self)
        started.append(worker.first)
        return worker

    monkeypatch.setattr(CodeSession, "_start", start)
    before = set(psutil.Process().children(recursive=True))
    made = entity("done(1)")
    async with anyio.create_task_group() as group:
        group.start_soon(made.warm)
        if not isinstance(moment, str):
            await anyio.sleep(moment)
        await made.close()
    left = [
        p
        for p in psutil.Process().children(recursive=True)
        if p not in before and p.name() in ("bwrap", "bash", "python")
    ]
    assert not psutil.wait_procs(left, 5)[1]
    assert not made.medium_session.is_open


async def test_a_first_cast_waits_for_what_is_under_way() -> None:
    async with entity("done(40 + 2)") as made, anyio.create_task_group() as group:
        group.start_soon(made.warm)
        await anyio.sleep(0)
        assert (await made.cast("go")).result == 42
        session, first, _ = await worker_of(made)
        assert session._count == 1
        assert len([p for p in tree(first) if p.name().startswith("python")]) == 1


async def test_a_cancelled_cast_leaves_the_preparation_alone() -> None:
    async with entity("1", "done(2)") as made, anyio.create_task_group() as group:
        group.start_soon(made.warm)
        with anyio.move_on_after(0.001):
            await made.cast("go")
        assert (await made.cast("again")).terminated


async def test_a_worker_killed_before_its_first_cell_is_another_one() -> None:
    async with entity("done('fine')", "done('fine')") as made:
        await made.warm()
        _, first, pid = await worker_of(made)
        psutil.Process(pid).send_signal(signal.SIGKILL)
        psutil.wait_procs([psutil.Process(first)] if psutil.pid_exists(first) else [], 5)
        assert (await made.cast("go")).result == "fine"


async def test_what_cannot_be_had_is_for_the_first_cast_to_say() -> None:
    async with entity("1", medium=CodeMedium(python="/nowhere/python")) as made:
        await made.warm()
        with pytest.raises(DefinitionError, match="code_python"):
            await made.cast("go")


async def test_stand_ins_wait_for_the_first_cell(tmp_path: Path) -> None:
    async with entity("done(1)", wards={"code_writable_paths": ["workspace"]}, workspace=tmp_path) as made:
        await made.warm()
        session = await made.session()
        assert isinstance(session, CodeSession)
        assert session._worker is None
        assert not list(tmp_path.iterdir())
        assert (await made.cast("go")).result == 1


@pytest.mark.parametrize("medium", ["bash", "conversation", "monty"])
async def test_other_mediums(medium: str) -> None:
    if medium == "monty":
        pytest.importorskip("pydantic_monty")
    async with entity(medium=medium) as made:
        await made.warm()
        assert await made.session() is await made.session()
