"""Human crystal: a person answers queries in the terminal. It shows the messages and sends the typed text as the response."""

from __future__ import annotations

import difflib
import json
import os
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import anyio

from cantrip_acp.crystals.contract import CrystalBase, Delta, Emit, Query, Response
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message, ToolCall, ToolDefinition

_ENTITIES = 32
"""The most entities whose shown messages are remembered. For an older entity, all messages are shown again."""
_MOMENT_S = 0.05


class HumanCrystal(CrystalBase):
    """A person at this process's terminal. Standard input must be a terminal, so it does not work over ACP.

    A query raises `CrystalError` if there is no terminal, and at the end of input (Ctrl-D).
    """

    name = "human"
    model = "human"
    context_window: int | None = None
    patient = True
    samples = False

    def __init__(self) -> None:
        self._seen: OrderedDict[str, tuple[Message, ...]] = OrderedDict()
        self._turn = anyio.Lock()
        self._calls = 0

    def __repr__(self) -> str:
        return "HumanCrystal()"

    async def query(self, query: Query, emit: Emit) -> Response:
        # Entities that share a terminal are answered one after another.
        async with self._turn:
            # Let the output of the program come first.
            await anyio.sleep(_MOMENT_S)
            with terminal() as screen:
                screen.write(self._news(query))
                response = await self._answer(query, screen)
        if response.content:
            await emit(Delta("text", response.content))
        return response

    def _news(self, query: Query) -> str:
        """Format the messages that the user has not seen yet, and the list of tools."""
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
        return f"\n{note}{_format_messages(fresh)}{_tool_line(query.tools)}"

    async def _answer(self, query: Query, terminal: Typing) -> Response:
        typing = InputParser(query.tools)
        words: list[str] = []
        calls: list[ToolCall] = []
        while True:
            said = typing.add(await terminal.line("… " if typing.inside else "you ❯ "))
            if said.kind == "show":
                terminal.write(_format_command(said.text, query))
            elif said.kind == "problem":
                terminal.write(f"   {said.text}\n")
            elif said.kind == "refusal":
                return Response(said.text or "[declined]", stop_reason="refusal", model=self.model, refused=True)
            elif said.kind in ("text", "call"):
                problem = _rejection(said, query, bool(calls))
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


def _rejection(said: UserInput, query: Query, called: bool) -> str | None:
    if said.kind == "call" and query.tool_choice == "none":
        return "no tool may be called here: say something"
    if said.kind == "text" and not said.hold and not called and query.tool_choice == "required":
        return "a tool must be called here; + in front holds the text for the next call"
    return None


def _format_command(what: str, query: Query) -> str:
    if what == "tools":
        return _tool_list(query.tools)
    if what == "all":
        return _format_messages(query.messages, whole=True)
    return "".join(f"   {line}\n" for line in HELP.splitlines())


_questions = 0
"""The number of this process's questions that wait for an answer at the terminal."""
_waited = 0.0
"""Seconds that ended questions of this process have waited."""
_waiting_since = 0.0
"""When the first of the open questions began to wait (`time.monotonic`)."""


def working_clock() -> float:
    """A clock in seconds that stands still while a question waits for the user."""
    return (_waiting_since if _questions else time.monotonic()) - _waited


def waited_seconds() -> float:
    """How long questions of this process have waited for the user."""
    return time.monotonic() - working_clock()


class Typing(Protocol):
    """A terminal at which a person answers: `Terminal`, or the input line of `cantrip repl`."""

    def write(self, text: str) -> None: ...
    async def line(self, prompt: str) -> str: ...
    async def key(self, prompt: str, keys: str) -> str: ...


typing_at: Callable[[bool], Typing] | None = None
"""The replacement for `Terminal` in this process, if there is one. Its argument is ``question``."""


@contextmanager
def terminal(*, question: bool = True) -> Iterator[Typing]:
    """Open this process's terminal, to ask a question or, without ``question``, to read the lines that answer none.

    Raises `CrystalError` if there is no terminal.
    """
    global _questions, _waited, _waiting_since
    if question:
        _waiting_since = _waiting_since if _questions else time.monotonic()
        _questions += 1
    try:
        with _open_terminal(question=question) as opened:
            yield opened
    finally:
        if question:
            _questions -= 1
            _waited += 0.0 if _questions else time.monotonic() - _waiting_since


