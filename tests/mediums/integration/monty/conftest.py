"""Real Monty sessions in real sandboxes; how they are made is the code medium's."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.mediums.monty.medium import MontyMedium
from tests.mediums.integration.conftest import Python, _bubblewrap, anyio_backend, back_end, make

__all__ = ["_bubblewrap", "anyio_backend", "back_end", "make"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture(scope="session", autouse=True)
def _monty() -> None:
    pytest.importorskip("pydantic_monty")


@pytest.fixture
def monty(make: Callable[..., Awaitable[Python]]) -> Callable[..., Awaitable[Python]]:
    """Make sessions of the monty medium: wards, and gates as plain functions by name."""

    async def made(wards: Any = None, **more: Any) -> Python:
        return await make(wards, medium=MontyMedium(), **more)

    return made
