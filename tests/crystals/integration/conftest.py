"""Real weights, a place for the sockets of their processes, and the seeds of sampled casts."""

import os
import random

import pytest

from tests.support.fixtures.embedded import file, sockets  # noqa: F401


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames:
        soak = bool(os.environ.get("TESTS_SOAK"))
        # Workers of one run must collect the same tests, so only a soak, which has none, begins anywhere.
        first = metafunc.config.getoption("seed")
        if first is None:
            first = random.randrange(1_000_000) if soak else 1
        casts = metafunc.config.getoption("casts") or (500 if soak else 20)
        metafunc.parametrize("seed", range(first, first + casts))
