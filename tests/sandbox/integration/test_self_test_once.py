"""The machine's sandbox is tried once, however many sessions begin at the same time."""

from __future__ import annotations

import anyio
import pytest

from cantrip_acp.sandbox.launch import self_test
from tests.mediums.integration.test_prepared_worker import entity, worker_of


async def test_many_at_once_share_one_trial_of_the_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []

    async def require() -> None:
        tried.append(1)
        await real()

    real = self_test.require
    monkeypatch.setattr(self_test, "require", require)
    monkeypatch.setattr(self_test, "_checked", False)
    made = [entity("done(1)") for _ in range(5)]
    try:
        async with anyio.create_task_group() as group:
            for each in made:
                group.start_soon(each.warm)
        assert tried == [1]
        assert len({(await worker_of(each))[2] for each in made}) == 5
    finally:
        for each in made:
            await each.close()
