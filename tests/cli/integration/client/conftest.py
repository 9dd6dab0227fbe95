"""Fixtures of the client's tests."""

from collections.abc import Callable, Iterator, Sequence

import pytest

from tests.cli.integration.client.client_processes import Terminal


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    """Starts processes on terminals; what is left of them ends with the test."""
    started: list[Terminal] = []

    def start(argv: Sequence[str], **env: str) -> Terminal:
        started.append(Terminal(argv, **env))
        return started[-1]

    yield start
    for process in started:
        if process.status is None:
            process.kill()
