"""A client that speaks bytes to an agent, and checks every line that the agent writes.

The agent is a real `cantrip-acp` process (`RawClient`), or `serve` on two pipes in a thread of this process
(`InProcessClient`), which starts in a fraction of the time.
"""

import json
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import psutil

from cantrip_acp.acp import serve
from cantrip_acp.files.descriptors import is_ready
from tests.support import processes
from tests.support.acp_schema_check import check_message, check_message_v2
from tests.support.processes import AGENT

PATIENCE = 60.0

SOON = 30.0
"""Seconds for what should take one at most, on a machine that runs other tests beside. What fails would take longer than this;
how long it takes is for tests marked timing."""


def still_alive(candidates: Sequence[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Those that run on after so long. A zombie runs no more; it waits for the machine's init to take note."""
    deadline = time.monotonic() + seconds
    while True:
        alive = []
        for process in candidates:
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
            except psutil.NoSuchProcess:
                continue
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.01)


def at_rest(process: psutil.Process) -> None:
    """Wait until the process has used no processor time for a second and a half: all its pipes are full."""
    deadline = time.monotonic() + 60
    used, looks = -1.0, 0
    while looks < 3:
        assert time.monotonic() < deadline, "the agent never comes to rest"
        now = sum(process.cpu_times()[:2])
        looks = looks + 1 if now == used else 0
        used = now
        time.sleep(0.5)


class Silence(AssertionError):
    """Nothing came in time."""


class Problem(Exception):
    """An error that a client answers with."""

    def __init__(self, message: str, code: int = -32603) -> None:
        super().__init__(message)
        self.code = code


class RawClient:
    """One agent process. Requests get their ids here unless a test gives one."""

    def __init__(
        self,
        *arguments: str,
        argv: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        checked: bool = True,
        permit: str | None = "allow_once",
        **popen: Any,
    ) -> None:
        """``permit`` is the kind of option that answers each permission request; None leaves them to the test."""
        streams: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        streams.update(popen)
        self.started = time.monotonic()
        self.process = self._start([*(argv or [AGENT]), *arguments], {**os.environ, **(env or {})}, streams)
        self.seen: list[dict[str, Any]] = []
        """Every message, in order."""
        self.services: dict[str, Callable[[dict[str, Any]], Any]] = {}
        """What this client does for the agent, by method: parameters to result; a `Problem` is raised for an error."""
        self._capabilities: Mapping[str, Any] = {}
        self._version = 1
        self._checked = checked
        self.permit = permit
        self._asked: dict[str, str] = {}
        self._next_id = 0
        self._partial = b""
        self._unread: deque[dict[str, Any]] = deque()

    def _start(self, argv: Sequence[str], env: Mapping[str, str], streams: Mapping[str, Any]) -> Any:
        return processes.Popen(argv, env=env, start_new_session=True, bufsize=0, **streams)

    # --- writing

    def raw(self, data: bytes) -> None:
        assert self.process.stdin is not None
        view = memoryview(data)
        while view:
            view = view[self.process.stdin.write(view) :]

    def send(self, message: Any) -> None:
        self.raw(json.dumps(message).encode() + b"\n")

    def ask(self, method: str, params: Any = None, *, id: Any = None) -> Any:
        """Send a request; returns its id."""
        if id is None:
            self._next_id += 1
            id = self._next_id
        self._asked[json.dumps(id)] = method
        self.send({"jsonrpc": "2.0", "id": id, "method": method, "params": {} if params is None else params})
        return id

    def tell(self, method: str, params: Any = None) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": {} if params is None else params})

    # --- reading

    def next(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """The next message. Raises Silence, and EOFError when the agent has closed its output."""
        deadline = time.monotonic() + timeout
        while True:
            message = self._take(deadline, timeout)
            if message.get("method") in self.services:
                self.serve(message)
                continue
            if message.get("method") != "session/request_permission" or self.permit is None:
                return message
            self.decide(message, self.permit)

    def until_served(self, method: str, timeout: float = PATIENCE) -> None:
        """Read until one more request of the agent was answered by a service."""
        served, count = self.services[method], 0

        def counting(params: dict[str, Any]) -> Any:
            nonlocal count
            count += 1
            return served(params)

        self.services[method] = counting
        deadline = time.monotonic() + timeout
        while not count:
            message = self._take(deadline, timeout)
            if message.get("method") in self.services:
                self.serve(message)

    def serve(self, message: Mapping[str, Any]) -> None:
        """Do what the agent asks."""
        reply: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        try:
            reply["result"] = self.services[message["method"]](message["params"])
        except Problem as problem:
            reply["error"] = {"code": problem.code, "message": str(problem)}
        with suppress(BrokenPipeError, ValueError):
            self.send(reply)

    def decide(self, message: Mapping[str, Any], kind: str) -> None:
        """Answer a permission request with its option of that kind or id, or as cancelled."""
        outcome: dict[str, Any] = {"outcome": "cancelled"}
        if kind != "cancelled":
            options = message["params"]["options"]
            chosen = next(option["optionId"] for option in options if kind in (option["optionId"], option["kind"]))
            outcome = {"outcome": "selected", "optionId": chosen}
        # The agent may be gone, as its tests want it.
        with suppress(BrokenPipeError, ValueError):
            self.send({"jsonrpc": "2.0", "id": message["id"], "result": {"outcome": outcome}})

    def _take(self, deadline: float, timeout: float) -> dict[str, Any]:
        stdout = self.process.stdout
        assert stdout is not None
        while not self._unread:
            left = deadline - time.monotonic()
            if left <= 0 or not is_ready(stdout, left):
                raise Silence(f"nothing came for {timeout} s; stderr: {self.stderr()!r}")
            chunk = os.read(stdout.fileno(), 1 << 20)
            if not chunk:
                assert not self._partial, f"the agent ended in the middle of a line: {self._partial[:200]!r}"
                raise EOFError(f"the agent closed its output; stderr: {self.stderr()!r}")
            *lines, self._partial = (self._partial + chunk).split(b"\n")
            self._unread.extend(json.loads(line) for line in lines)
        message = self._unread.popleft()
        if self._checked:
            check = check_message if self._version == 1 else check_message_v2
            check(message, self._asked, self._capabilities)
        self.seen.append(message)
        return message

    def answer(self, id: Any, timeout: float = PATIENCE) -> dict[str, Any]:
        """The reply to a request, whatever comes before it."""
        return self.until(lambda message: "method" not in message and message.get("id") == id, timeout)

    def until(self, wanted: Callable[[dict[str, Any]], bool], timeout: float = PATIENCE) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        while True:
            message = self.next(max(0.0, deadline - time.monotonic()))
            if wanted(message):
                return message

    def quiet(self, seconds: float = 0.3) -> None:
        """Nothing more comes."""
        try:
            message = self.next(seconds)
        except Silence:
            return
        raise AssertionError(f"unexpected: {message}")

    def call(self, method: str, params: Any = None, **options: Any) -> Any:
        """Ask and wait; the result, or an AssertionError with the error."""
        reply = self.answer(self.ask(method, params, **options))
        assert "result" in reply, (reply, self.stderr())
        return reply["result"]

    def error(self, method: str, params: Any = None, **options: Any) -> dict[str, Any]:
        """Ask and wait; the error."""
        reply = self.answer(self.ask(method, params, **options))
        assert "error" in reply, reply
        error: dict[str, Any] = reply["error"]
        return error

    # --- the usual

    def initialize(self, **capabilities: Any) -> Any:
        self._capabilities = capabilities
        return self.call("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})

    def initialize_v2(self, **capabilities: Any) -> Any:
        """Negotiate the draft of version 2. Every later message is checked against its schema."""
        self._capabilities, self._version = capabilities, 2
        info = {"name": "tests", "version": "1"}
        return self.call("initialize", {"protocolVersion": 2, "info": info, "capabilities": capabilities})

    def session(self, cwd: Path | str, *, mode: str | None = None, **params: Any) -> str:
        """Open a session; with ``mode`` in another mode than the usual one."""
        session_id = self.call("session/new", {"cwd": str(cwd), "mcpServers": [], **params})["sessionId"]
        assert isinstance(session_id, str)
        if mode is not None and self._version == 2:
            given = {"sessionId": session_id, "configId": "mode", "type": "id", "value": mode}
            self.call("session/set_config_option", given)
        elif mode is not None:
            self.call("session/set_mode", {"sessionId": session_id, "modeId": mode})
        return session_id

    def start_prompt(self, session_id: str, text: str = "go", **params: Any) -> Any:
        return self.ask(
            "session/prompt", {"sessionId": session_id, "prompt": [{"type": "text", "text": text}], **params}
        )

    def prompt(self, session_id: str, text: str = "go", **params: Any) -> Any:
        reply = self.answer(self.start_prompt(session_id, text, **params))
        assert "result" in reply, (reply, self.stderr())
        return reply["result"]

    def updates(self, kind: str | None = None, session_id: str | None = None) -> list[dict[str, Any]]:
        """The updates seen so far, or those of one kind or session."""
        return [
            message["params"]["update"]
            for message in self.seen
            if message.get("method") == "session/update"
            and kind in (None, message["params"]["update"]["sessionUpdate"])
            and session_id in (None, message["params"]["sessionId"])
        ]

    def said(self) -> str:
        return "".join(update["content"]["text"] for update in self.updates("agent_message_chunk"))

    # --- the end

    def family(self) -> list[psutil.Process]:
        """Every process below the agent."""
        try:
            return psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def children(self) -> list[psutil.Process]:
        """What runs on an entity's behalf and is no zombie."""
        found = []
        for process in self.family():
            try:
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.NoSuchProcess:
                continue
        return found

    def hang_up(self) -> float:
        """Close the agent's input; returns the seconds until the process had ended, and checks its status."""
        assert self.process.stdin is not None
        began = time.monotonic()
        self.process.stdin.close()
        return self.gone(began)

    def gone(self, began: float | None = None) -> float:
        began = time.monotonic() if began is None else began
        status = self.process.wait(PATIENCE)
        took = time.monotonic() - began
        assert status == 0, (status, self.stderr())
        return took

    def stderr(self) -> str:
        if self.process.stderr is None:
            return ""
        os.set_blocking(self.process.stderr.fileno(), False)
        return (self.process.stderr.read() or b"").decode("utf-8", "replace")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


class AgentThread:
    """An agent on two pipes in a thread of this process, with the part of `Popen` that `RawClient` uses."""

    def __init__(self, **options: str) -> None:
        """The options are those of `serve`: ``recipe`` and ``state_dir``."""
        source, to_agent = os.pipe()
        from_agent, sink = os.pipe()
        self.stdin = os.fdopen(to_agent, "wb", 0)
        self.stdout = os.fdopen(from_agent, "rb", 0)
        self._ours = (source, sink)
        self._problem: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(options,), name="agent", daemon=True)
        self._thread.start()

    def _run(self, options: Mapping[str, str]) -> None:
        try:
            anyio.run(partial(serve, *self._ours, **options))
        except BaseException as problem:
            self._problem = problem
        finally:
            for descriptor in self._ours:
                os.close(descriptor)

    def poll(self) -> int | None:
        return None if self._thread.is_alive() else self.returncode

    @property
    def returncode(self) -> int:
        return 1 if self._problem is not None else 0

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        if self._thread.is_alive():
            raise subprocess.TimeoutExpired("serve", timeout or 0)
        if self._problem is not None:
            raise self._problem
        return 0

    def kill(self) -> None:
        """Close both pipes: the agent ends as when its client goes away."""
        self.stdin.close()
        self.stdout.close()


class InProcessClient(RawClient):
    """A client whose agent runs in a thread of this process. It takes the options ``--recipe`` and ``--state-dir``."""

    def _start(self, argv: Sequence[str], env: Mapping[str, str], streams: Mapping[str, Any]) -> Any:
        piped = set(streams.values()) == {subprocess.PIPE}
        if not piped or dict(env) != os.environ or not set(argv[1::2]) <= {"--recipe", "--state-dir"}:
            raise TypeError("an agent in this process has no environment and streams of its own: use start_process")
        return AgentThread(
            **{option[2:].replace("-", "_"): value for option, value in zip(argv[1::2], argv[2::2], strict=True)}
        )

    def family(self) -> list[psutil.Process]:
        raise TypeError("an agent in this process has no processes of its own: use the fixture start_process")

    def stderr(self) -> str:
        return "of this process"

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE)
