"""Client session: controls a session with an ACP agent from the main thread.

The protocol runs in another thread. So the main thread can read the terminal, print at the terminal's speed and handle
signals. The agent's updates come to the main thread through one queue, in order. If the queue is long, the protocol
thread waits, and so does the agent.
"""

from __future__ import annotations

import contextlib
import queue
import signal
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Final

import anyio
import anyio.from_thread

from cantrip_acp.acp.client.client import AgentClient, AgentRefused, ListedSession, Outcome, Session, connect
from cantrip_acp.acp.client.in_process import Serve
from cantrip_acp.acp.wire.jsonrpc import AUTH_REQUIRED, RESOURCE_NOT_FOUND
from cantrip_acp.cli.render.client_output import ClientOutput
from cantrip_acp.cli.render.from_acp import get_list, get_text
from cantrip_acp.cli.session.loop_thread import handled_signals
from cantrip_acp.cli.session.permissions import Policy, choose_option
from cantrip_acp.text.sanitize import clean_line

_LONGEST_QUEUE: Final = 512
_HURRY_SECONDS: Final = 0.3
_IDLE_SECONDS: Final = 0.1
ASK: Final = "ask"
"""The mode to which one key switches."""

Asker = Callable[[Sequence[Mapping[str, Any]]], tuple[str, str]]
"""Asks the user which option to choose. Returns its id, and the reason of a rejection (it may be empty)."""


