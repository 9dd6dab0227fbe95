"""Terminal output: coloured and wrapped on a terminal, plain and unwrapped in a pipe, and where rich is not installed.
rich handles `NO_COLOR`, `FORCE_COLOR` and `TERM=dumb`. All output is cleaned here first (`text.sanitize`), so no caller can
forget it. Output only grows at its end: it can be scrolled, piped and copied.
"""

from __future__ import annotations

import io
import os
import re
import shutil
import sys
import time
import unicodedata
from contextlib import contextmanager, nullcontext, redirect_stderr
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Final, TextIO, TypeVar, cast

from cantrip_acp.text.redaction import Pieces, shared
from cantrip_acp.text.sanitize import Cleaner, StyledCleaner, clean
from cantrip_acp.types.styled import Styled, join

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import MarkdownElement
    from rich.text import Text


@dataclass(frozen=True)
class Marks:
    """The signs at the beginning of lines."""

    message: str = "●"
    thought: str = "✻"
    prompt: str = "❯"
    call: str = "▸"
    inner: str = "↳"
    bar: str = "│"
    done: str = "✓"
    failed: str = "✗"
    stop: str = "■"
    dot: str = "·"
    waiting: str = "○"
    running: str = "◐"
    notice: str = "◆"


_WIDEST: Final = 110
_FRAME_SECONDS: Final = 0.02
_LIVE_SECONDS: Final = 0.05
_LIVE_CHARACTERS: Final = 8_000

_UNICODE: Final = Marks()
_ASCII: Final = Marks("*", "~", ">", ">", "->", "|", "ok", "x", "#", "-", "o", "~", "!")


