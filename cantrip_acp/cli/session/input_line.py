"""The input line of `cantrip repl`. It stays at the bottom of the terminal while output appears above it.

prompt_toolkit edits the line in the main thread. The rest of the command runs in another thread (`InputLine.run`), and asks
the user by `InputLine.ask`. The entity's thread asks by `crystals.human.terminal`. Text that was typed before a question
stays, and comes back after it.
"""

from __future__ import annotations

import asyncio
import io
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, TextIO, TypeVar, cast

from prompt_toolkit.application import get_app_session, run_in_terminal
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import ANSI, StyleAndTextTuples, to_formatted_text
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input.base import Input
from prompt_toolkit.input.typeahead import store_typeahead
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding import KeyBindings, KeyPress, KeyPressEvent
from prompt_toolkit.keys import Keys
from prompt_toolkit.output.vt100 import Vt100_Output
from prompt_toolkit.shortcuts import PromptSession

from cantrip_acp.cli.errors import INTERRUPTED
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.session.client_session import Quit
from cantrip_acp.cli.session.completions import Complete
from cantrip_acp.cli.session.loop_thread import SIGNALS, handled_signals
from cantrip_acp.cli.session.typed_lines import ENDS_LATER
from cantrip_acp.crystals import human
from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.text.sanitize import clean
from cantrip_acp.types.errors import CrystalError

T = TypeVar("T")

_TYPING_S: Final = 0.5
"""A key that comes this soon after the last one is not an answer to a question that has just appeared."""
_QUICK_S: Final = 0.2
"""Work that ends within this time shows no sign of progress."""
_FRAME_S: Final = 0.1
_FRAMES: Final = ("⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏", "-\\|/")


@dataclass(eq=False)
class _Request:
    """A request that waits for the user: an intent, a line typed during a cast, an answer, or one key."""

    kind: Literal["intent", "typed", "answer", "key"]
    message: str = ""
    keys: str = ""
    made: float = field(default_factory=time.monotonic)
    future: Future[str] = field(default_factory=Future)


