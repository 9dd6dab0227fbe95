"""A server a test, ended with it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lsp.wireclient import Client


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Callable[..., Client]]:
    made: list[Client] = []

    def one(**given: Any) -> Client:
        made.append(Client(tmp_path, **given))
        return made[-1]

    yield one
    for client in made:
        client.close()


@pytest.fixture
def client(connect: Callable[..., Client]) -> Client:
    return connect()
