"""Agents on scripted recipes, each a real process that is gone after its test, with all that it started."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.acp.rawclient import RawClient, still_alive

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


@pytest.fixture
def start(recipe: Callable[..., str]) -> Iterator[Callable[..., RawClient]]:
    """Starts an agent on a scripted recipe; ``initialized`` ones have shaken hands."""
    running: list[RawClient] = []

    def begin(
        responses: Sequence[Mapping[str, Any]] = (DONE,),
        *arguments: str,
        initialized: bool = True,
        capabilities: Mapping[str, Any] | None = None,
        process: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> RawClient:
        client = RawClient("--recipe", recipe(responses, **options), *arguments, **(process or {}))
        running.append(client)
        if initialized:
            client.initialize(**(capabilities or {}))
        return client

    yield begin
    for client in running:
        family = client.family()
        client.close()
        alive = still_alive(family, 5)
        assert not alive, f"left behind: {alive}"