class _Requests:
    """The requests that wait for the user, and what was typed before there was one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._added: list[_Request] = []
        self._early: deque[str] = deque()
        """Lines that were typed while nobody waited for one."""
        self.no_more_intents = False
        """Whether Ctrl-D was pressed while nothing waited for an intent."""
        self._stopped = False

    def add(self, request: _Request) -> None:
        """Add a request. It is answered at once with an early line, or ends at once if there will be no answer."""
        with self._lock:
            self._added.append(request)
            if self._early and request.kind in ("intent", "typed"):
                request.future.set_result(self._early.popleft())
            elif (self._stopped and request.kind != "typed") or (self.no_more_intents and request.kind == "intent"):
                request.future.set_exception(EOFError())

    def remove(self, request: _Request) -> None:
        with self._lock:
            self._added.remove(request)

    def top(self) -> _Request | None:
        """The request that gets what the user types: the last question, else who waits for a line."""
        with self._lock:
            waiting = [each for each in self._added if not each.future.done()]
        questions = [each for each in waiting if each.kind in ("answer", "key")]
        return questions[-1] if questions else waiting[-1] if waiting else None

    def top_or_end(self) -> _Request | None:
        """As `top`; if nothing waits, the next request for an intent ends."""
        with self._lock:
            found = self.top()
            self.no_more_intents = self.no_more_intents or found is None
            return found

    def give(self, text: str) -> None:
        """Give a line to who waits for one, or keep it."""
        with self._lock:
            top = self.top()
            if top is None:
                self._early.append(text)
            else:
                top.future.set_result(text)

    def stop(self) -> None:
        """End every request, also later ones, but those for what is typed during a cast."""
        with self._lock:
            self._stopped = True
            for request in self._added:
                if request.kind != "typed" and not request.future.done():
                    request.future.set_exception(EOFError())


class _Output:
    """What appears above the line: whole lines, which are printed once, and a text that may still change."""

    def __init__(self) -> None:
        # Reentrant, because a warning of Python may be written at any moment.
        self._lock = threading.RLock()
        self._lines: list[str] = []
        self._next_live = ""
        self.live: list[str] = []
        """The lines of the text that may still change, as the screen shows it."""

    def add(self, lines: str, live: str) -> None:
        with self._lock:
            self._lines.append(lines)
            self._next_live = live

    def take(self) -> str:
        """The lines to print now."""
        with self._lock:
            text, self._lines = "".join(self._lines), []
            self.live = self._next_live.split("\n") if self._next_live else []
        return text


class InputLine:
    """The input line. ``complete`` returns the possible completions of a text for the Tab key (`completions`)."""

    def __init__(self, history: Path, complete: Complete) -> None:
        from cantrip_acp.files.paths import private

        private(history.parent)
        # Only the user may read what was typed.
        os.close(os.open(history, os.O_CREAT | os.O_CLOEXEC, 0o600))
        history.chmod(0o600)
        self._history, self.complete = FileHistory(str(history)), complete
        self._requests = _Requests()
        self._output = _Output()
        self._shown: _Request | None = None
        self._kept = Document()
        """The text that the user was typing when a question took over the line."""
        self._last_key = 0.0
        self._pressed = False
        """Whether the last key was Ctrl-C on an empty line."""
        self._away = False
        """Whether another program has the terminal."""
        self._shift_tab: Callable[[], None] | None = None
        self._early_shift_tabs = 0
        """The number of presses of Shift-Tab before a function for it was set."""
        self._stop: Callable[[int], None] | None = None
        self._since = 0.0
        self._stopped_by = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._session: PromptSession[str] | None = None
        self.screen = Screen(cast("TextIO", _Above(self)), colour=True)
        self.screen.live = self._show_live

    # --- what the other threads call

    def intents(self) -> Iterator[str]:
        """Yield what the user types, until Ctrl-D or a signal."""
        while not self._stopped_by:
            try:
                yield self._wait(_Request("intent"))
            except EOFError:
                return
            except KeyboardInterrupt:
                raise Quit(INTERRUPTED) from None

    def when_shift_tab(self, called: Callable[[], None]) -> None:
        """Set the function for Shift-Tab, called in any thread. It is also called for each earlier press of the key."""
        self._shift_tab = called
        early, self._early_shift_tabs = self._early_shift_tabs, 0
        for _ in range(early):
            called()

    def ask(self, question: str) -> str:
        """Ask for a line. Raises EOFError for Ctrl-D and KeyboardInterrupt for Ctrl-C."""
        return self._wait(_Request("answer", question))

    def in_terminal(self, work: Callable[[], T]) -> T:
        """Run a program that needs the whole terminal, such as an editor."""
        assert self._loop is not None, "the input line runs"

        async def run() -> T:
            self._away = True
            try:
                return await run_in_terminal(work, in_executor=True)
            finally:
                self._away = False

        return asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    @contextmanager
    def working(self, stop: Callable[[int], None]) -> Iterator[None]:
        """Inside the block a cast runs: a sign shows that it works, and Ctrl-C and signals call ``stop``."""
        self._since, self._stop = human.working_clock(), stop
        if self._stopped_by:
            stop(self._stopped_by)
        try:
            yield
        finally:
            self._stop = None
            self._show_live("")

    def _wait(self, request: _Request) -> str:
        self._add(request)
        try:
            return request.future.result()
        finally:
            self._remove(request)

    async def answer(self, request: _Request) -> str:
        """Wait for a request in an event loop. Raises `CrystalError` at the end of input."""
        self._add(request)
        try:
            return await asyncio.wrap_future(request.future)
        except EOFError:
            raise CrystalError("end of input: nobody answers any more", retryable=False) from None
        finally:
            self._remove(request)

    def _add(self, request: _Request) -> None:
        self._requests.add(request)
        self._redraw()

    def _remove(self, request: _Request) -> None:
        self._requests.remove(request)
        self._redraw()

    def _show_live(self, text: str) -> None:
        """Show text above the line that may still change, as lines with ANSI styles. An empty text shows nothing."""
        self._show("", text)

    def _show(self, above: str, live: str) -> None:
        self._output.add(above, live)
        self._redraw()

    def _redraw(self) -> None:
        if self._loop is not None:
            try:
                self._loop.call_soon_threadsafe(self._update)
            except RuntimeError:
                return  # the loop is closed: the command ends

    # --- the main thread

    def run(self, work: Callable[[], T]) -> T:
        """Run ``work`` in another thread, and the input line in this one, until the work ends."""
        output = get_app_session().output
        if isinstance(output, Vt100_Output):
            # A terminal that does not answer where its cursor is would cause a warning.
            output.enable_cpr = False
        return asyncio.run(self._run(work))

    async def _run(self, work: Callable[[], T]) -> T:
        self._loop = asyncio.get_running_loop()
        for number in handled_signals(*SIGNALS):
            self._loop.add_signal_handler(number, self._on_signal, number)
        session: PromptSession[str] = PromptSession(
            self._message,
            history=self._history,
            completer=_Words(self),
            complete_while_typing=False,
            multiline=True,
            key_bindings=self._keys(),
            erase_when_done=True,
            enable_suspend=True,
            prompt_continuation="  ",
        )
        self._session = session
        human.typing_at = lambda question: _Typing(self, question=question)
        ticker = asyncio.create_task(self._tick())
        finished = asyncio.Event()
        result: Future[T] = Future()

        def in_thread() -> None:
            try:
                result.set_result(work())
            except BaseException as error:  # noqa: BLE001 - the main thread raises it
                result.set_exception(error)
            assert self._loop is not None
            self._loop.call_soon_threadsafe(finished.set)

        above = _Above(self)
        # From here on nothing that is typed is changed or shown by the terminal itself.
        with session.input.raw_mode(), redirect_stdout(above), redirect_stderr(above):
            _take_typed_ahead(session.input)
            thread = threading.Thread(target=in_thread, name="repl")
            # Output waits until the line is there, because it must appear above it.
            line = asyncio.create_task(session.prompt_async(pre_run=thread.start))
            ended = asyncio.create_task(finished.wait())
            await asyncio.wait({line, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not finished.is_set():
                # The terminal has gone.
                self._on_signal(signal.SIGHUP)
            await ended
            thread.join()
            self._print()
            line.cancel()
            await asyncio.gather(line, return_exceptions=True)
        ticker.cancel()
        human.typing_at = None
        if isinstance(error := result.exception(), BaseException):
            raise error
        if self._stopped_by:
            raise SystemExit(128 + self._stopped_by)
        return result.result()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_FRAME_S)
            if self._stop is not None:
                self._update()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGINT:
            self._interrupt()
            return
        self._stopped_by = number
        if self._stop is not None:
            self._stop(number)
        self._requests.stop()

    def _interrupt(self) -> None:
        """Ctrl-C: stop the cast, or cancel the question, or empty the line."""
        request = self._requests.top()
        if self._stop is not None:
            self._stop(signal.SIGINT)
        elif request is not None and request.kind in ("answer", "key"):
            request.future.set_exception(KeyboardInterrupt())
        elif self._session is not None and (request is None or self._session.default_buffer.text):
            self._session.default_buffer.reset()
        elif request is not None and self._pressed:
            request.future.set_exception(KeyboardInterrupt())
        else:
            self._pressed = True
            self.screen.line(("press Ctrl-C again to quit", "dim"))

    def _update(self) -> None:
        if self._session is None:
            return
        buffer, top = self._session.default_buffer, self._requests.top()
        asked = top if top is not None and top.kind == "answer" else None
        if asked is not self._shown:
            if self._shown is None:
                self._kept = buffer.document
            buffer.set_document(Document() if asked is not None else self._kept, bypass_readonly=True)
            self._shown = asked
        self._print()
        self._session.app.invalidate()

    def _print(self) -> None:
        """Print output above the line, and show the text that may still change, in one step."""
        if self._session is None or self._away:
            return
        text = self._output.take()
        if text:
            # Not `run_in_terminal`: it gives the terminal's own line editing what is typed in that moment.
            output = self._session.app.output
            self._session.app.renderer.erase()
            output.write_raw(text.replace("\n", "\r\n"))
            # At once, because until then the terminal sends a paste as keys.
            self._session.app.renderer.render(self._session.app, self._session.app.layout)

    def _message(self) -> StyleAndTextTuples:
        """The text above the line and at its beginning."""
        assert self._session is not None, "the input line runs"
        marks, top = self.screen.marks, self._requests.top()
        rows = self._session.app.output.get_size().rows
        shown: StyleAndTextTuples = []
        for line in self._output.live[-max(rows // 2, 3) :]:
            shown += [*to_formatted_text(ANSI(line)), ("", "\n")]
        if top is not None and top.kind == "key":
            return [*shown, ("", "\n"), ("bold", top.message), ("", "\n"), ("", f"{marks.prompt} ")]
        seconds = human.working_clock() - self._since
        if self._stop is not None and seconds > _QUICK_S and (top is None or top.kind == "typed"):
            frames = _FRAMES[0] if marks.prompt == "❯" else _FRAMES[1]
            frame = frames[int(time.monotonic() / _FRAME_S) % len(frames)]
            shown += [("", "\n"), ("ansicyan", frame), ("", f" working {int(seconds)} s {marks.dot} Ctrl-C stops")]
        if top is not None and top.kind == "answer":
            return [*shown, ("", "\n"), ("bold", top.message)]
        return [*shown, ("", "\n"), ("bold ansimagenta", f"{marks.prompt} ")]

    def _submit(self, buffer: Buffer) -> None:
        text, top = buffer.text, self._requests.top()
        self._last_key, self._pressed = 0.0, False
        if text.endswith("\\"):
            buffer.delete_before_cursor(1)
            buffer.insert_text("\n")
            return
        if top is None or top.kind != "answer":
            if text.strip():
                buffer.append_to_history()
            buffer.reset()
            self._requests.give(text)
            return
        buffer.reset()
        self.screen.line(top.message, text)
        top.future.set_result(text)
        self._update()

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()
        asks_for_key = Condition(lambda: (top := self._requests.top()) is not None and top.kind == "key")

        @keys.add("<any>", filter=asks_for_key, eager=True)
        def _(event: KeyPressEvent) -> None:
            request, now, pressed = self._requests.top(), time.monotonic(), event.data
            assert request is not None, "the filter found one"
            if event.key_sequence[0].key == Keys.BracketedPaste:
                event.current_buffer.insert_text(pressed.replace("\r\n", "\n").replace("\r", "\n"))
            elif self._last_key > request.made - _TYPING_S and now - self._last_key < _TYPING_S:
                # The user was typing when the question appeared.
                self._last_key = now
                event.current_buffer.insert_text(pressed if pressed.isprintable() else "")
            elif len(pressed) == 1 and pressed.lower() in request.keys:
                self.screen.line(request.message, pressed.lower())
                request.future.set_result(pressed.lower())

        @keys.add("<any>", filter=~asks_for_key)
        def _(event: KeyPressEvent) -> None:
            self._last_key, self._pressed = time.monotonic(), False
            event.current_buffer.insert_text(event.data * event.arg)

        @keys.add("enter", filter=~asks_for_key)
        def _(event: KeyPressEvent) -> None:
            state = event.current_buffer.complete_state
            if state is not None and state.current_completion is not None:
                event.current_buffer.complete_state = None
            else:
                self._submit(event.current_buffer)

        @keys.add("c-j", filter=~asks_for_key)
        @keys.add("escape", "enter", filter=~asks_for_key)
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.newline(copy_margin=False)

        @keys.add("s-tab", eager=True)
        def _(event: KeyPressEvent) -> None:
            if self._shift_tab is not None:
                self._shift_tab()
            else:
                self._early_shift_tabs += 1

        @keys.add("c-c", eager=True)
        def _(event: KeyPressEvent) -> None:
            self._interrupt()

        @keys.add("c-d", eager=True)
        def _(event: KeyPressEvent) -> None:
            text = event.current_buffer.text
            top = self._requests.top() if text else self._requests.top_or_end()
            if top is not None and (top.kind == "key" or not text):
                if top.kind != "typed":
                    top.future.set_exception(EOFError())
                elif not self._requests.no_more_intents:
                    self._requests.no_more_intents = True
                    self.screen.line((ENDS_LATER, "dim"), indent=2)
            else:
                event.current_buffer.delete()

        return keys


def _take_typed_ahead(source: Input) -> None:
    """Pass to the input line the text that was typed before it existed. Until then the terminal edits lines itself: it turns
    the Enter key into a line feed, which is another key here, and Ctrl-D at the beginning of a line into a null character."""
    data = b""
    while is_ready(source.fileno(), 0) and (more := os.read(source.fileno(), 65536)):
        data += more
    pressed: list[KeyPress] = []
    parser = Vt100Parser(pressed.append)
    parser.feed(data.decode("utf-8", "ignore").replace("\n", "\r").replace("\0", "\x04"))
    parser.flush()
    store_typeahead(source, pressed)


class _Above(io.TextIOBase):
    """A stream whose whole lines appear above the input line. An incomplete line is shown until the rest follows."""

    encoding = sys.__stdout__.encoding if sys.__stdout__ is not None else "utf-8"

    def __init__(self, line: InputLine) -> None:
        self._line = line
        self._rest = ""

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return sys.__stdout__.fileno() if sys.__stdout__ is not None else 1

    def write(self, text: str) -> int:
        whole, newline, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        self._line._show(whole + newline, rest)
        return len(text)

    def flush(self) -> None:
        """Do nothing: whole lines are already written."""


class _Typing:
    """The input line as a terminal at which a person answers (`crystals.human.Typing`)."""

    def __init__(self, line: InputLine, *, question: bool) -> None:
        self._line, self._question = line, question

    def write(self, text: str) -> None:
        self._line.screen.raw(clean(text))

    async def line(self, prompt: str) -> str:
        return await self._line.answer(_Request("answer" if self._question else "typed", prompt))

    async def key(self, prompt: str, keys: str) -> str:
        return await self._line.answer(_Request("key", prompt, keys))


class _Words(Completer):
    """Completes slash commands, their arguments, and paths after ``@``."""

    def __init__(self, line: InputLine) -> None:
        self._line = line

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        typed = document.text_before_cursor
        for text, replaced, about in self._line.complete(typed):
            yield Completion(text, -replaced, display_meta=about)