class Quit(Exception):
    """Raised to end the command at once, after a second Ctrl-C or a signal. `status` is the exit status."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(status)


class ClientSession:
    """One agent and one session. Use it as a context manager; then call `open`, then `turn` for each prompt. `agent` is the
    agent's command line, or a function that serves ACP in this process.
    `asker` asks the user which permission to give if the policy's rule is "ask"; without it the answer is no.
    """

    def __init__(
        self,
        agent: Sequence[str] | Serve,
        output: ClientOutput,
        *,
        folder: Path,
        policy: Policy | None = None,
        asker: Asker | None = None,
        timeout: float | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._command = agent
        self._output = output
        self._folder = folder
        self._policy = policy or Policy()
        self._asker = asker
        self._timeout = timeout
        self._environment = environment
        self._queue: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._interrupts = 0
        self._leave: int | None = None
        self._stack = contextlib.ExitStack()
        self._session: Session | None = None
        self._before_ask = "sandboxed"
        self._commands: dict[str, list[tuple[str, str]]] = {}
        self._about: Mapping[str, Any] = {}
        self._cancelling = False

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
        about: Mapping[str, Any] = self._wait(lambda: self._agent.initialize(timeout=self._timeout or 60))
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

    @property
    def session(self) -> Session:
        """The session that prompts go to."""
        assert self._session is not None, "open() comes first"
        return self._session

    def set_mode(self, mode: str) -> Session:
        session = self.session
        self._wait(lambda: self._agent.set_mode(session.id, mode, timeout=self._timeout or 60))
        self._session = replace(session, modes={**session.modes, "currentModeId": mode})
        return self._session

    def toggle_ask(self) -> str:
        """Switch to the mode `ask`, or back to the mode before it. Returns the new mode. Raises AgentRefused if the agent has
        no such mode."""
        current = get_text(self.session.modes, "currentModeId")
        if current == ASK:
            self.set_mode(self._before_ask)
        else:
            self.set_mode(ASK)
            self._before_ask = current
        return get_text(self.session.modes, "currentModeId")

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The names of the agent's slash commands in this session, without the slash, and what they do."""
        return self._commands.get(self.session.id, [])

    def note_commands(self, session_id: str, commands: list[Any]) -> None:
        """The agent listed its slash commands."""
        found = [each for each in commands if isinstance(each, Mapping) and get_text(each, "name")]
        self._commands[session_id] = [(get_text(each, "name"), get_text(each, "description")) for each in found]

    def note_mode(self, session_id: str, mode: str) -> None:
        """The agent changed the mode of a session."""
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

    def turn(self, words: str) -> Outcome:
        """Send one prompt. Ctrl-C cancels it (the outcome says so); a second Ctrl-C raises Quit. Raises AgentError.

        What the words mention with ``@`` is sent as links, which every agent understands.
        """
        from cantrip_acp.cli.session.mentions import prompt_blocks

        session = self.session
        prompt, notes = prompt_blocks(words, session.folder)
        for note in notes:
            self._output.show_note(note)
        started = time.monotonic()
        self._interrupts = 0
        self._cancelling = False
        outcome: Outcome = self._wait(
            lambda: self._agent.prompt(session.id, prompt, timeout=self._timeout), may_cancel=True
        )
        self._output.show_outcome(outcome, time.monotonic() - started)
        return outcome

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C cancelled the last turn."""
        return self._cancelling

    # Communication between the threads

    def _wait(self, ask: Callable[[], Any], *, may_cancel: bool = False) -> Any:
        """Run a coroutine function in the protocol's thread. Until it ends, handle the queue in this thread."""
        future: Future[Any] = self._portal.start_task_soon(ask)
        future.add_done_callback(lambda _future: self._queue.put(None))
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
        return future.result()

    def _check(self, may_cancel: bool) -> None:
        if self._leave is not None:
            raise Quit(self._leave)
        if not self._interrupts:
            return
        if not may_cancel or self._interrupts > 1:
            raise Quit(130)
        if not self._cancelling:
            self._cancelling = True
            self._output.show_note("cancelling; press Ctrl-C again to quit")
            assert self._session is not None
            self._portal.start_task_soon(self._agent.cancel, self._session.id)

    def answer(self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> tuple[str, str] | None:
        """Answer a permission request: the option's id and the user's reason. Runs in the main thread."""
        if self._cancelling:
            return None
        answer: str | None
        reason = ""
        self._output.show_permission_request(call)
        rule = self._policy.rule_for(call)
        if rule != "ask":
            answer, by = choose_option(rule, options), f" ({self._policy.option_for(call)})"
        elif self._asker is None:
            answer, by = choose_option("never", options), " (there is no terminal to ask; see --allow)"
        else:
            try:
                (answer, reason), by = self._asker(options), ""
            except EOFError:
                answer, by = choose_option("never", options), " (end of input)"
            except KeyboardInterrupt:
                self._interrupts += 1
                answer, by = None, " (cancelling)"
        self._output.show_permission_answer(call, options, answer, f" ({clean_line(reason, 200)})" if reason else by)
        return (answer, reason) if answer is not None else None

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Handle signals: count SIGINT; end the command for SIGTERM and SIGHUP. A queue entry wakes the main thread."""

        def interrupted(number: int, frame: FrameType | None) -> None:
            self._interrupts += 1
            self._queue.put(None)

        def ended(number: int, frame: FrameType | None) -> None:
            self._leave = 128 + number
            self._queue.put(None)

        handlers: dict[int, Callable[[int, FrameType | None], None]] = {
            signal.SIGINT: interrupted,
            signal.SIGTERM: ended,
            signal.SIGHUP: ended,
        }
        before = {number: signal.signal(number, handlers[number]) for number in handled_signals(*handlers)}
        try:
            yield
        finally:
            for number, earlier in before.items():
                signal.signal(number, earlier)

    @contextlib.contextmanager
    def keyboard(self) -> Iterator[None]:
        """While the user types, the terminal shows it, Ctrl-C raises KeyboardInterrupt and the other signals raise Quit."""

        def ended(number: int, frame: FrameType | None) -> None:
            raise Quit(128 + number)

        before: dict[int, Any] = {signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler)}
        for number in handled_signals(signal.SIGTERM, signal.SIGHUP):
            before[number] = signal.signal(number, ended)
        try:
            with echo(True):
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
        await self._put(lambda: self._output.show_update(session_id, update))

    async def request_permission(
        self, session_id: str, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]
    ) -> tuple[str, str] | None:
        answers: list[tuple[str, str] | None] = []
        answered = anyio.Event()

        def ask() -> None:
            answers.append(self._headless.answer(call, options))
            self._headless._portal.start_task_soon(_set, answered)

        await self._put(ask)
        await answered.wait()
        return answers[0]

    async def on_file_access(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        await self._put(lambda: self._output.show_file_access(action, path, refused, missing))

    async def on_line(self, source: str, line: str) -> None:
        await self._put(lambda: self._output.show_line(source, line))


@contextlib.contextmanager
def echo(on: bool) -> Iterator[None]:
    """Whether the terminal shows what is typed inside the block. What is typed while a turn runs is not shown in the midst of
    the output; it waits for the next prompt."""
    try:
        before = termios.tcgetattr(0)
    except termios.error:
        yield
        return
    flags = before[3] | termios.ECHO if on else before[3] & ~termios.ECHO
    termios.tcsetattr(0, termios.TCSANOW, [*before[:3], flags, *before[4:]])
    try:
        yield
    finally:
        # Not TCSAFLUSH, which would throw away what was typed.
        termios.tcsetattr(0, termios.TCSADRAIN, before)


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