@contextmanager
def _open_terminal(*, question: bool) -> Iterator[Typing]:
    if typing_at is not None:
        yield typing_at(question)
        return
    if not _is_terminal(0):
        raise CrystalError(
            "provider human needs a terminal, but standard input is not a terminal (over ACP it carries the protocol); "
            "run `cantrip cast` or `cantrip repl` in a terminal, or name another crystal",
            retryable=False,
        )
    try:
        # Do not use descriptors 0 and 1. Output may go to a file, and flags set on a shared terminal would stay set.
        # Two readers may wake for one line. The one that comes too late must not block.
        flags = os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | (0 if question else os.O_NONBLOCK)
        fd = os.open(os.ttyname(0), flags)
    except OSError as error:
        raise CrystalError(f"the terminal cannot be opened: {error.strerror}", retryable=False) from None
    try:
        yield Terminal(fd, question=question)
    finally:
        os.close(fd)


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


class Terminal:
    """Reads lines from a terminal and writes text to it. The terminal stays in its usual mode, in which the system edits
    lines. Waiting for a line can be cancelled."""

    def __init__(self, fd: int, *, question: bool = True) -> None:
        self._fd = fd
        self._question = question
        self._rest = b""

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "replace")
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            raise _terminal_closed(error) from None

    async def line(self, prompt: str) -> str:
        """Read the next line, without its line end. Raises `CrystalError` at the end of input, or if the terminal is closed."""
        if b"\n" not in self._rest:
            self.write(prompt)
        while b"\n" not in self._rest:
            await anyio.wait_readable(self._fd)
            if not self._question and _questions:
                # The line is the answer to a question, and its reader takes it.
                await anyio.sleep(_MOMENT_S)
                continue
            try:
                data = os.read(self._fd, 65536)
            except BlockingIOError:
                continue
            except OSError as error:
                raise _terminal_closed(error) from None
            if not data:
                self.write("\n")
                raise CrystalError("end of input: nobody answers for the model any more", retryable=False)
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line.decode("utf-8", "replace").removesuffix("\r")

    async def key(self, prompt: str, keys: str) -> str:
        """Read one of ``keys`` without Enter; other keys do nothing. What was typed before the question does not count.

        Raises `CrystalError` for Ctrl-D, or if the terminal is closed.
        """
        import termios
        import tty

        try:
            before = termios.tcgetattr(self._fd)
            tty.setcbreak(self._fd, termios.TCSAFLUSH)
        except termios.error:
            raise CrystalError("the terminal has gone", retryable=False) from None
        try:
            self.write(prompt)
            while True:
                await anyio.wait_readable(self._fd)
                try:
                    pressed = os.read(self._fd, 1).decode("utf-8", "replace").lower()
                except OSError as error:
                    raise _terminal_closed(error) from None
                if pressed in ("", "\x04"):
                    self.write("\n")
                    raise CrystalError("end of input: nobody answers any more", retryable=False)
                if pressed in keys:
                    self.write(f"{pressed}\n")
                    return pressed
        finally:
            termios.tcsetattr(self._fd, termios.TCSADRAIN, before)


def _terminal_closed(error: OSError) -> CrystalError:
    return CrystalError(f"the terminal has gone: {error.strerror}", retryable=False)


# --- input

COMMANDS = ("help", "tools", "all", "say", "refuse", "gate")
"""The names of commands that are not tools. A tool with such a name is called with ``/gate NAME``."""

HELP = """\
text              say it, as the model; a line that ends in \\ goes on in the next one
/TOOL {json}      call a tool with arguments as JSON, which may take several lines
/TOOL text        call it with that text as its first argument: /bash ls -l, /done it is 42
/TOOL             call it with the lines that follow, up to a line with a single dot
/gate TOOL …      the same, for a tool whose name is taken here
/say              say the lines that follow, up to a line with a single dot
+…                hold this text or call; it goes together with the next one
/refuse [why]     decline, as a provider does
/tools  /all      the tools and their arguments; all messages, whole
Ctrl-C stops the cast; Ctrl-D ends it as a crystal that has gone"""

