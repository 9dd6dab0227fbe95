"""Agents on scripted recipes: in this process, or each a process of its own."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import pytest

from tests.acp.rawclient import InProcessClient, RawClient, still_alive

DONE: Mapping[str, Any] = {"tool_calls": [{"gate": "done", "args": {"answer": "all done"}}]}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A session's folder."""
    path = tmp_path / "project"
    path.mkdir()
    return path


@pytest.fixture
def recipe(tmp_path: Path) -> Callable[..., str]:
    """Writes a recipe whose crystal plays responses; returns its path."""
    count = 0

    def write(
        responses: Sequence[Mapping[str, Any]],
        *,
        medium: str = "conversation",
        gates: Sequence[Any] = ("echo", "done"),
        wards: Sequence[Mapping[str, Any]] = ({"max_turns": 20},),
        **keys: Any,
    ) -> str:
        nonlocal count
        count += 1
        path = tmp_path / f"test{count}.cantrip.yaml"
        crystal = {"provider": "scripted", "responses": list(responses), **keys.pop("crystal", {})}
        circle = {"medium": medium, "gates": list(gates), "wards": list(wards)}
        # JSON is YAML.
        path.write_text(json.dumps({"name": f"test{count}", "crystal": crystal, "circle": circle, **keys}))
        return str(path)

    return write


class Start(Protocol):
    """Starts an agent whose sessions use a scripted recipe; ``arguments`` are those of the command line."""

    def __call__(
        self,
        responses: Sequence[Mapping[str, Any]] = (DONE,),
        *arguments: str,
        initialized: bool = True,
        capabilities: Mapping[str, Any] | None = None,
        process: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RawClient:
        """``process`` are options of `RawClient`, ``options`` parts of the recipe."""


@pytest.fixture
def start(recipe: Callable[..., str]) -> Iterator[Start]:
    """Starts an agent in a thread of this process."""
    running: list[RawClient] = []
    yield starter(InProcessClient, recipe, running)
    for client in running:
        client.close()


@pytest.fixture
def start_process(recipe: Callable[..., str]) -> Iterator[Start]:
    """Starts a `cantrip-acp` process. After the test it is gone, with all that it started."""
    running: list[RawClient] = []
    yield starter(RawClient, recipe, running)
    for client in running:
        family = client.family()
        client.close()
        alive = still_alive(family, 5)
        assert not alive, f"left behind: {alive}"


def starter(kind: type[RawClient], recipe: Callable[..., str], running: list[RawClient]) -> Start:
    def start(
        responses: Sequence[Mapping[str, Any]] = (DONE,),
        *arguments: str,
        initialized: bool = True,
        capabilities: Mapping[str, Any] | None = None,
        process: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RawClient:
        client = kind("--recipe", recipe(responses, **options), *arguments, **(process or {}))
        running.append(client)
        if initialized:
            client.initialize(**(capabilities or {}))
        return client

    return start
