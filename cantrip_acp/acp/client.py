"""An ACP client: starts any agent, speaks protocol version 1 with it over stdio, and reports what it does.

    async with connect(["cantrip-acp"], watcher) as agent:
        about = await agent.initialize()
        session = await agent.new_session(folder)
        outcome = await agent.prompt(session.id, "What is in here?")

The agent's updates and questions reach the watcher one after another, in the order in which they came, and all those
of a turn have been handled before `prompt` returns. A watcher that is slow slows the agent. Files are lent below the
session's folder (`clientfiles`); terminals are not offered, so `terminal/*` is answered with "method not found".
When the block ends, the agent and its process group are gone (`agentprocess`).
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import anyio
import anyio.to_thread

from cantrip_acp.acp.agentprocess import AgentMissing, AgentProcess, start_agent
from cantrip_acp.acp.clientfiles import ClientFiles, FileRefused
from cantrip_acp.acp.envelope import INVALID_PARAMS, RESOURCE_NOT_FOUND, RpcError, invalid_params
from cantrip_acp.acp.stdoutwatch import StdoutWatch
from cantrip_acp.acp.wire import Connection, Disconnected, Method, Request
from cantrip_acp.errors import CantripError
from cantrip_acp.version import __version__

__all__ = [
    "AgentClient",
    "AgentDied",
    "AgentError",
    "AgentMissing",
    "AgentRefused",
    "AgentTimeout",
    "Outcome",
    "Session",
    "Watcher",
    "connect",
]

PROTOCOL_VERSION: Final = 1

_WAITING_UPDATES: Final = 256
_CANCEL_SECONDS: Final = 5.0

_T = TypeVar("_T")


class AgentError(CantripError):
    """An agent that failed. `stderr` holds the last lines that it wrote there; the text shows them too."""

    def __init__(self, message: str, stderr: Sequence[str] = ()) -> None:
        self.stderr = tuple(stderr)
        tail = "".join(f"\n  {line}" for line in self.stderr[-12:])
        super().__init__(f"{message}\nIts stderr ended with:{tail}" if tail.strip() else message)


class AgentDied(AgentError):
    """The agent ended, or closed its stdout, while an answer was due."""


class AgentTimeout(AgentError):
    """The agent did not answer in time."""


class AgentRefused(AgentError):
    """The agent answered with an error, or with what the protocol does not allow. `code` is JSON-RPC's."""

    def __init__(self, message: str, stderr: Sequence[str] = (), *, code: int, data: object = None) -> None:
        self.code = code
        self.data = data
        super().__init__(message, stderr)


