"""Client session: controls a session with an ACP agent from the main thread.

The protocol runs in another thread. So the main thread can read the terminal, print at the terminal's speed and handle
signals. The agent's updates come to the main thread through one queue, in order. If the queue is long, the protocol
thread waits, and so does the agent.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import anyio
import anyio.from_thread

from cantrip_acp.acp.client.client import (
    AgentClient,
    AgentError,
    AgentRefused,
    ListedSession,
    Outcome,
    Session,
    connect,
)
from cantrip_acp.acp.client.in_process import Serve
from cantrip_acp.acp.wire.jsonrpc import AUTH_REQUIRED, RESOURCE_NOT_FOUND
from cantrip_acp.cli.render.client_output import ClientOutput, loom_of
from cantrip_acp.cli.render.from_acp import get_list, get_mapping, get_text
from cantrip_acp.cli.session.loop_thread import handled_signals
from cantrip_acp.cli.session.permissions import Policy, choose_option
from cantrip_acp.cli.session.questions import Answer, Questions
from cantrip_acp.crystals.human import working_clock
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.errors import CrystalError

_LONGEST_QUEUE: Final = 512
_HURRY_SECONDS: Final = 0.3
_IDLE_SECONDS: Final = 0.1
ASK: Final = "ask"
"""The mode to which one key switches."""


class Quit(Exception):
    """Raised to end the command at once, after a second Ctrl-C or a signal. `status` is the exit status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)


