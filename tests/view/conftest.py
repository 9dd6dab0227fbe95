"""Looms and a browser to look at them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.loom.view import View, serve
from tests.loom import pgserver
from tests.loom.places import Place
from tests.view import browser as browsers
from tests.view import looms


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    """A loom with everything that a page shows."""
    path = tmp_path / "sample.loom.jsonl"
    with Loom.open(path) as loom:
        looms.sample(loom)
    return path


@pytest.fixture
def view(sample: Path) -> Iterator[View]:
    """Its page."""
    with serve(sample) as served:
        yield served


@pytest.fixture(scope="session")
def postgres() -> Iterator[pgserver.Server]:
    """A PostgreSQL server; where there can be none, the test is skipped and says why."""
    try:
        with pgserver.running() as server:
            yield server
    except pgserver.NoServer as why:
        pytest.skip(str(why))


@pytest.fixture(params=["jsonl", "sqlite", "postgres"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Somewhere that a loom is kept."""
    kind = request.param
    place = Place.at(kind, request.getfixturevalue("postgres") if kind == "postgres" else tmp_path, "view")
    yield place
    place.close()


# A module's: Playwright runs one loop in a process, so two folders' fixtures must not live at once.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A browser; where there can be none, the test is skipped and says why."""
    try:
        with browsers.running() as browser:
            yield browser
    except browsers.NoBrowser as why:
        pytest.skip(str(why))


@pytest.fixture
def watched(chromium: Any) -> Iterator[Callable[..., browsers.Watch]]:
    """Makes pages, each in a profile of its own: watched(width=…, height=…, scheme="dark")."""
    contexts = []

    def make(width: int = 1280, height: int = 800, scheme: str = "light") -> browsers.Watch:
        context = chromium.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        context.set_default_timeout(60_000)
        contexts.append(context)
        return browsers.Watch(context.new_page()).attach()

    yield make
    for context in contexts:
        context.close()


@pytest.fixture
def watch(watched: Callable[..., browsers.Watch]) -> browsers.Watch:
    """One page."""
    return watched()