class Screen:
    """One output stream."""

    def __init__(self, stream: TextIO | None = None, *, colour: bool | None = None, width: int | None = None) -> None:
        stream = stream if stream is not None else sys.stdout
        # Characters that the terminal's encoding lacks must not end the program.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
        self._stream = stream
        self._console = _console(stream, colour, width)
        self.terminal: bool = self._console is not None and self._console.is_terminal
        encoding = getattr(stream, "encoding", None) or "utf-8"
        self.marks = _UNICODE if encoding.lower().replace("-", "") == "utf8" else _ASCII
        self.live: Callable[[str], None] | None = None
        """Shows text below the output that may still change, if this stream can do that. Then messages are rendered as
        Markdown."""
        self._message: MarkdownFlow | None = None

    @property
    def width(self) -> int | None:
        """The columns in which text is wrapped, as the terminal is now. None if lines are not wrapped (a pipe)."""
        return min(self._console.width, _WIDEST) if self._console is not None and self.terminal else None

    @contextmanager
    def rendering(self) -> Iterator[None]:
        """Inside the block, messages are rendered as Markdown, if the stream is a terminal that can move its cursor."""
        stream, console = self._stream, self._console
        if console is None or console.is_dumb_terminal or not stream.isatty():
            yield
            return
        terminal = _LiveTerminal(stream)
        self._stream = console.file = cast("TextIO", terminal)
        self.live = terminal.show
        try:
            # Otherwise a warning would be removed together with the text above it.
            with redirect_stderr(self._stream) if sys.stderr.isatty() else nullcontext():
                yield
        finally:
            self.end_message()
            self._stream = console.file = stream
            self.live = None

    def end_message(self) -> None:
        """Print the shown part of a message that may still change. Call this before a question."""
        if self._message is not None:
            self._message.close()

    def line(self, *parts: str | tuple[str, str], indent: int = 0, whole: bool = False) -> None:
        """Write one line (or more, if a part contains newlines) of `text` and `(text, style)` parts.
        A pipe gets it whole; a terminal wraps it between words and indents the next lines by two columns. With `whole` the
        terminal itself wraps, so that a path or a command can be copied in one piece.
        """
        if self._console is None:
            text = "".join(_shown(part[0] if isinstance(part, tuple) else part) for part in parts)
            self.raw(f"{' ' * indent}{text}\n")
            self.flush()
            return
        from rich.text import Text

        out = Text()
        for part in parts:
            text, style = part if isinstance(part, tuple) else (part, "")
            out.append(_shown(text), style)
        first = " " * indent
        if self.width is None or whole:
            self._console.print(Text(first) + out, soft_wrap=True)
            return
        for line in out.split("\n", allow_blank=True):
            for wrapped in line.wrap(self._console, max(self.width - indent - 2, 20)):
                wrapped.rstrip()
                self._console.print(Text(first) + wrapped, soft_wrap=True)
                first = " " * (indent + 2)
            first = " " * indent

    def line_with_bar(self, text: str | Styled, style: str = "", *, indent: int = 2) -> None:
        """Write one line of output behind a bar. On a terminal, a long line is cut into pieces, and each has the bar."""
        styled = text if isinstance(text, Styled) else Styled(text)
        styled = _masked(styled)
        if (cleaned := clean(styled.text)) != styled.text:
            styled = Styled(cleaned)
        if self._console is None:
            self.line(f"{self.marks.bar} {styled.text}" if styled.text else self.marks.bar, indent=indent)
            return
        from rich.cells import chop_cells
        from rich.text import Text

        pieces = [styled]
        if self.width is not None and len(styled.text) > 10:
            styled = _without_tabs(styled)
            chopped = chop_cells(styled.text, max(self.width - indent - 2, 20)) or [styled.text]
            ends = list(accumulate(map(len, chopped)))
            pieces = [styled.part(end - len(each), end) for each, end in zip(chopped, ends, strict=True)]
        for piece in pieces:
            out = Text(" " * indent)
            out.append(f"{self.marks.bar} " if piece.text else self.marks.bar, "dim")
            out.append_text(_rich_text(piece, style))
            self._console.print(out, soft_wrap=True)

    def raw(self, text: str, style: str = "") -> None:
        """Write text that is already cleaned, without a newline. For `Flow` and `Block`."""
        if self._console is None:
            self._stream.write(text)
        elif text:
            from rich.text import Text

            self._console.print(Text(text, style), end="", soft_wrap=True)

    def markdown(self, text: str, mark: str = "", mark_style: str = "") -> list[str]:
        """Markdown as lines with ANSI styles: headings, tables, lists and code. ``mark`` begins the first line."""
        from rich.markdown import Heading, Markdown
        from rich.text import Text

        class LeftHeading(Heading):
            def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
                self.text.justify = "left"
                yield self.text

        class LeftMarkdown(Markdown):
            elements: ClassVar[dict[str, type[MarkdownElement]]] = {**Markdown.elements, "heading_open": LeftHeading}

        assert self._console is not None, "only a terminal shows Markdown"
        indent = len(mark) + 1
        options = self._console.options.update(width=max((self.width or 80) - indent, 20))
        rendered = self._console.render_lines(
            LeftMarkdown(_masked(text), code_theme="ansi_dark", hyperlinks=False), options, pad=False
        )
        while rendered and not "".join(segment.text for segment in rendered[0]).strip():
            rendered.pop(0)
        lines = []
        for number, segments in enumerate(rendered):
            # Appended, because a style of the whole line would colour the words too.
            line = Text().append(f"{mark} ", mark_style) if number == 0 else Text(" " * indent)
            for segment in segments:
                line.append(segment.text, segment.style)
            line.rstrip()
            with self._console.capture() as captured:
                self._console.print(line, soft_wrap=True, end="")
            lines.append(captured.get())
        return lines

    def flow(self, mark: str, *, style: str = "", mark_style: str = "") -> Flow | MarkdownFlow:
        """Streamed prose, rendered as Markdown where that can be done while it comes. Styled prose (a thought) is not."""
        if self.live is not None and self._console is not None and not style:
            self._message = MarkdownFlow(self, mark, mark_style=mark_style)
            return self._message
        return Flow(self, mark, style=style, mark_style=mark_style)

    def print_rendered(self, lines: Sequence[str]) -> None:
        """Write lines of `markdown`."""
        self._stream.write("".join(f"{line}\n" for line in lines))

    def blank(self) -> None:
        if self._console is None:
            self.line()
        else:
            self._console.print()

    def flush(self) -> None:
        self._stream.flush()


