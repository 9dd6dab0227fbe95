"""You are the model: queries are shown in the terminal, and what you type is the response."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from cantrip_acp.crystals import human_view
from cantrip_acp.crystals.contract import Delta, Emit, Message, Query, Response, ToolCall
from cantrip_acp.crystals.human_typed import HELP, Said, Typing
from cantrip_acp.errors import CrystalError

_ENTITIES = 32
"""Entities whose messages are remembered as seen; one that comes again after that is shown whole."""
_MOMENT_S = 0.05


class HumanCrystal:
    """A person at this process's terminal. It needs standard input to be one: over ACP that is the protocol's.

    Raises `CrystalError` where there is no terminal, and at the end of its input (Ctrl-D).
    """

    name = "human"
    model = "human"
    context_window: int | None = None
    patient = True

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[Message, ...]] = OrderedDict()
        self._turn = anyio.Lock()
        self._calls = 0

    def __repr__(self) -> str:
        return "HumanCrystal()"

    async def query(self, query: Query, emit: Emit) -> Response:
        # Entities that share a terminal are answered one after the other.
        async with self._turn:
            # Who shows what happens writes first.
            await anyio.sleep(_MOMENT_S)
            with terminal() as screen:
                screen.write(self._news(query))
                response = await self._answer(query, screen)
        if response.content:
            await emit(Delta("text", response.content))
        return response

    def _news(self, query: Query) -> str:
        """What was not shown before, and the tools."""
        now = tuple(query.messages)
        before = self._seen.pop(query.entity_id, ())
        self._seen[query.entity_id] = now
        while len(self._seen) > _ENTITIES:
            self._seen.popitem(last=False)
        same = 0
        while same < min(len(before), len(now)) and before[same] == now[same]:
            same += 1
        note = "── what came before has changed; /all shows it\n" if same < len(before) else ""
        fresh = [m for m in now[same:] if m.role != "assistant"]
        return f"\n{note}{human_view.messages(fresh)}{human_view.tool_line(query.tools)}"

    async def _answer(self, query: Query, terminal: Terminal) -> Response:
        typing = Typing(query.tools)
        words: list[str] = []
        calls: list[ToolCall] = []
        while True:
            said = typing.add(await terminal.line("… " if typing.inside else "you ❯ "))
            if said.kind == "show":
                terminal.write(_shown(said.text, query))
            elif said.kind == "problem":
                terminal.write(f"   {said.text}\n")
            elif said.kind == "refusal":
                return Response(said.text or "[declined]", stop_reason="refusal", model=self.model, refused=True)
            elif said.kind in ("text", "call"):
                problem = _unwanted(said, query, bool(calls))
                if problem:
                    terminal.write(f"   {problem}\n")
                    continue
                if said.kind == "text":
                    words.append(said.text)
                else:
                    self._calls += 1
                    calls.append(ToolCall(f"human_{os.getpid()}_{self._calls}", said.tool, said.args))
                if not said.hold:
                    stop = "tool_calls" if calls else "stop"
                    content = "\n".join(words) or None
                    return Response(content, tool_calls=tuple(calls), stop_reason=stop, model=self.model)


def _unwanted(said: Said, query: Query, called: bool) -> str | None:
    if said.kind == "call" and query.tool_choice == "none":
        return "no tool may be called here: say something"
    if said.kind == "text" and not said.hold and not called and query.tool_choice == "required":
        return "a tool must be called here; + in front holds the text for the next call"
    return None


def _shown(what: str, query: Query) -> str:
    if what == "tools":
        return human_view.tool_list(query.tools)
    if what == "all":
        return human_view.messages(query.messages, whole=True)
    return "".join(f"   {line}\n" for line in HELP.splitlines())


@contextmanager
def terminal() -> Iterator[Terminal]:
    if not _is_terminal(0):
        raise CrystalError(
            "provider human needs a terminal on standard input, and here it is none (over ACP it belongs to the protocol); "
            "run `cantrip cast` or `cantrip repl` in a terminal, or name another crystal",
            retryable=False,
        )
    try:
        # Not descriptors 0 and 1: output may go to a file, and flags set on a shared terminal would stay.
        fd = os.open(os.ttyname(0), os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as error:
        raise CrystalError(f"the terminal cannot be opened: {error.strerror}", retryable=False) from None
    try:
        yield Terminal(fd)
    finally:
        os.close(fd)


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


class Terminal:
    """Lines from and text to a terminal in its usual mode: the system edits lines, and waiting can be cancelled."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise _gone(error) from None

    async def line(self, prompt: str) -> str:
        """The next line without its end. Raises `CrystalError` at the end of input, or where the terminal has gone."""
        if b"\n" not in self._rest:
            self.write(prompt)
        while b"\n" not in self._rest:
            await anyio.wait_readable(self._fd)
            try:
                data = os.read(self._fd, 65536)
            except OSError as error:
                raise _gone(error) from None
            if not data:
                self.write("\n")
                raise CrystalError("end of input: nobody answers for the model any more", retryable=False)
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace").removesuffix("\r")


def _gone(error: OSError) -> CrystalError:
    return CrystalError(f"the terminal has gone: {error.strerror}", retryable=False)
