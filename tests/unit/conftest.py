"""Unit tests start no process: a test that needs one is an integration test."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pytest

_STARTS_A_PROCESS = frozenset(("subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec", "pty.spawn"))
_running = False


def _forbid_processes(event: str, args: tuple[Any, ...]) -> None:
    if _running and event in _STARTS_A_PROCESS:
        raise AssertionError(f"a unit test started a process ({event} {args[:1]}): move it to tests/integration")


sys.addaudithook(_forbid_processes)  # cannot be removed: it looks at `_running`


@pytest.fixture(autouse=True)
def _no_processes() -> Iterator[None]:
    global _running
    _running = True
    yield
    _running = False
