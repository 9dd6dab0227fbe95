"""A substrate in each of the databases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_acp.substrate.substrate import Substrate, open_substrate
from cantrip_acp.substrate.types import install
from tests.support.fixtures.loom import postgres  # noqa: F401
from tests.support.loom_stores import DATABASES
from tests.support.postgres_server import Server


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new substrate may be."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/state/substrate.db"
    server: Server = request.getfixturevalue("postgres")
    return server.new_schema()


@pytest.fixture
def substrate(address: str) -> Iterator[Substrate]:
    with open_substrate(address) as opened:
        install(opened)
        yield opened
