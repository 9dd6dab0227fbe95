"""Runs the programs of `bench.subjects` and reads their reports; used by the questions about turns and about memory."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PEERS_ENVIRONMENT = Path(__file__).parent / ".venvs" / "peers"
PEERS: Mapping[str, str] = {
    "langgraph": "LangGraph + SQLite checkpointer",
    "smolagents": "smolagents (keeps nothing on disk)",
    "pydantic_ai": "pydantic-ai (keeps nothing on disk)",
}
_REQUIREMENTS = ("langgraph", "langgraph-checkpoint-sqlite", "langchain-core", "smolagents", "pydantic-ai-slim")


@dataclass(frozen=True)
class Report:
    """One run: seconds of each turn, resident memory at the end and at most (MB), bytes on disk."""

    turns: tuple[float, ...]
    resident_mb: float
    peak_mb: float
    disk: int

    @property
    def per_second(self) -> float:
        return len(self.turns) / sum(self.turns)

    @property
    def growth(self) -> float:
        """What the last hundred turns cost, divided by the first hundred. Of each, the first ten turns are left out:
        a cold start would make the growth look smaller than it is."""
        return sum(self.turns[-90:]) / sum(self.turns[10:100])


def run(subject: str, turns: int, python: str = sys.executable) -> Report:
    """One run of one subject in a process and a folder of its own. Raises CalledProcessError where it fails."""
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as folder:
        command = [python, "-m", f"bench.subjects.{subject}", str(turns), folder]
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True)
    report = json.loads(done.stdout.splitlines()[-1])
    kilobytes = 1024
    return Report(
        tuple(report["turns"]), report["resident_kb"] / kilobytes, report["peak_kb"] / kilobytes, report["disk"]
    )


@cache
def peer(subject: str, turns: int) -> Report:
    """One run of a peer; kept, since some take minutes and two questions ask for it."""
    return run(subject, turns, str(peers_python()))


@cache
def peers_python() -> Path:
    """The Python of the peers' environment, made on first use with what PyPI has today."""
    python = PEERS_ENVIRONMENT / "bin" / "python"
    if not python.exists():
        print(f"making {PEERS_ENVIRONMENT} with {', '.join(_REQUIREMENTS)} from PyPI", flush=True)
        subprocess.run([sys.executable, "-m", "virtualenv", "--quiet", str(PEERS_ENVIRONMENT)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", *_REQUIREMENTS], check=True)
    return python


def peers_versions() -> str:
    """Which releases were measured."""
    script = (
        "import sys; from importlib.metadata import version as v; print(', '.join(f'{n} {v(n)}' for n in sys.argv[1:]))"
    )
    names = ["langgraph", "smolagents", "pydantic-ai-slim"]
    return subprocess.check_output([str(peers_python()), "-c", script, *names], text=True).strip()