class Watcher(Protocol):
    """Who is told what the agent does. Each method is awaited before the next one is called."""

    async def updated(self, session_id: str, update: Mapping[str, Any]) -> None:
        """A `session/update` came."""

    async def asked(self, session_id: str, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:
        """A `session/request_permission` came: the `optionId` of the answer, or None for no answer ("cancelled").

        Cancelled when the turn is cancelled or the agent takes the question back.
        """

    async def lent(self, action: str, path: str, refused: str | None) -> None:
        """A file was read (`action` "read") or written ("write") for the agent, or refused for a reason."""

    async def heard(self, source: str, line: str) -> None:
        """The agent wrote a line to stderr, or one on stdout that is no message (`source` "stderr" or "stdout")."""


@dataclass(frozen=True)
class Session:
    """What `session/new` answered."""

    id: str
    folder: Path
    modes: Mapping[str, Any] = field(default_factory=dict)
    config_options: Sequence[Any] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """How a prompt ended: ACP's stop reason, the usage where the agent says it, and `_meta`."""

    stop_reason: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


class AgentClient:
    """The client's side of one connection. Made by `connect`."""

    def __init__(self, process: AgentProcess, watcher: Watcher) -> None:
        self._process = process
        self._watcher = watcher
        self._files: dict[str, ClientFiles] = {}
        self._work: deque[Callable[[], Awaitable[None]]] = deque()
        self._arrived = anyio.Event()
        self._drained = anyio.Event()
        self._questions: dict[str, set[anyio.CancelScope]] = {}
        self._stdout = StdoutWatch(process.stdout, junk=lambda line: self._heard("stdout", line), ready=self._room)
        self._connection = Connection(
            self._stdout,
            process.stdin,
            {
                "session/update": Method(dict[str, Any], self._update, notification=True),
                "session/request_permission": Method(dict[str, Any], self._permission),
                "fs/read_text_file": Method(dict[str, Any], self._read),
                "fs/write_text_file": Method(dict[str, Any], self._write),
            },
        )
        self.about: Mapping[str, Any] = {}
        """What `initialize` answered."""

    @property
    def process(self) -> AgentProcess:
        return self._process

    # What the client asks

    async def initialize(self, *, timeout: float | None = 60) -> Mapping[str, Any]:
        """Negotiates version and capabilities. Raises AgentRefused for an agent of another version."""
        params = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientInfo": {"name": "cantrip-client", "title": "Cantrip client", "version": __version__},
            "clientCapabilities": {
                "fs": {"readTextFile": True, "writeTextFile": True},
                "terminal": False,
                # Output of commands as it comes (Zed's convention); agents that do not know it send content instead.
                "_meta": {"terminal_output": True},
            },
        }
        about = await self._ask("initialize", params, timeout=timeout)
        version = about.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            raise AgentRefused(
                f"{self._name()} speaks ACP version {version!r}, this client speaks version {PROTOCOL_VERSION}",
                self._process.stderr_tail(),
                code=0,
            )
        self.about = about
        return about

    async def authenticate(self, method: str, *, timeout: float | None = None) -> None:
        """Signs in by one of the `authMethods` that `initialize` answered."""
        await self._ask("authenticate", {"methodId": method}, timeout=timeout)

    async def new_session(
        self, folder: Path, *, meta: Mapping[str, Any] | None = None, timeout: float | None = 120
    ) -> Session:
        """Opens a session on a folder, which becomes the one whose files are lent."""
        files = ClientFiles(folder)
        folder = files.folder
        params: dict[str, Any] = {"cwd": str(folder), "mcpServers": []}
        if meta:
            params["_meta"] = dict(meta)
        answer = await self._ask("session/new", params, timeout=timeout)
        session_id = answer.get("sessionId")
        if not isinstance(session_id, str) or not session_id:
            raise AgentRefused(
                f"{self._name()} answered session/new without a sessionId", self._process.stderr_tail(), code=0
            )
        self._files[session_id] = files
        options = answer.get("configOptions")
        return Session(
            id=session_id,
            folder=folder,
            modes=_object(answer, "modes"),
            config_options=options if isinstance(options, list) else (),
            meta=_object(answer, "_meta"),
        )

    async def set_mode(self, session_id: str, mode: str, *, timeout: float | None = 60) -> None:
        """Changes the session's mode to one that `session/new` offered."""
        await self._ask("session/set_mode", {"sessionId": session_id, "modeId": mode}, timeout=timeout)

    async def prompt(
        self,
        session_id: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Outcome:
        """One turn. After `timeout` seconds it is cancelled and AgentTimeout raised."""
        blocks = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else list(prompt)
        params: dict[str, Any] = {"sessionId": session_id, "prompt": blocks}
        if meta:
            params["_meta"] = dict(meta)

        async def give_up() -> None:
            await self.cancel(session_id)

        answer = await self._ask("session/prompt", params, timeout=timeout, give_up=give_up)
        reason = answer.get("stopReason")
        if not isinstance(reason, str):
            raise AgentRefused(
                f"{self._name()} answered session/prompt without a stopReason", self._process.stderr_tail(), code=0
            )
        return Outcome(reason, _object(answer, "usage"), _object(answer, "_meta"))

    async def cancel(self, session_id: str) -> None:
        """Asks the agent to end the session's turn (ACP, Cancellation); open questions are answered "cancelled"."""
        await self._connection.notify("session/cancel", {"sessionId": session_id})
        for scope in self._questions.get(session_id, ()):
            scope.cancel()

    async def _ask(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        timeout: float | None,
        give_up: Callable[[], Awaitable[None]] | None = None,
    ) -> Mapping[str, Any]:
        """One request. `give_up` is called at the timeout, and the agent then has a few seconds more to answer."""
        answers: list[Any] = []
        problems: list[Exception] = []
        answered = anyio.Event()

        async def ask() -> None:
            try:
                answers.append(await self._connection.request(method, params))
            except (RpcError, Disconnected) as problem:
                problems.append(problem)
            answered.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            with anyio.move_on_after(timeout):
                await answered.wait()
            in_time = answered.is_set()
            if not in_time and give_up is not None:
                await give_up()
                with anyio.move_on_after(_CANCEL_SECONDS):
                    await answered.wait()
            tasks.cancel_scope.cancel()
        if problems and isinstance(problems[0], Disconnected):
            raise await self._died(method) from None
        if not in_time:
            after = "it ended its turn when it was cancelled" if answered.is_set() else "and did not end when cancelled"
            raise AgentTimeout(
                f"{self._name()} did not answer {method} within {timeout:g} s" + (f"; {after}" if give_up else ""),
                self._process.stderr_tail(),
            )
        await self._handled()
        if problems:
            refusal = problems[0]
            assert isinstance(refusal, RpcError)
            raise AgentRefused(
                f"{self._name()} refused {method}: {refusal.message} ({refusal.code}){_details(refusal)}",
                self._process.stderr_tail(),
                code=refusal.code,
                data=refusal.data,
            )
        if not isinstance(answers[0], Mapping):
            if method in ("authenticate", "session/set_mode") and answers[0] is None:
                return {}  # an older form of an empty answer
            raise AgentRefused(
                f"{self._name()} answered {method} with {answers[0]!r:.200} where an object belongs",
                self._process.stderr_tail(),
                code=0,
            )
        return answers[0]

    async def _died(self, method: str) -> AgentDied:
        ended = await self._process.ended(1.0)
        how = self._process.describe_end() if ended else "closed its stdout"
        said = "" if self._stdout.bytes else " and had not said anything"
        return AgentDied(f"{self._name()} {how} before it answered {method}{said}", self._process.stderr_tail())

    def _name(self) -> str:
        return f"the agent {self._process.argv[0]!r}"

    # What the agent asks and tells

    def _update(self, params: Mapping[str, Any], request: Request) -> None:
        session_id, update = _session(params), _object(params, "update")

        async def show() -> None:
            await self._watcher.updated(session_id, update)

        self._queue(show)

    def _permission(self, params: Mapping[str, Any], request: Request) -> Awaitable[Mapping[str, Any]]:
        session_id = _session(params)
        offered = params.get("options")
        options = [option for option in offered if isinstance(option, Mapping)] if isinstance(offered, list) else []
        if not options:
            raise invalid_params("a question needs at least one option", "options")
        scope = anyio.CancelScope()
        settled = anyio.Event()
        chosen: list[str] = []
        questions = self._questions.setdefault(session_id, set())
        questions.add(scope)

        async def ask() -> None:
            with scope:
                answer = await self._watcher.asked(session_id, _object(params, "toolCall"), options)
                if answer is not None:
                    chosen.append(answer)
            settled.set()

        self._queue(ask)

        async def answer() -> Mapping[str, Any]:
            try:
                await settled.wait()
            finally:
                scope.cancel()
                questions.discard(scope)
            if chosen:
                return {"outcome": {"outcome": "selected", "optionId": chosen[0]}}
            return {"outcome": {"outcome": "cancelled"}}

        return answer()

    async def _read(self, params: Mapping[str, Any], request: Request) -> Mapping[str, Any]:
        files, path = self._lender(params)
        line, limit = (params.get(key) for key in ("line", "limit"))
        for name, value in (("line", line), ("limit", limit)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise invalid_params(f"a whole number from 0 up, not {value!r}", name)
        return {"content": await self._lend("read", path, lambda: files.read(path, line, limit))}

    async def _write(self, params: Mapping[str, Any], request: Request) -> Mapping[str, Any]:
        files, path = self._lender(params)
        content = params.get("content")
        if not isinstance(content, str):
            raise invalid_params("must be a string", "content")
        await self._lend("write", path, lambda: files.write(path, content))
        return {}

    def _lender(self, params: Mapping[str, Any]) -> tuple[ClientFiles, str]:
        path = params.get("path")
        if not isinstance(path, str):
            raise invalid_params("must be a string", "path")
        files = self._files.get(_session(params))
        if files is None:
            raise invalid_params("there is no such session here", "sessionId")
        return files, path

    async def _lend(self, action: str, path: str, work: Callable[[], _T]) -> _T:
        refused: str | None = None
        try:
            return await anyio.to_thread.run_sync(work)
        except FileRefused as problem:
            refused = str(problem)
            raise RpcError(RESOURCE_NOT_FOUND if problem.missing else INVALID_PARAMS, refused) from None
        finally:
            self._queue(lambda: self._watcher.lent(action, path, refused))

    # One thing after another

    def _queue(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work.append(work)
        self._arrived.set()

    async def _handle(self) -> None:
        """Lets the watcher handle what came, in order, for as long as the connection lives."""
        while True:
            while self._work:
                await self._work[0]()
                self._work.popleft()
                if len(self._work) <= _WAITING_UPDATES // 2:
                    self._drained.set()
                    self._drained = anyio.Event()
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def _handled(self) -> None:
        """Waits until the watcher has handled all that came before now."""
        done = anyio.Event()

        async def reached() -> None:
            done.set()

        self._queue(reached)
        await done.wait()

    async def _room(self) -> None:
        while len(self._work) > _WAITING_UPDATES:
            await self._drained.wait()

    def _heard(self, source: str, line: str) -> None:
        self._queue(lambda: self._watcher.heard(source, line))

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._handle)
            await self._connection.run()
            # The agent is gone; what it said before is still shown, until `connect` ends.


@contextlib.asynccontextmanager
async def connect(
    argv: Sequence[str],
    watcher: Watcher,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[AgentClient]:
    """Starts an agent and connects to it; when the block ends, it and what it started are gone.

    `folder` is the agent's working folder, `environment` replaces the inherited one. Raises AgentMissing.
    """
    clients: list[AgentClient] = []

    async def relay(line: str) -> None:
        for client in clients:
            client._heard("stderr", line)

    try:
        async with start_agent(argv, folder=folder, environment=environment, relay=relay) as process:
            client = AgentClient(process, watcher)
            clients.append(client)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client._run)
                try:
                    yield client
                finally:
                    tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Callers catch AgentDied and its like: task groups are how this is built, not part of what it promises.
        raise _sole(group) from None


def _sole(problem: BaseException) -> BaseException:
    while isinstance(problem, BaseExceptionGroup) and len(problem.exceptions) == 1:
        problem = problem.exceptions[0]
    return problem


def _object(source: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = source.get(key)
    return value if isinstance(value, Mapping) else {}


def _session(params: Mapping[str, Any]) -> str:
    session_id = params.get("sessionId")
    if not isinstance(session_id, str):
        raise invalid_params("must be a string", "sessionId")
    return session_id


def _details(refusal: RpcError) -> str:
    """What an error's `data` says in words, where the message does not say it already."""
    data = refusal.data
    words = [data] if isinstance(data, str) else []
    if isinstance(data, Mapping):
        words = [
            data[key] for key in ("details", "detail", "message", "error", "reason") if isinstance(data.get(key), str)
        ]
    return next((f": {said}" for said in words if said not in refusal.message), "")
