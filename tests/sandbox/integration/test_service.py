"""Programs that run longer than a command: no time limit, and the Unix sockets of those that serve one."""

from __future__ import annotations

import anyio
import pytest

from cantrip_acp.sandbox import Sandbox, SandboxOptions, Service
from cantrip_acp.sandbox.launch import sandbox as sandboxes
from tests.sandbox.integration.conftest import Make


async def test_a_service_runs_longer_than_a_command_may(make: Make) -> None:
    service = Service(make(bash_timeout_ms=300), ["cat"], {})
    async with service.running():
        with anyio.move_on_after(1.0):
            await service.gone()
        await service.send(b"still here\n")
        assert await service.receive() == b"still here\n"


@pytest.mark.parametrize("unix_sockets", [False, True])
async def test_without_a_supervisor_only_a_sandbox_that_serves_one_makes_unix_sockets(
    unix_sockets: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandboxes, "supervisor", lambda program: None)
    sandbox = Sandbox(SandboxOptions(), None, unix_sockets=unix_sockets)
    outcome = await sandbox.run("python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"/tmp/s\")'")
    assert (outcome.exit_code == 0) is unix_sockets
    assert ("Operation not permitted" in outcome.stderr) is not unix_sockets