class ClientSession:
    """One agent and one session. Use it as a context manager; then call `open`, then `turn` for each prompt. `agent` is the
    agent's command line, or a function that serves ACP in this process.
    `questions` asks the user for permissions if the policy's rule is "ask"; without it the answer is no. `own`: the agent is
    a part of this program, so that an interrupt is left to it longer, and it uses files by itself.
    """

    def __init__(
        self,
        agent: Sequence[str] | Serve,
        output: ClientOutput,
        *,
        folder: Path,
        policy: Policy | None = None,
        questions: Questions | None = None,
        own: bool = False,
        timeout: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = agent
        self._output = output
        self._folder = folder
        self._policy = policy or Policy()
        self._questions = questions
        self.own = own
        self._timeout = timeout
        self._environment = environment
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._interrupts = 0
        self._leave: int | None = None
        self._stack = contextlib.ExitStack()
        self._session: Session | None = None
        self._before_ask = "trusted" if own else "sandboxed"
        self._commands: dict[str, list[tuple[str, str]]] = {}
        self._about: Mapping[str, Any] = {}
        self._cancelling = False
        self._used = False
        """Whether the session has a turn."""
        self._thread = threading.get_ident()
        self._waiting = False
        self.steered: Callable[[str], None] = lambda text: None
        """Called in the protocol's thread with each message that the agent has read during a turn."""

    def __enter__(self) -> ClientSession:
        with self._stack as stack:
            stack.enter_context(self._signals())
            self._portal = stack.enter_context(anyio.from_thread.start_blocking_portal("asyncio"))
            # The agent starts in the current folder, so that relative paths in its command line work.
            connection = connect(self._command, _QueueObserver(self), environment=self._environment)
            self._agent: AgentClient = stack.enter_context(self._portal.wrap_async_context_manager(connection))
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *problem: Any) -> None:
        if problem[0] is not None:
            self._agent.process.exit_seconds = _HURRY_SECONDS
        self._stack.__exit__(*problem)

    def initialize(self, auth: str | None = None) -> Mapping[str, Any]:
        """Initialize the agent and sign in with the method `auth`, if one is named. Returns what the agent says about itself."""
        about: Mapping[str, Any] = self._wait(
            lambda: self._agent.initialize(forms=self._questions is not None, own=self.own, timeout=self._timeout or 60)
        )
        if auth is not None:
            self._wait(lambda: self._agent.authenticate(auth, timeout=self._timeout or 300))
        return about

    def sessions(self, *, everywhere: bool = False) -> list[ListedSession]:
        """The agent's sessions of the folder, or all its sessions."""
        folder = None if everywhere else self._folder
        found: list[ListedSession] = self._wait(lambda: self._agent.list_sessions(folder, timeout=self._timeout or 60))
        return found

    def open(
        self,
        *,
        mode: str | None = None,
        auth: str | None = None,
        load: str | None = None,
        resume: str | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Session:
        """Initialize the agent, open a session (a new one, or an earlier one by its id), and set its mode and options.
        The history of a loaded session is shown before this returns. `last` is the most recently active session.
        """
        self._about = self.initialize(auth)
        session = self._open_session(load, resume)
        if mode is not None:
            session = self.set_mode(mode)
        for option, value in (options or {}).items():
            session = self.set_option(option, value)
        self._output.show_session(self._about, session)
        return session

    def reopen(self, *, load: str | None = None, resume: str | None = None) -> None:
        """Switch to another session of the same agent: a new one or an earlier one."""
        session = self._open_session(load, resume)
        self._output.show_session(self._about, session)

    def begin_anew(self) -> None:
        """Close the session, if the agent can do that, and begin another one."""
        earlier, abilities = self.session.id, get_mapping(self._about, "agentCapabilities")
        if "close" in get_mapping(abilities, "sessionCapabilities"):
            self._wait(lambda: self._agent.close_session(earlier))
        self.reopen()

    def continue_words(self) -> str:
        """The command that continues this session; empty if it has no turn or is not kept."""
        if not self._used:
            return ""
        if self.own:
            return f"cantrip repl --session {self.session.id}" if loom_of(self.session.meta) else ""
        return f"/load {self.session.id}" if get_mapping(self._about, "agentCapabilities").get("loadSession") else ""

    @property
    def asks(self) -> bool:
        """Whether the user can be asked for permissions."""
        return self._questions is not None

    @property
    def session(self) -> Session:
        """The session that prompts go to."""
        assert self._session is not None, "open() comes first"
        return self._session

    def set_mode(self, mode: str) -> Session:
        self._wait(lambda: self.change_mode(mode))
        return self.session

    async def change_mode(self, mode: str) -> None:
        """Set the mode, also during a turn. Call it in the protocol's thread."""
        session = self.session
        await self._agent.set_mode(session.id, mode, timeout=self._timeout or 60)
        self._session = replace(session, modes={**session.modes, "currentModeId": mode})

    async def toggle_ask(self) -> str:
        """Switch to the mode `ask`, or back to the mode before it. Returns the new mode. Raises AgentRefused if the agent has
        no such mode. Call it in the protocol's thread."""
        current = get_text(self.session.modes, "currentModeId")
        await self.change_mode(self._before_ask if current == ASK else ASK)
        if current != ASK:
            self._before_ask = current
        return get_text(self.session.modes, "currentModeId")

    @property
    def mode_text(self) -> str:
        """The present mode, for people."""
        now = get_text(self.session.modes, "currentModeId")
        found = [m for m in get_list(self.session.modes, "availableModes") if isinstance(m, Mapping)]
        about = next((get_text(each, "description") for each in found if get_text(each, "id") == now), "")
        return f"mode {now}: {about}" if about else f"mode {now}"

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The agent's slash commands in this session, without the slash, and their descriptions."""
        return self._commands.get(self.session.id, [])

    def note_commands(self, session_id: str, commands: list[Any]) -> None:
        """Note the slash commands that the agent has listed."""
        found = [each for each in commands if isinstance(each, Mapping) and get_text(each, "name")]
        self._commands[session_id] = [(get_text(each, "name"), get_text(each, "description")) for each in found]

    def note_options(self, session_id: str, options: list[Any]) -> None:
        """Note the changed config options of a session."""
        if self._session is not None and self._session.id == session_id:
            self._session = replace(self._session, config_options=options)

    def note_mode(self, session_id: str, mode: str) -> None:
        """Note the changed mode of a session."""
        if self._session is not None and self._session.id == session_id:
            self._session = replace(self._session, modes={**self._session.modes, "currentModeId": mode})

    def set_option(self, option: str, value: str) -> Session:
        session = self.session
        options = self._wait(lambda: self._agent.set_option(session.id, option, value, timeout=self._timeout or 60))
        self._session = replace(session, config_options=options)
        return self._session

    def _open_session(self, load: str | None, resume: str | None) -> Session:
        limit = self._timeout or 120
        wanted = load or resume
        if wanted == "last":
            wanted = self._last()
        call = self._agent.load_session if load else self._agent.resume_session
        try:
            self._session = self._wait(
                lambda: (
                    self._agent.new_session(self._folder, timeout=limit)
                    if wanted is None
                    else call(wanted, self._folder, timeout=limit)
                )
            )
        except AgentRefused as refused:
            if refused.code == AUTH_REQUIRED:
                words = _sign_in(str(refused), self._about)
                raise AgentRefused(words, code=refused.code, data=refused.data) from refused
            raise
        self._used = wanted is not None
        return self.session

    def _last(self) -> str:
        here = self._session.id if self._session is not None else None
        others = [each for each in self.sessions() if each.id != here]
        found = max(others, key=lambda each: each.updated_at, default=None)
        if found is None:
            raise AgentRefused(
                f"the agent has no {'other ' if here else ''}session of {self._folder}", code=RESOURCE_NOT_FOUND
            )
        return found.id

    def turn(self, words: str, beside: Callable[[], Coroutine[Any, Any, None]] | None = None) -> Outcome:
        """Send one prompt. Ctrl-C cancels it (the outcome says so); a second Ctrl-C raises Quit. Raises AgentError.

        What the words mention with ``@`` is sent as links, which every agent understands. ``beside`` runs in the protocol's
        thread until the turn ends.
        """
        from cantrip_acp.cli.session.mentions import prompt_blocks

        session = self.session
        prompt, notes = prompt_blocks(words, session.folder)
        if attached := dict.fromkeys(each["name"] for each in prompt if "name" in each):
            self._output.show_attached(list(attached))
        for note in notes:
            self._output.show_note(note)
        started = working_clock()
        self._interrupts = 0
        self._cancelling = False

        async def run() -> Outcome | AgentError:
            async with anyio.create_task_group() as tasks:
                if beside is not None:
                    tasks.start_soon(beside)
                found: Outcome | AgentError
                try:
                    found = await self._agent.prompt(session.id, prompt, timeout=self._timeout)
                except AgentError as problem:
                    # Not raised here: the group would wrap it.
                    found = problem
                tasks.cancel_scope.cancel()
            return found

        outcome: Outcome | AgentError = self._wait(run, may_cancel=True)
        if isinstance(outcome, AgentError):
            raise outcome
        self._used = self._used or not get_text(get_mapping(outcome.meta, "cantrip"), "command")
        self._output.show_outcome(outcome, working_clock() - started)
        return outcome

    async def steer(self, words: str) -> bool:
        """Give the running turn a message. Returns False if none runs, or if the agent takes none. Call it in the protocol's
        thread."""
        try:
            return await self._agent.steer(self.session.id, words)
        except AgentRefused:
            return False

    def call(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function in the protocol's thread, and show the agent's updates meanwhile."""
        self._wait(work)

    def soon(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function in the protocol's thread, also during a turn, and do not wait for it."""
        self._portal.start_task_soon(work)

    def interrupt(self, number: int) -> None:
        """Handle a signal. Any thread may call this."""
        if number == signal.SIGINT:
            self._interrupts += 1
        else:
            self._leave = 128 + number
        self._queue.put(None)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C cancelled the last turn."""
        return self._cancelling

    # Communication between the threads

    def _wait(self, ask: Callable[[], Any], *, may_cancel: bool = False) -> Any:
        """Run a coroutine function in the protocol's thread. Until it ends, handle the queue in this thread."""
        future: Future[Any] = self._portal.start_task_soon(ask)
        future.add_done_callback(lambda _future: self._queue.put(None))
        self._waiting = True
        try:
            while not future.done() or not self._queue.empty():
                try:
                    work = self._queue.get(timeout=_IDLE_SECONDS)
                except queue.Empty:
                    self._output.flush_text()
                    work = self._queue.get()
                self._check(may_cancel)
                if work is not None:
                    work()
        except BaseException:
            future.cancel()
            raise
        finally:
            self._waiting = False
        return future.result()

    def show(self, work: Callable[[], None]) -> None:
        """Print in any thread, but never in the middle of other output."""
        if self._waiting and threading.get_ident() != self._thread:
            self._queue.put(work)
        else:
            work()

    def _check(self, may_cancel: bool) -> None:
        if self._leave is not None:
            raise Quit(self._leave)
        if not self._interrupts:
            return
        if not may_cancel or self._interrupts > 1 + self.own:
            raise Quit(130)
        if not self._cancelling:
            self._cancelling = True
            if not self.own:
                self._output.show_note("cancelling; press Ctrl-C again to quit")
            assert self._session is not None
            self._portal.start_task_soon(self._agent.cancel, self._session.id)

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals: count SIGINT; end the command for SIGTERM and SIGHUP. A queue entry wakes the main thread. Another
        thread gets no signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, lambda number, frame: self.interrupt(number))
            for number in handled_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        }
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    @contextlib.contextmanager
    def keyboard(self) -> Iterator[None]:
        """While the user types, Ctrl-C raises KeyboardInterrupt and the other signals raise Quit."""

        def ended(number: int, frame: FrameType | None) -> None:
            raise Quit(128 + number)

        before: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
        for number in handled_signals(signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, ended)
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)


