"""Real servers made with the official SDK, each a process of its own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cantrip_acp import Circle

SERVER = Path(__file__).parent / "toolserver.py"


@pytest.fixture
def program(tmp_path: Path) -> str:
    """The server's file where the sandbox shows it: in the workspace."""
    return str(shutil.copy(SERVER, tmp_path / "toolserver.py"))


@pytest.fixture
def circle(tmp_path: Path) -> Circle:
    return Circle(gates=["done"], wards=[{"max_turns": 9}], workspace=tmp_path)


@pytest.fixture
def listening() -> Iterator[Callable[[str], str]]:
    """Starts a server over HTTP; gives its URL."""
    started: list[subprocess.Popen[bytes]] = []

    def start(transport: str) -> str:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        argv = [sys.executable, str(SERVER), transport, str(port)]
        started.append(subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        end = time.monotonic() + 60
        while time.monotonic() < end:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.05)
        return f"http://127.0.0.1:{port}/{'mcp' if transport == 'http' else 'sse'}"

    yield start
    for process in started:
        process.kill()
        process.wait()