END = "."


@dataclass(frozen=True)
class UserInput:
    """One input: text, a call (tool and arguments as JSON text), a refusal, or a command such as ``/help`` (``show``).

    The kind is ``more`` if the input is not complete, and ``problem`` if it is invalid; ``text`` then says why. An input
    with ``hold`` is sent together with the next one.
    """

    kind: Literal["text", "call", "refusal", "show", "problem", "more", "nothing"]
    text: str = ""
    tool: str = ""
    args: str = ""
    hold: bool = False


@dataclass
class InputParser:
    """Collects typed lines until they form one input. ``tools`` are the tools of the query."""

    tools: Sequence[ToolDefinition]
    _lines: list[str] = field(default_factory=list)
    _until: Literal["line", "block", "json"] = "line"

    @property
    def inside(self) -> bool:
        """Whether the next line continues an input."""
        return bool(self._lines)

    def add(self, line: str) -> UserInput:
        """Add one line without its end. Returns ``more`` while the input is not complete."""
        if self._lines and self._until == "block":
            if line != END:
                self._lines.append(line)
                return UserInput("more")
            head, *body = self._take_lines()
            return self._command(head, "\n".join(body))
        if self._lines and self._until == "json":
            if not line.strip():
                return self._read("\n".join(self._take_lines()), final=True)
            return self._read("\n".join([*self._take_lines(), line]), final=False)
        if line.endswith("\\") and not line.endswith("\\\\"):
            self._lines.append(line[:-1])
            self._until = "line"
            return UserInput("more")
        return self._read("\n".join([*self._take_lines(), line]), final=False)

    def _take_lines(self) -> list[str]:
        lines, self._lines, self._until = self._lines, [], "line"
        return lines

    def _wait(self, lines: list[str], until: Literal["block", "json"]) -> UserInput:
        self._lines, self._until = lines, until
        return UserInput("more")

    def _read(self, typed: str, *, final: bool) -> UserInput:
        words = typed.strip()
        hold = words.startswith("+")
        plain = words[1:].lstrip() if hold else words
        if not plain:
            return UserInput("nothing")
        if not plain.startswith("/"):
            return UserInput("text", text=plain if hold else typed.strip("\n"), hold=hold)
        name, _, rest = plain[1:].partition(" ")
        name, newline, more = name.partition("\n")
        rest = more + (" " + rest if rest else "") if newline else rest.strip()
        if name in ("help", "tools", "all"):
            return UserInput("show", text=name)
        if name == "refuse":
            return UserInput("refusal", text=rest)
        if name == "gate":
            name, _, rest = rest.partition(" ")
            rest = rest.strip()
        if not rest and (name == "say" or self._asks_for_text(name)):
            return self._wait([words], "block")
        if rest.startswith("{") and not final and _unfinished(rest):
            return self._wait(typed.split("\n"), "json")
        return self._called(name, rest, hold)

    def _command(self, head: str, body: str) -> UserInput:
        """Parse a command and the block of lines after it."""
        hold = head.startswith("+")
        name = head.lstrip("+ ").lstrip("/").removeprefix("gate ").strip()
        if name == "say":
            return UserInput("text", text=body, hold=hold) if body.strip() else UserInput("nothing")
        return self._called(name, body, hold)

    def _called(self, name: str, rest: str, hold: bool) -> UserInput:
        tool = self._tool(name)
        if tool is None:
            near = difflib.get_close_matches(name, [t.name for t in self.tools] + list(COMMANDS), n=1)
            hint = f"did you mean /{near[0]}?" if near else "/tools lists them"
            return UserInput(
                "problem", text=f"no tool {name!r} here; {hint} (prose that begins with / goes behind /say)"
            )
        if rest.lstrip().startswith("{"):
            try:
                value = json.loads(rest)
            except ValueError as error:
                return UserInput("problem", text=f"nothing was sent: this is not valid JSON: {error}")
            if isinstance(value, dict):
                return UserInput("call", tool=tool.name, args=rest.strip(), hold=hold)
        if not rest.strip():
            return UserInput("call", tool=tool.name, args="{}", hold=hold)
        first = _first(tool)
        if first is None:
            return UserInput(
                "problem", text=f"nothing was sent: {tool.name} takes its arguments as JSON: /{tool.name} {{…}}"
            )
        name, kind = first
        return UserInput(
            "call", tool=tool.name, args=json.dumps({name: _value(rest, kind)}, ensure_ascii=False), hold=hold
        )

    def _tool(self, name: str) -> ToolDefinition | None:
        return next((tool for tool in self.tools if tool.name == name), None)

    def _asks_for_text(self, name: str) -> bool:
        """Whether the tool has required arguments, so that a call needs more text."""
        tool = self._tool(name)
        return tool is not None and bool(tool.parameters.get("required"))


