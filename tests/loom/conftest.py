"""A place in each kind of store."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.loom import pgserver
from tests.loom.places import Place


@pytest.fixture(scope="session")
def postgres() -> Iterator[pgserver.Server]:
    """A PostgreSQL server; where there can be none, the test is skipped and says why."""
    try:
        with pgserver.running() as server:
            yield server
    except pgserver.NoServer as why:
        pytest.skip(str(why))


def _place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    kind = request.param
    place = Place.at(kind, request.getfixturevalue("postgres") if kind == "postgres" else tmp_path)
    yield place
    place.close()


@pytest.fixture(params=["memory", "jsonl", "sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Somewhere to keep a loom."""
    yield from _place(request, tmp_path)


@pytest.fixture(params=["jsonl", "sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Somewhere that outlives the process."""
    yield from _place(request, tmp_path)


@pytest.fixture(params=["sqlite", "postgres"])
def shared(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Somewhere that many may write at once."""
    yield from _place(request, tmp_path)


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A disk of one megabyte, where a database's user comes too: another run of pytest closes all of pytest's folders."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small disk needs root")
    disk = Path(tempfile.mkdtemp(prefix="cantrip-disk-"))
    disk.chmod(0o755)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, text=True
    )
    if mounted.returncode:
        disk.rmdir()
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)
    disk.rmdir()