class _QueueObserver:
    """The `ClientObserver` in the protocol's thread. It passes every call to the main thread."""

    def __init__(self, headless: ClientSession) -> None:
        self._headless = headless
        self._queue = headless._queue
        self._output = headless._output

    async def _put(self, work: Callable[[], None]) -> None:
        self._queue.put(work)
        # The queue is full only if the screen is slower than the agent. In that case a check every 2 ms costs little.
        while self._queue.qsize() > _LONGEST_QUEUE:  # noqa: ASYNC110 - the queue's reader is a thread, not a task
            await anyio.sleep(0.002)

    async def on_update(self, session_id: str, update: Mapping[str, Any]) -> None:
        if update.get("sessionUpdate") == "current_mode_update":
            await self._put(lambda: self._headless.note_mode(session_id, get_text(update, "currentModeId")))
        if update.get("sessionUpdate") == "available_commands_update":
            listed = get_list(update, "availableCommands")
            await self._put(lambda: self._headless.note_commands(session_id, listed))
        if update.get("sessionUpdate") == "config_option_update":
            options = get_list(update, "configOptions")
            await self._put(lambda: self._headless.note_options(session_id, options))
        if get_mapping(get_mapping(update, "_meta"), "cantrip").get("steering") is True:
            self._headless.steered(get_text(get_mapping(update, "content"), "text"))
        await self._put(lambda: self._output.show_update(session_id, update))

    async def _shown(self, work: Callable[[], None]) -> None:
        """Run a function in the main thread, and wait for its end."""
        done = anyio.Event()

        def run() -> None:
            work()
            self._headless._portal.start_task_soon(_set, done)

        await self._put(run)
        await done.wait()

    async def request_permission(
        self, session_id: str, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]
    ) -> Answer | None:
        session, output = self._headless, self._output
        if session._cancelling:
            return None
        await self._shown(lambda: output.show_permission_request(call))
        rule = session._policy.rule_for(call)
        answer, by = choose_option("never", options), ""
        notes: Mapping[str, str] = {}
        if rule != "ask":
            answer, by = choose_option(rule, options), f" ({session._policy.option_for(call)})"
        elif session._questions is None:
            by = " (there is no terminal to ask; see --allow)"
        else:
            try:
                answer, notes = await session._questions.permission(call, options)
                by = f" ({clean_line(notes['reason'], 200)})" if "reason" in notes else ""
            except CrystalError:
                by = " (end of input)"
            except anyio.get_cancelled_exc_class():
                self._queue.put(output.end_question)
                raise
        await self._shown(lambda: output.show_permission_answer(call, options, answer, by))
        return (answer, notes) if answer is not None else None

    async def request_form(self, message: str, schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
        if self._headless._questions is None or self._headless._cancelling:
            return None
        await self._shown(self._output.flush_text)
        try:
            return await self._headless._questions.form(message, schema)
        except CrystalError:
            return None

    async def on_file_access(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        await self._put(lambda: self._output.show_file_access(action, path, refused, missing))

    async def on_line(self, source: str, line: str) -> None:
        await self._put(lambda: self._output.show_line(source, line))


async def _set(event: anyio.Event) -> None:
    event.set()


def _sign_in(words: str, about: Mapping[str, Any]) -> str:
    """Add the agent's sign-in methods to the text of an error that asks to sign in."""
    ways = [way for way in get_list(about, "authMethods") if isinstance(way, Mapping) and get_text(way, "id")]
    for way in ways:
        words += f"\n  --auth {clean_line(get_text(way, 'id'), 60)}: {clean_line(get_text(way, 'name'), 100)}"
        if (more := get_text(way, "description")) and more not in words:
            words += f" ({clean_line(more)})"
    return words