class _LiveTerminal(io.TextIOBase):
    """A terminal whose last lines may still change (`show`). All other output removes them first."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown: list[int] = []
        """The columns of each line that may still change."""

    @property
    def encoding(self) -> str:  # type: ignore[override]
        return self._stream.encoding

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._stream.fileno()

    def write(self, text: str) -> int:
        return self._stream.write(self._removed() + text) if text else 0

    def flush(self) -> None:
        self._stream.flush()

    def show(self, text: str) -> None:
        """Show these lines below all output, as many as fit into half of the terminal. A longer line is cut."""
        lines = text.split("\n")[-max(shutil.get_terminal_size().lines // 2, 3) :]
        self._stream.write(self._removed() + "\x1b[?7l" + "\n".join(lines) + "\x1b[?7h")
        columns = shutil.get_terminal_size().columns
        self._shown = [min(cell_len(_STYLES.sub("", line)), columns) for line in lines]
        self._stream.flush()

    def _removed(self) -> str:
        """The control sequence that removes the lines from the terminal."""
        columns, shown = shutil.get_terminal_size().columns, self._shown
        # A terminal that has become narrower has wrapped the lines.
        rows, self._shown = sum(max(-(-width // columns), 1) for width in shown), []
        return "" if not rows else "\r\x1b[J" if rows == 1 else f"\r\x1b[{rows - 1}A\x1b[J"


def _shown(text: str) -> str:
    """Clean a text for display to a person."""
    return clean(_masked(text))


_Told = TypeVar("_Told")


def _masked(said: _Told, *, shapes: bool = False) -> _Told:
    return shared().masked(said, shapes=shapes)


def shown_error(told: _Told) -> _Told:
    """Mask secrets, and text that looks like one, in an error, an address or a command."""
    return _masked(told, shapes=True)


def _without_tabs(styled: Styled) -> Styled:
    """The text with spaces in the place of tabs."""
    if not styled.changes or "\t" not in styled.text:
        return Styled(styled.text.expandtabs(), styled.changes)
    pieces: list[Styled] = []
    at = column = 0
    for words in styled.text.split("\t"):
        end = at + len(words)
        column += len(words)
        pieces.append(styled.part(at, end))
        if end < len(styled.text):
            tab = styled.part(end, end + 1)
            pieces.append(Styled(" " * (8 - column % 8), tab.changes))
            column += 8 - column % 8
        at = end + 1
    return join(pieces)


def _rich_text(styled: Styled, style: str) -> Text:
    """The text for rich, in its own colours over ``style``."""
    from rich.text import Text

    if not styled.changes:
        return Text(styled.text, style)
    out = Text.from_ansi(styled.coded())
    out.stylize_before(style)
    return out


_STYLES: Final = re.compile(r"\x1b\[[0-9;]*m")


def _console(stream: TextIO, colour: bool | None, width: int | None) -> Console | None:
    """rich's console. None for a pipe, which needs none, and without rich (the extra ``terminal``)."""
    forced = colour or os.environ.get("FORCE_COLOR") or os.environ.get("TTY_COMPATIBLE") == "1"
    if colour is False or not (forced or stream.isatty()):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, force_terminal=colour, highlight=False, emoji=False, markup=False, width=width)


def cell_len(text: str) -> int:
    """The columns that a text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.category(c) in ("Mn", "Me", "Cf") else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def cut(text: str, columns: int) -> str:
    """The beginning of a text that fits these columns."""
    width = 0
    for place, character in enumerate(text):
        width += cell_len(character)
        if width > columns:
            return text[:place]
    return text


class _PieceCleaner:
    """Cleans a text that comes in pieces, and masks secrets, even those divided between two pieces."""

    def __init__(self) -> None:
        self._cleaner = Cleaner()
        self._pieces = Pieces()

    def feed(self, text: str) -> str:
        return _masked(self._pieces.feed(self._cleaner.feed(text)))

    def close(self) -> str:
        return _masked(self._pieces.feed(self._cleaner.close()) + self._pieces.end())


class Flow:
    """Streamed prose: words wrap at the terminal's width with a hanging indent; a pipe gets the text unchanged.
    White space is held back until a word follows it, so that none stays at the end of a line or of the text.
    """

    def __init__(self, screen: Screen, mark: str, *, style: str = "", mark_style: str = "") -> None:
        self._screen = screen
        self._style = style
        self._mark = mark
        self._mark_style = mark_style
        self._indent = len(mark) + 1
        self._cleaner = _PieceCleaner()
        self._space = ""
        self._word = ""
        self._column = 0
        self._mark_written = False
        self._waiting: list[str] = []
        self._written = 0.0

    def feed(self, text: str) -> None:
        self._add(self._cleaner.feed(text))

    def _add(self, text: str) -> None:
        out: list[str] = []
        for piece in re.findall(r"\s+|\S+", text):
            if piece.isspace():
                out.append(self._next_word())
                self._space += piece
            else:
                self._word += piece
                # On a terminal a word waits for its end: its width decides on which line it goes.
                if self._screen.width is None:
                    out.append(self._next_word())
        self._write("".join(out))

    def flush(self) -> None:
        """Show the incomplete word, because no text has come for a while."""
        self._write(self._next_word(), now=True)

    def close(self) -> None:
        self._add(self._cleaner.close())
        self.flush()
        if self._mark_written:
            self._screen.blank()
        self._mark_written = False
        self._space = ""

    def _write(self, text: str, *, now: bool = False) -> None:
        """Write text in batches, at most one every 0.02 s: many small pieces would be slow."""
        if text:
            self._waiting.append(text)
        if self._waiting and (now or time.monotonic() - self._written > _FRAME_SECONDS):
            self._screen.raw("".join(self._waiting), self._style)
            self._screen.flush()
            self._waiting.clear()
            self._written = time.monotonic()

    def _next_word(self) -> str:
        """The current word with the white space before it. The white space becomes a line break if the word does not fit."""
        word, self._word = self._word, ""
        if not word:
            return ""
        space, self._space = self._space, ""
        if not self._mark_written:
            self._mark_written = True
            self._screen.raw(f"{self._mark} ", self._mark_style)
            self._column = self._indent + cell_len(word)
            return word
        size = cell_len(word)
        if "\n" in space:
            newlines, _, indent = space.rpartition("\n")
            space = "\n" * (newlines.count("\n") + 1) + " " * self._indent + indent
            self._column = self._indent + cell_len(indent)
        elif space and self._screen.width is not None and self._column + len(space) + size > self._screen.width:
            space = "\n" + " " * self._indent
            self._column = self._indent
        else:
            self._column += len(space)
        self._column += size
        return space + word


class MarkdownFlow:
    """Streamed Markdown. A block (a paragraph, a list, a table, a piece of code) is printed when the next one begins. Until
    then `Screen.live` shows it as far as it has come.
    """

    def __init__(self, screen: Screen, mark: str, *, mark_style: str = "") -> None:
        self._screen = screen
        self._mark = mark
        self._mark_style = mark_style
        self._cleaner = _PieceCleaner()
        self._open = ""
        self._printed = False
        self._shown = 0.0

    def feed(self, text: str) -> None:
        text = self._cleaner.feed(text)
        self._open += text
        if "\n" in text:
            self._print_ended()
        if time.monotonic() - self._shown > _LIVE_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Show the incomplete block."""
        self._shown = time.monotonic()
        if self._screen.live is not None and self._open.strip():
            # Only the end fits on the screen.
            self._screen.live("\n".join(self._lines(self._open[-_LIVE_CHARACTERS:])))

    def close(self) -> None:
        self._open += self._cleaner.close()
        self._print(self._open)
        self._open = ""

    def _print_ended(self) -> None:
        from markdown_it import MarkdownIt

        tokens = MarkdownIt("commonmark").enable("table").parse(self._open)
        starts = [token.map[0] for token in tokens if token.level == 0 and token.nesting >= 0 and token.map]
        if len(starts) > 1:
            lines = self._open.split("\n")
            self._open = "\n".join(lines[starts[-1] :])
            self._print("\n".join(lines[: starts[-1]]))

    def _lines(self, text: str) -> list[str]:
        """The rendered lines, after an empty line if other blocks are above them."""
        mark, style = (" " * len(self._mark), "") if self._printed else (self._mark, self._mark_style)
        lines = self._screen.markdown(text, mark, style)
        while lines and not lines[-1].strip():
            lines.pop()
        return ["", *lines] if self._printed else lines

    def _print(self, text: str) -> None:
        if text.strip():
            self._screen.print_rendered(self._lines(text))
            self._printed = True


