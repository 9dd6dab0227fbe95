"""ACP client: starts any ACP agent, speaks protocol version 1 with it over stdio, and reports its actions.

    async with connect(["cantrip-acp"], observer) as agent:
        about = await agent.initialize()
        session = await agent.new_session(folder)
        outcome = await agent.prompt(session.id, "What is in here?")

The observer gets the agent's updates and questions one after another, in the order in which they came. `prompt` returns
after the observer has handled all updates of the turn. A slow observer slows the agent. The agent may read and write
files below the session's folder (`client_files`). The client offers no terminals: `terminal/*` gets "method not found".
When the block ends, the agent and its process group have ended (`agent_process`).
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

from cantrip_acp.acp.client.agent_process import AgentMissing, AgentProcess, StdoutFilter, start_agent
from cantrip_acp.acp.client.client_files import ClientFiles, FileRefused
from cantrip_acp.acp.client.in_process import InProcessAgent, Serve, start_in_process
from cantrip_acp.acp.wire.connection import Connection, Disconnected, Method, Request
from cantrip_acp.acp.wire.jsonrpc import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    RESOURCE_NOT_FOUND,
    RpcError,
    invalid_params,
    one_line,
)
from cantrip_acp.types.errors import CantripError
from cantrip_acp.version import __version__

__all__ = [
    "AgentClient",
    "AgentDied",
    "AgentError",
    "AgentMissing",
    "AgentRefused",
    "AgentTimeout",
    "ClientObserver",
    "ListedSession",
    "Outcome",
    "Session",
    "connect",
]

PROTOCOL_VERSION: Final = 1

_CANCEL_SECONDS: Final = 5.0
_MOST_PAGES: Final = 1000

_NEEDS_RESULT: Final = ("initialize", "session/new", "session/prompt", "session/list", "session/set_config_option")
"""Methods whose answers must be objects. All other answers may be empty. Older agents send null as an empty answer."""

_T = TypeVar("_T")


class AgentClient:
    """The client's side of one connection. Made by `connect`."""

    def __init__(self, process: AgentProcess | InProcessAgent, observer: ClientObserver) -> None:
        self._process = process
        self._observer = observer
        self._files: dict[str, ClientFiles] = {}
        self._work = OrderedQueue()
        self._questions: dict[str, set[anyio.CancelScope]] = {}
        self._stdout = StdoutFilter(
            process.stdout, junk=lambda line: self._queue_line("stdout", line), ready=self._work.wait_for_space
        )
        self._connection = Connection(
            self._stdout,
            process.stdin,
            {
                "session/update": Method(dict[str, Any], self._update, notification=True),
                "session/request_permission": Method(dict[str, Any], self._permission),
                "elicitation/create": Method(dict[str, Any], self._form),
                "fs/read_text_file": Method(dict[str, Any], self._read),
                "fs/write_text_file": Method(dict[str, Any], self._write),
            },
        )
        self.about: Mapping[str, Any] = {}
        """The answer to `initialize`."""
        self._forms = False

    @property
    def process(self) -> AgentProcess | InProcessAgent:
        return self._process

    # Requests of the client

    async def initialize(
        self, *, forms: bool = False, own: bool = False, timeout: float | None = 60
    ) -> Mapping[str, Any]:
        """Negotiate version and capabilities. `forms`: whether the observer shows questions to a person. `own`: the agent is a
        part of this program, so it uses files by itself. Raises AgentRefused for an agent of another version."""
        self._forms = forms
        params = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientInfo": {"name": "cantrip-client", "title": "Cantrip client", "version": __version__},
            "clientCapabilities": {
                "fs": {"readTextFile": not own, "writeTextFile": not own},
                "terminal": False,
                "session": {"notices": {}, "compaction": {}},
                **({"elicitation": {"form": {}}} if forms else {}),
                # Ask for the output of commands while they run (a convention of Zed). Other agents send content instead.
                "_meta": {
                    "terminal_output": True,
                    "cantrip": {"outputStyles": True, "answerNotes": forms, "turns": own, "promptQueueing": own},
                },
            },
        }
        about = await self._ask("initialize", params, timeout=timeout)
        version = about.get("protocolVersion")
        if version != PROTOCOL_VERSION:
            raise AgentRefused(
                f"{self._name()} speaks ACP version {version!r}, this client speaks version {PROTOCOL_VERSION}",
                self._stderr(),
                code=0,
            )
        self.about = about
        return about

    async def authenticate(self, method: str, *, timeout: float | None = None) -> None:
        """Sign in by one of the `authMethods` of the answer to `initialize`."""
        await self._ask("authenticate", {"methodId": method}, timeout=timeout)

    async def new_session(
        self, folder: Path, *, meta: Mapping[str, Any] | None = None, timeout: float | None = 120
    ) -> Session:
        """Open a session on a folder. The agent may use the files of that folder."""
        return await self._open("session/new", None, folder, meta, timeout)

    async def load_session(self, session_id: str, folder: Path, *, timeout: float | None = 120) -> Session:
        """Open an earlier session. The observer gets its whole history before this returns."""
        self._require("loadSession", "session/load")
        return await self._open("session/load", session_id, folder, None, timeout)

    async def resume_session(self, session_id: str, folder: Path, *, timeout: float | None = 120) -> Session:
        """Open an earlier session without its history."""
        self._require("resume", "session/resume")
        return await self._open("session/resume", session_id, folder, None, timeout)

    async def _open(
        self, method: str, session_id: str | None, folder: Path, meta: Mapping[str, Any] | None, timeout: float | None
    ) -> Session:
        files = ClientFiles(folder)
        params: dict[str, Any] = {"cwd": str(files.folder), "mcpServers": []}
        if meta:
            params["_meta"] = dict(meta)
        before: ClientFiles | None = None
        if session_id is not None:
            # The replay of its history may already ask for files.
            params["sessionId"] = session_id
            before = self._files.get(session_id)
            self._files[session_id] = files
        try:
            answer = await self._ask(method, params, timeout=timeout)
        except AgentError:
            if session_id is not None and before is None:
                self._files.pop(session_id, None)
            raise
        found = answer.get("sessionId") if session_id is None else session_id
        if not isinstance(found, str) or not found:
            raise AgentRefused(f"{self._name()} answered {method} without a sessionId", self._stderr(), code=0)
        self._files[found] = files
        options = answer.get("configOptions")
        return Session(
            id=found,
            folder=files.folder,
            modes=_object(answer, "modes"),
            config_options=options if isinstance(options, list) else (),
            meta=_object(answer, "_meta"),
        )

    async def list_sessions(self, folder: Path | None = None, *, timeout: float | None = 60) -> list[ListedSession]:
        """List all sessions of the agent, from all pages. With `folder`, only the sessions of that folder."""
        self._require("list", "session/list")
        found: list[ListedSession] = []
        cursor: str | None = None
        for _page in range(_MOST_PAGES):
            params = {"cwd": str(ClientFiles(folder).folder)} if folder is not None else {}
            answer = await self._ask(
                "session/list", {**params, **({"cursor": cursor} if cursor else {})}, timeout=timeout
            )
            listed = answer.get("sessions")
            for each in listed if isinstance(listed, list) else ():
                if isinstance(each, Mapping) and isinstance(each.get("sessionId"), str):
                    words = (each.get(key) for key in ("cwd", "title", "updatedAt"))
                    found.append(ListedSession(each["sessionId"], *(w if isinstance(w, str) else "" for w in words)))
            following = answer.get("nextCursor")
            if not isinstance(following, str) or not following or following == cursor:
                break
            cursor = following
        return found

    async def set_mode(self, session_id: str, mode: str, *, timeout: float | None = 60) -> None:
        """Change the session's mode to one that `session/new` offered."""
        await self._ask("session/set_mode", {"sessionId": session_id, "modeId": mode}, timeout=timeout)

    async def set_option(
        self, session_id: str, option: str, value: str, *, timeout: float | None = 60
    ) -> Sequence[Any]:
        """Set a config option. Returns all options with their present values."""
        params = {"sessionId": session_id, "configId": option, "value": value}
        answer = await self._ask("session/set_config_option", params, timeout=timeout)
        options = answer.get("configOptions")
        return options if isinstance(options, list) else ()

    def _require(self, ability: str, method: str) -> None:
        offered = _object(self.about, "agentCapabilities")
        sessions = _object(offered, "sessionCapabilities")
        if not offered.get(ability) and not isinstance(sessions.get(ability), Mapping):
            raise AgentRefused(f"{self._name()} does not offer {method}", self._stderr(), code=METHOD_NOT_FOUND)

    async def prompt(
        self,
        session_id: str,
        prompt: str | Sequence[Mapping[str, Any]],
        *,
        meta: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Outcome:
        """Run one turn. After `timeout` seconds the turn is cancelled and AgentTimeout is raised."""
        blocks = [{"type": "text", "text": prompt}] if isinstance(prompt, str) else list(prompt)
        params: dict[str, Any] = {"sessionId": session_id, "prompt": blocks}
        if meta:
            params["_meta"] = dict(meta)

        async def give_up() -> None:
            await self.cancel(session_id)

        answer = await self._ask("session/prompt", params, timeout=timeout, give_up=give_up)
        reason = answer.get("stopReason")
        if not isinstance(reason, str):
            raise AgentRefused(f"{self._name()} answered session/prompt without a stopReason", self._stderr(), code=0)
        return Outcome(reason, _object(answer, "usage"), _object(answer, "_meta"))

    async def steer(self, session_id: str, text: str) -> bool:
        """Give the running turn a message (an extension of several agents). Returns False if no turn runs."""
        params = {
            "sessionId": session_id,
            "prompt": [{"type": "text", "text": text}],
            "_meta": {"steering": {"idleBehavior": "promptRequired"}},
        }
        answer = await self._ask("_session/steering", params, timeout=60)
        return answer.get("outcome") == "injected"

    async def close_session(self, session_id: str) -> None:
        """Close a session, which the agent keeps."""
        await self._ask("session/close", {"sessionId": session_id}, timeout=60)

    async def cancel(self, session_id: str) -> None:
        """Ask the agent to end the session's turn (ACP, Cancellation). Open questions get the answer "cancelled"."""
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
        """Send one request. At the timeout `give_up` is called, and the agent gets a few more seconds to answer."""
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
            raise await self._agent_died(method) from None
        if not in_time:
            after = "it ended its turn when it was cancelled" if answered.is_set() else "and did not end when cancelled"
            raise AgentTimeout(
                f"{self._name()} did not answer {method} within {timeout:g} s" + (f"; {after}" if give_up else ""),
                self._stderr(),
            )
        await self._work.all_done()
        if problems:
            refusal = problems[0]
            assert isinstance(refusal, RpcError)
            raise AgentRefused(
                f"{self._name()} refused {method}: {_error_text(refusal)}",
                self._stderr(),
                code=refusal.code,
                data=refusal.data,
            )
        if not isinstance(answers[0], Mapping):
            if method not in _NEEDS_RESULT and answers[0] is None:
                return {}
            raise AgentRefused(
                f"{self._name()} answered {method} with {answers[0]!r:.200}, but the answer must be an object",
                self._stderr(),
                code=0,
            )
        return answers[0]

    async def _agent_died(self, method: str) -> AgentDied:
        ended = await self._process.ended(1.0)
        how = self._process.describe_end() if ended else "closed its stdout"
        text = "" if self._stdout.bytes else " and had not said anything"
        return AgentDied(f"{self._name()} {how} before it answered {method}{text}", self._stderr())

    def _stderr(self) -> Sequence[str]:
        return self._process.stderr_tail()

    def _name(self) -> str:
        return f"the agent {self._process.argv[0]!r}"

    # Requests and notifications of the agent

    def _update(self, params: Mapping[str, Any], request: Request) -> None:
        session_id, update = _session(params), _object(params, "update")

        async def show() -> None:
            await self._observer.on_update(session_id, update)

        self._work.put(show)

    def _permission(self, params: Mapping[str, Any], request: Request) -> Awaitable[Mapping[str, Any]]:
        session_id, call = _session(params), _object(params, "toolCall")
        offered = params.get("options")
        options = [option for option in offered if isinstance(option, Mapping)] if isinstance(offered, list) else []
        if not options:
            raise invalid_params("a question needs at least one option", "options")

        async def ask() -> Mapping[str, Any]:
            answer = await self._observer.request_permission(session_id, call, options)
            if answer is None:
                return {"outcome": "cancelled"}
            option, notes = answer
            # The convention of Cantrip; other agents ignore it.
            note = {"_meta": {"cantrip": dict(notes)}} if notes else {}
            return {"outcome": "selected", "optionId": option, **note}

        return self._question(session_id, ask, lambda outcome: {"outcome": outcome or {"outcome": "cancelled"}})

    def _form(self, params: Mapping[str, Any], request: Request) -> Awaitable[Mapping[str, Any]]:
        if not self._forms:
            raise RpcError(METHOD_NOT_FOUND, "this client has no person who could fill in a form")
        session_id, message, schema = params.get("sessionId"), params.get("message"), _object(params, "requestedSchema")

        async def ask() -> Mapping[str, Any]:
            content = await self._observer.request_form(str(message or ""), schema)
            return {"action": "cancel"} if content is None else {"action": "accept", "content": content}

        return self._question(str(session_id), ask, lambda result: result or {"action": "cancel"})

    async def _question(
        self,
        session_id: str,
        ask: Callable[[], Awaitable[Mapping[str, Any]]],
        reply: Callable[[Mapping[str, Any] | None], Mapping[str, Any]],
    ) -> Mapping[str, Any]:
        """Ask the observer, once it has handled all earlier updates. There is no answer if the turn is cancelled meanwhile."""
        scope, settled = anyio.CancelScope(), anyio.Event()
        answers: list[Mapping[str, Any]] = []
        questions = self._questions.setdefault(session_id, set())
        questions.add(scope)

        async def in_order() -> None:
            with scope:
                answers.append(await ask())
            settled.set()

        self._work.put(in_order)
        try:
            await settled.wait()
        finally:
            scope.cancel()
            questions.discard(scope)
        return reply(answers[0] if answers else None)

    async def _read(self, params: Mapping[str, Any], request: Request) -> Mapping[str, Any]:
        files, path = self._session_files(params)
        line, limit = (params.get(key) for key in ("line", "limit"))
        for name, value in (("line", line), ("limit", limit)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise invalid_params(f"a whole number from 0 up, not {value!r}", name)
        return {"content": await self._use_file("read", path, lambda: files.read(path, line, limit))}

    async def _write(self, params: Mapping[str, Any], request: Request) -> Mapping[str, Any]:
        files, path = self._session_files(params)
        content = params.get("content")
        if not isinstance(content, str):
            raise invalid_params("must be a string", "content")
        await self._use_file("write", path, lambda: files.write(path, content))
        return {}

    def _session_files(self, params: Mapping[str, Any]) -> tuple[ClientFiles, str]:
        path = params.get("path")
        if not isinstance(path, str):
            raise invalid_params("must be a string", "path")
        files = self._files.get(_session(params))
        if files is None:
            raise invalid_params("there is no such session here", "sessionId")
        return files, path

    async def _use_file(self, action: str, path: str, work: Callable[[], _T]) -> _T:
        refused: str | None = None
        missing = False
        try:
            return await anyio.to_thread.run_sync(work)
        except FileRefused as problem:
            refused, missing = str(problem), problem.missing
            raise RpcError(RESOURCE_NOT_FOUND if problem.missing else INVALID_PARAMS, refused) from None
        finally:
            self._work.put(lambda: self._observer.on_file_access(action, path, refused, missing))

    def _queue_line(self, source: str, line: str) -> None:
        self._work.put(lambda: self._observer.on_line(source, line))

    async def _run(self) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._work.run)
            await self._connection.run()
            # The agent has closed its stdout. Its last messages are still handled until `connect` ends.


@contextlib.asynccontextmanager
async def connect(
    agent: Sequence[str] | Serve,
    observer: ClientObserver,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> AsyncIterator[AgentClient]:
    """Start an agent and connect to it. When the block ends, the agent and its process group are stopped.

    `agent` is its command line, or a function that serves ACP in this event loop. `folder` is the working folder of a command,
    and `environment` replaces the inherited environment. Raises AgentMissing.
    """
    clients: list[AgentClient] = []

    async def relay(line: str) -> None:
        for client in clients:
            client._queue_line("stderr", line)

    try:
        started: contextlib.AbstractAsyncContextManager[AgentProcess | InProcessAgent] = (
            start_in_process(agent)
            if callable(agent)
            else start_agent(agent, folder=folder, environment=environment, relay=relay)
        )
        async with started as process:
            client = AgentClient(process, observer)
            clients.append(client)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client._run)
                try:
                    yield client
                finally:
                    tasks.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # Callers catch AgentDied and similar errors, not the exception groups of the task groups used here.
        raise _unwrap(group) from None


def _unwrap(problem: BaseException) -> BaseException:
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


def _error_text(refusal: RpcError) -> str:
    """An error as text: its message, its code, and details from its `data` that are not in the message."""
    data = refusal.data
    words = [data] if isinstance(data, str) else []
    if isinstance(data, Mapping):
        words = [
            data[key] for key in ("details", "detail", "message", "error", "reason") if isinstance(data.get(key), str)
        ]
    # Our own agent sends the original lines in the data, because the message has only one line.
    message, shown = refusal.message, next((each for each in words if one_line(each) in refusal.message), None)
    if shown is not None and "\n" in shown:
        return f"{message.replace(one_line(shown), shown)} ({refusal.code})"
    more = next((f": {text}" for text in words if text not in message and one_line(text) not in message), "")
    return f"{message} ({refusal.code}){more}"


class ClientObserver(Protocol):
    """Gets the agent's actions. Each method is awaited before the next one is called."""

    async def on_update(self, session_id: str, update: Mapping[str, Any]) -> None:
        """Called for each `session/update`."""

    async def request_permission(
        self, session_id: str, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]
    ) -> tuple[str, Mapping[str, str]] | None:
        """Called for `session/request_permission`. Returns the `optionId` of the answer and the user's additions (a `reason`,
        an edited `plan`), or None for no answer ("cancelled").

        This call is cancelled if the turn is cancelled or if the agent withdraws the question.
        """

    async def request_form(self, message: str, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Called for a form (`elicitation/create`). Returns the fields, or None for no answer. It is cancelled in the same
        way as `request_permission`."""

    async def on_file_access(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        """Called when the agent read (`action` "read") or wrote ("write") a file through the client.

        `refused` is the reason if the client refused, else None. `missing` is true if the reason is that the file does
        not exist, which is normal before the file is created.
        """

    async def on_line(self, source: str, line: str) -> None:
        """Called for a line that the agent wrote to stderr, or to stdout if it is not a message (`source` "stderr" or "stdout")."""


@dataclass(frozen=True)
class Session:
    """The result of `session/new`, `session/load` or `session/resume`."""

    id: str
    folder: Path
    modes: Mapping[str, Any] = field(default_factory=dict)
    config_options: Sequence[Any] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class ListedSession:
    """A session of `session/list`. Fields that the agent does not send are empty."""

    id: str
    folder: str = ""
    title: str = ""
    updated_at: str = ""


@dataclass(frozen=True)
class Outcome:
    """The result of a prompt: ACP's stop reason, the usage if the agent sends it, and `_meta`."""

    stop_reason: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)


