"""A substrate in each of the databases."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_acp.substrate.substrate import Substrate, open_substrate
from cantrip_acp.substrate.types import install
from tests.support.fixtures.loom import postgres  # noqa: F401
from tests.support.postgres_server import Server

_schemas = itertools.count()


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a new substrate may be."""
    if request.param == "sqlite":
        return f"sqlite:{tmp_path}/state/substrate.db"
    import psycopg

    server: Server = request.getfixturevalue("postgres")
    name, base = f"substrate_{next(_schemas)}", server.url("x").partition("?")[0]
    with psycopg.connect(base, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {name} CASCADE".encode())
        connection.execute(f"CREATE SCHEMA {name}".encode())
    return f"{base}?options=-csearch_path%3D{name}"


@pytest.fixture
def substrate(address: str) -> Iterator[Substrate]:
    with open_substrate(address) as opened:
        install(opened)
        yield opened