class Block:
    """Streamed output behind a bar, line by line, with the middle left out if it is long.
    The first `head` lines are shown as they come. Of the rest only the last `tail` lines are kept; `close()` shows them
    after a line that says how many were left out. `head=None` shows everything.
    """

    def __init__(self, screen: Screen, *, indent: int, head: int | None = 40, tail: int = 15, style: str = "") -> None:
        self._screen = screen
        self._indent = indent
        self._head = head
        self._tail = tail
        self._style = style
        self._cleaner = StyledCleaner()
        self._partial = Styled("")
        self._head_lines = 0
        self._tail_lines: list[Styled] = []
        self._left_out = 0
        self.empty = True

    def feed(self, text: str) -> None:
        self._feed(self._cleaner.feed(text))

    def _feed(self, styled: Styled) -> None:
        whole = join([self._partial, styled])
        at = 0
        for line in whole.text.split("\n"):
            end = at + len(line)
            self._partial = whole.part(at, end)
            if end < len(whole.text):
                self._add(self._partial)
                self._partial = Styled("")
            at = end + 1
        # A line without an end is shown in slices, so that memory use stays small.
        while len(self._partial.text) > 4000:
            cut = shared().whole(self._partial.text, 4000) or 4000
            self._add(self._partial.part(0, cut))
            self._partial = self._partial.part(cut, len(self._partial.text))

    def close(self) -> None:
        self._feed(self._cleaner.close())
        if self._partial.text:
            self._add(self._partial)
            self._partial = Styled("")
        if self._left_out:
            many = "line" if self._left_out == 1 else "lines"
            self._screen.line_with_bar(f"… {self._left_out:,} {many} left out …", "dim italic", indent=self._indent)
        for line in self._tail_lines:
            self._print(line)
        self._tail_lines = []
        self._left_out = 0

    def _add(self, line: Styled) -> None:
        self.empty = False
        if self._head is None or self._head_lines < self._head:
            self._head_lines += 1
            self._print(line)
            return
        self._tail_lines.append(line)
        if len(self._tail_lines) > self._tail:
            self._tail_lines.pop(0)
            self._left_out += 1

    def _print(self, line: Styled) -> None:
        self._screen.line_with_bar(line, self._style, indent=self._indent)
