"""A bare ACP client over pipes, for the questions about the agent: it reads and writes lines and measures, no more."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

AGENT = (str(Path(sys.executable).parent / "cantrip-acp"),)
RESPONDER = (
    sys.executable,
    "-c",
    """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    reply = {"protocolVersion": 1, "agentCapabilities": {}} if request["method"] == "initialize" else {"sessionId": "s"}
    if request["method"] == "session/prompt":
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}}
        note = {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}}
        sys.stdout.write(json.dumps(note) + "\\n")
        reply = {"stopReason": "end_turn"}
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": reply}) + "\\n")
    sys.stdout.flush()
""",
)
"""The baseline agent: the standard library's json on stdin and stdout, and nothing else."""


class Connection:
    """One agent process. ``spawned`` is the time just before it was started."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
        self._folder = folder
        self._next = 0
        self.spawned = time.perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=dict(environment),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input: IO[bytes] = self._process.stdin
        self.output: IO[bytes] = self._process.stdout

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._input.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.output.close()

    def kill(self) -> None:
        """End the agent at once, so that it does nothing more."""
        self._process.kill()

    def send(self, method: str, params: Mapping[str, Any]) -> int:
        """Send a request; returns its id."""
        self._next += 1
        message = {"jsonrpc": "2.0", "id": self._next, "method": method, "params": params}
        self._input.write(json.dumps(message).encode() + b"\n")
        self._input.flush()
        return self._next

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self, number: Any, result: Mapping[str, Any]) -> None:
        """Answer a request of the agent's."""
        self._input.write(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode() + b"\n")
        self._input.flush()

    def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self._input.write(json.dumps(message).encode() + b"\n")
        self._input.flush()

    def receive(self) -> dict[str, Any]:
        """The next message. Raises EOFError where the agent is gone."""
        line = self.output.readline()
        if not line:
            raise EOFError(f"the agent ended with status {self._process.wait()} (its stderr is above)")
        message: dict[str, Any] = json.loads(line)
        if message.get("method") == "session/request_permission":
            # A user who says yes at once: what is measured is the agent.
            outcome = {"outcome": "selected", "optionId": message["params"]["options"][0]["optionId"]}
            answer = {"jsonrpc": "2.0", "id": message["id"], "result": {"outcome": outcome}}
            self._input.write(json.dumps(answer).encode() + b"\n")
            self._input.flush()
        return message

    def reply(self, number: int) -> Any:
        """The result of request ``number``; notifications before it are passed over. Raises on an error reply."""
        while (message := self.receive()).get("id") != number or "method" in message:
            pass
        if "error" in message:
            raise RuntimeError(f"the agent refused: {message['error']}")
        return message["result"]

    def initialize(self) -> Any:
        return self.reply(self.send("initialize", {"protocolVersion": 1, "clientCapabilities": {}}))

    def session(self) -> str:
        """The id of a new session in the connection's folder."""
        made = self.reply(self.send("session/new", {"cwd": str(self._folder), "mcpServers": []}))
        return str(made["sessionId"])

    def prompt(self, session: str, text: str = "go") -> int:
        """Send a prompt; returns the request's id."""
        return self.send("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})


@contextmanager
def workspace(script: str, recipe: str | None = None) -> Iterator[tuple[Path, dict[str, str]]]:
    """A folder to work in, and an environment in which the crystal is the scripted one of ``script`` (YAML text)."""
    with tempfile.TemporaryDirectory(prefix="cantrip-bench-") as base:
        folder = Path(base) / "project"
        folder.mkdir()
        (folder / "README.md").write_text("A project.\n")
        (Path(base) / "script.yaml").write_text(script)
        environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": base,
            "CANTRIP_STATE_DIR": str(Path(base) / "state"),
            "CANTRIP_CRYSTAL": f"scripted:{Path(base) / 'script.yaml'}",
        }
        yield folder, environment


@contextmanager
def connect(command: Sequence[str], environment: Mapping[str, str], folder: Path) -> Iterator[Connection]:
    """A running agent, ended at the end."""
    with Connection(command, environment, folder) as connection:
        yield connection
