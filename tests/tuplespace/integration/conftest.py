"""A tuple-space in each kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cantrip_acp.tuplespace.stores import open_store
from cantrip_acp.tuplespace.stores.sql import TupleStore
from tests.support.fixtures.loom import postgres  # noqa: F401
from tests.support.loom_stores import DATABASES
from tests.support.postgres_server import Server


@pytest.fixture(params=DATABASES)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new space may be."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/space.db"
    server: Server = request.getfixturevalue("postgres")
    return server.new_schema()


@pytest.fixture
def open_space(address: str) -> Iterator[Callable[[], TupleStore]]:
    """Opens the same space again and again, as other workers do."""
    opened: list[TupleStore] = []

    def start() -> TupleStore:
        opened.append(open_store(address))
        return opened[-1]

    yield start
    for store in opened:
        store.close()


@pytest.fixture
def store(open_space: Callable[[], TupleStore]) -> TupleStore:
    return open_space()