class AgentError(CantripError):
    """The agent failed. `stderr` holds the last lines of its stderr, and the message of the error shows them."""

    code: int | None = None
    """The JSON-RPC code of its answer, or 0 if that breaks the protocol. None without an answer."""

    def __init__(self, message: str, stderr: Sequence[str] = ()) -> None:
        self.stderr = tuple(stderr)
        tail = "".join(f"\n  {line}" for line in self.stderr[-12:])
        super().__init__(f"{message}\nIts stderr ended with:{tail}" if tail.strip() else message)


class AgentDied(AgentError):
    """The agent ended, or closed its stdout, before it answered."""


class AgentTimeout(AgentError):
    """The agent did not answer in time."""


class AgentRefused(AgentError):
    """The agent answered with an error, or its answer breaks the protocol."""

    def __init__(self, message: str, stderr: Sequence[str] = (), *, code: int, data: object = None) -> None:
        self.code = code
        self.data = data
        super().__init__(message, stderr)


_MAX_WAITING_ITEMS: Final = 256
"""Items that may wait before `wait_for_space` makes producers wait."""


class OrderedQueue:
    """A queue of async calls. `put` never waits; one task runs the calls with `run`."""

    def __init__(self) -> None:
        self._work: deque[Callable[[], Awaitable[None]]] = deque()
        self._arrived = anyio.Event()
        self._drained = anyio.Event()

    def put(self, work: Callable[[], Awaitable[None]]) -> None:
        self._work.append(work)
        self._arrived.set()

    async def run(self) -> None:
        while True:
            while self._work:
                await self._work[0]()
                self._work.popleft()
                if len(self._work) <= _MAX_WAITING_ITEMS // 2:
                    self._drained.set()
                    self._drained = anyio.Event()
            self._arrived = anyio.Event()
            await self._arrived.wait()

    async def all_done(self) -> None:
        """Wait until everything queued before now is done."""
        done = anyio.Event()

        async def reached() -> None:
            done.set()

        self.put(reached)
        await done.wait()

    async def wait_for_space(self) -> None:
        """Wait while too many items are queued."""
        while len(self._work) > _MAX_WAITING_ITEMS:
            await self._drained.wait()
