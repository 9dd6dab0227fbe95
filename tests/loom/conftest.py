"""A place in each kind of store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loom.places import Place


def _place(kind: str, tmp_path: Path) -> Iterator[Place]:
    place = Place.at(kind, tmp_path)
    yield place
    place.close()


@pytest.fixture(params=["memory", "jsonl", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Somewhere to keep a loom."""
    yield from _place(request.param, tmp_path)


@pytest.fixture(params=["jsonl", "sqlite"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Somewhere that outlives the process."""
    yield from _place(request.param, tmp_path)


@pytest.fixture(params=["sqlite"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Somewhere that many may write at once."""
    yield from _place(request.param, tmp_path)