def _first(tool: ToolDefinition) -> tuple[str, Any] | None:
    """The argument that a plain text sets, and its JSON Schema type. None if the tool requires several arguments."""
    properties = tool.parameters.get("properties")
    required = tool.parameters.get("required") or ()
    if not isinstance(properties, Mapping) or not properties or len(required) > 1:
        return None
    name = str(required[0]) if required else str(next(iter(properties)))
    schema = properties.get(name)
    return name, schema.get("type") if isinstance(schema, Mapping) else None


def _value(text: str, kind: Any) -> Any:
    """The text as a value of the type. If the type is not string, the text is parsed as JSON if possible."""
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def _unfinished(text: str) -> bool:
    """Whether more lines may complete the text to a JSON value."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        return error.pos >= len(text.rstrip()) or error.msg.startswith(("Unterminated", "Invalid control"))
    return False


# --- output

LONGEST = 4000
"""The most characters shown of one message. ``/all`` shows the whole message."""

# A message may contain any output of a file or a command. It must not control the terminal or change the text direction.
_UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """The text without characters that control a terminal."""
    return _UNSAFE.sub("\ufffd", text)


def _format_messages(shown: Sequence[Message], *, whole: bool = False) -> str:
    return "".join(f"{head}\n{_indented(text, whole=whole)}" for head, text in _parts(shown))


def _parts(shown: Sequence[Message]) -> Iterator[tuple[str, str]]:
    for message in shown:
        if message.role == "assistant":
            calls = "".join(f"\n/{call.gate} {call.args}" for call in message.tool_calls)
            yield "── you said", (message.content or "") + calls
            continue
        kind = f" ({message.kind})" if message.kind not in ("turn", message.role) else ""
        if message.role == "tool":
            head = f"── {message.name or 'tool'}{' failed' if message.is_error else ''}"
        else:
            head = f"── {message.role}{kind}"
        notes = "".join(f"[{a.kind} {a.title or a.uri or a.mime}]\n" for a in message.attachments)
        yield head, notes + (message.content or "")


def _indented(text: str, *, whole: bool) -> str:
    if len(text) > LONGEST and not whole:
        half = LONGEST // 2
        left_out = len(text) - 2 * half
        text = f"{text[:half]}\n… {left_out:,} characters more; /all shows them …\n{text[-half:]}"
    return "".join(f"   {line}\n" for line in clean(text).split("\n"))


def _tool_line(tools: Sequence[ToolDefinition]) -> str:
    """Format the names of the tools on one line."""
    names = "  ".join(f"/{tool.name}" for tool in tools)
    return f"── tools: {names or 'none'}   (/help)\n"


def _tool_list(tools: Sequence[ToolDefinition]) -> str:
    """Format each tool with its description and its arguments."""
    out = []
    for tool in tools:
        out.append(f"/{tool.name}  {' '.join(tool.description.split())[:300]}\n")
        properties = tool.parameters.get("properties")
        required = tool.parameters.get("required") or ()
        for name, schema in properties.items() if isinstance(properties, Mapping) else ():
            about = schema if isinstance(schema, Mapping) else {}
            optional = "" if name in required else ", optional"
            description = " ".join(str(about.get("description", "")).split())[:200]
            out.append(
                f"     {name}: {about.get('type', 'any')}{optional}{f'  {description}' if description else ''}\n"
            )
    return clean("".join(out)) or "no tools\n"
