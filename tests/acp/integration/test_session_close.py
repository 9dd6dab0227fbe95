"""A session that is closed or loaded: prompts are told so, and no loom is closed while a cast may write to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.acp.wire.jsonrpc import RESOURCE_NOT_FOUND
from tests.support.acp_client import RawClient

STUBBORN = "trap '' TERM INT HUP; for i in 1 2 3 4 5 6 7 8 9; do sleep 60 & done; wait; sleep 600"


def prompt(session: str) -> dict[str, Any]:
    return {"sessionId": session, "prompt": [{"type": "text", "text": "Go."}]}


def ends(state: Path) -> list[tuple[str | None, bool]]:
    """Each cast's reason, and whether anything in its loom is damaged or left open."""
    found = []
    for path in (state / "looms").glob("*.loom.jsonl"):
        with Loom.open(path, readonly=True) as loom:
            for _, end in loom.casts():
                found.append((end.reason if end is not None else None, not loom.check() and not loom.unfinished()))
    return found


@pytest.mark.parametrize("servers", [False, True])
@pytest.mark.parametrize("method", ["session/load", "session/resume"])
def test_a_prompt_behind_a_load_is_told_that_the_session_is_being_loaded(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, method: str, servers: bool
) -> None:
    path = recipe([{"content": f"{n}"} for n in range(30)])
    state = tmp_path / "state"
    agent = RawClient("--recipe", path, "--state-dir", str(state))
    try:
        agent.initialize()
        session = agent.session(folder)
        agent.prompt(session)
    finally:
        agent.close()
    agent = RawClient("--recipe", path, "--state-dir", str(state))
    try:
        agent.initialize()
        mcp = [{"name": "s", "command": "/bin/true", "args": [], "env": []}] if servers else []
        load = agent.ask(method, {"sessionId": session, "cwd": str(folder), "mcpServers": mcp})
        asked = agent.ask("session/prompt", prompt(session))
        replies = {m["id"]: m for m in (agent.until(lambda m: "id" in m and "method" not in m) for _ in range(2))}
        assert "result" in replies[load]
        error = replies[asked]["error"]
        assert (error["code"], error["data"]["reason"]) == (-32600, "session_loading")
        assert "is being loaded" in error["message"]
        assert agent.prompt(session)["stopReason"] == "end_turn"
    finally:
        agent.close()


@pytest.mark.sandbox
@pytest.mark.parametrize("how", ["close", "delete", "hang up"])
@pytest.mark.parametrize("medium", ["bash", "code"])
def test_a_stubborn_command_ends_in_the_loom_before_the_session_is_closed(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, how: str, medium: str
) -> None:
    code = (
        "import signal, time\nfor s in (15, 2, 1): signal.signal(s, signal.SIG_IGN)\n"
        "try:\n  time.sleep(600)\nexcept BaseException:\n  time.sleep(600)"
    )
    response = {"bash": STUBBORN} if medium == "bash" else {"code": code}
    path = recipe([response], medium=medium, gates=["done"])
    state = tmp_path / "state"
    agent = RawClient("--recipe", path, "--state-dir", str(state))
    try:
        agent.initialize()
        session = agent.session(folder)
        running = agent.start_prompt(session)
        agent.until(lambda m: "in_progress" in json.dumps(m))
        time.sleep(0.3)
        if how == "hang up":
            agent.process.stdin.close()  # type: ignore[union-attr]
            assert agent.process.wait(60) == 0
        else:
            closing = agent.ask(f"session/{how}", {"sessionId": session})
            late = agent.ask("session/prompt", prompt(session))
            replies = {m["id"]: m for m in (agent.until(lambda m: "id" in m and "method" not in m) for _ in range(3))}
            assert replies[running]["result"]["stopReason"] == "cancelled"
            assert "result" in replies[closing]
            error = replies[late]["error"]
            # Where the session was closed before the prompt came, it is unknown.
            assert error["data"].get("reason") in ("session_closing", "session_deleting", "prompt_in_progress") or (
                error["code"] == RESOURCE_NOT_FOUND and session in error["message"]
            )
    finally:
        agent.close()
    if how != "delete":
        assert ends(state) == [("cancelled", True)]


@pytest.mark.anyio
@pytest.mark.parametrize("late", [False, True])
async def test_a_crystal_that_does_not_stop_keeps_the_loom_open(tmp_path: Path, late: bool) -> None:
    """In process: such a crystal is a program's own."""
    import anyio

    from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.sessions.factory import OpenedSession, Restored
    from cantrip_acp.acp.sessions.session import Session
    from cantrip_acp.acp.sessions.session_store import SessionMetadata
    from cantrip_acp.telemetry import tracing
    from cantrip_acp.types.errors import LoomError

    asked, closed = anyio.Event(), anyio.Event()

    class Hanging(ScriptedCrystal):
        async def query(self, query: Any, emit: Any) -> Any:
            asked.set()
            with anyio.CancelScope(shield=True):
                await (closed.wait() if late else anyio.sleep(0.5))
            return await super().query(query, emit)

    path = tmp_path / "a.loom.jsonl"
    loom = Loom.open(path)
    entity = Cantrip(
        Hanging([{"content": "x"}]), Call(), Circle(gates=["done"], wards=[{"max_turns": 2}]), loom=loom
    ).invoke()

    class Silent:
        congested = False

        def notify_now(self, *_: Any) -> None:
            return None

    class Agent:
        connection = Silent()
        client = acp.ClientAbilities.of(None)
        factory = SimpleNamespace(store=SimpleNamespace(folder=tmp_path / "sessions"))
        forks = SimpleNamespace(to_disk=None)

    metadata = SessionMetadata(id="sess_x", cwd=str(tmp_path), entity_id=entity.id, loom=str(path))
    opened = OpenedSession(metadata, entity, None, tmp_path, Restored())
    agent: Any = Agent()
    session = Session(agent, "sess_x", None)
    session.begin_with(opened)

    class Request:
        on_cancel = None

    request: Any = Request()
    session.prompts.begin(request)
    trace = tracing.trace_from(None)
    async with anyio.create_task_group() as group:
        group.start_soon(session.prompts.run, session.prompts.cast("Go.", (), trace), trace)
        await asked.wait()
        await session.close()
        # As long as the cast may write, the loom is open: nobody else can write to it.
        assert opened.released == (not late)
        if late:
            with pytest.raises(LoomError):
                Loom.open(path)
        closed.set()
    assert opened.released
    with Loom.open(path) as again:
        assert [end is not None for _, end in again.casts()] == [True]
