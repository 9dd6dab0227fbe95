"""Real sandboxes on a host that is looked at afterwards."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sandbox.attack.attack_scene import Scene
from tests.sandbox.integration.conftest import sandboxed


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.sandbox)


@pytest.fixture(scope="session", autouse=True)
def _bubblewrap() -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(Path(tempfile.mkdtemp(prefix="cantrip-attack-", dir=os.environ.get("TMPDIR", "/tmp"))))
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _leaves_no_process() -> Iterator[None]:
    """Whatever an attack did, nothing of its sandbox is left."""
    yield
    left = sandboxed()
    assert not left, left
