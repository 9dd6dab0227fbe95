"""Output for the children of a cast: one line for each intent, each action, and each result.
Children run at the same time. So each line is whole, starts with the child's number, and is indented by its depth.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from cantrip_acp.core import events
from cantrip_acp.gates.contract import as_text
from cantrip_acp.text.sanitize import clean_line

if TYPE_CHECKING:
    from cantrip_acp.cli.render.terminal import Screen
    from cantrip_acp.cli.render.transcript import Transcript


# --- Children in an ACP session: reads what they did from the content of the tool call that started them.
#
# Our agent shows its children in that content: a paragraph ``**Child 2** (running): intent`` for each, and below it what
# the child said (quoted) and did (a list). Only the end of these is kept. Each change replaces the whole content, but
# a terminal cannot change what it has printed. So each item is printed once, when it can no longer grow.

_HEAD = re.compile(r"\*\*Child(?: (?P<number>\d+(?:\.\d+)*))?\*\* \((?P<state>[^)\n]{1,80})\): (?P<intent>[^\n]*)\Z")
_EARLIER = re.compile(r"Earlier children: [^\n]*\Z")
_FENCE = re.compile(r"(`{3,})")


@dataclass(frozen=True, slots=True)
class ChildLine:
    """One line about a child. ``number`` is dotted, and empty for an only child; ``depth`` counts from 1."""

    number: str
    kind: Literal["asked", "said", "did", "failed", "done", "stopped"]
    words: str

    @property
    def depth(self) -> int:
        return self.number.count(".") + 1


@dataclass(slots=True)
class _Known:
    told: list[str] = field(default_factory=list)
    over: bool = False


class ChildLines:
    """The children of one tool call."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def take(self, text: str) -> list[ChildLine] | None:
        """Return what is new in this view of the children. None if the text is not such a view."""
        lines = text.split("\n")
        at = next((n for n, line in enumerate(lines) if line and not _EARLIER.match(line)), 0)
        if not _HEAD.match(lines[at]):
            return None
        return [line for section in _sections(lines[at:]) for line in self._section(section)]

    def _section(self, lines: Sequence[str]) -> Iterator[ChildLine]:
        head = _HEAD.match(lines[0])
        assert head is not None
        number, state = head["number"] or "", head["state"]
        known = self._known.get(number)
        if known is None:
            known = self._known[number] = _Known()
            yield ChildLine(number, "asked", head["intent"])
        running = state == "running"
        paragraphs = list(_paragraphs(lines[1:]))
        if running and paragraphs and not paragraphs[-1].startswith("- "):
            paragraphs.pop()  # a message or an output that may still grow
        told = [each for each in paragraphs if each.startswith(("- ", ">"))]
        for each in told[_overlap(known.told, told) :]:
            yield _line(number, each)
        known.told = told or known.told
        if not running and not known.over:
            yield ChildLine(number, "done" if state == "done" else "stopped", state)
        # A child with a second intent keeps its number.
        known.over = not running


def _sections(lines: Sequence[str]) -> Iterator[list[str]]:
    section: list[str] = []
    for inside, line in _fenced(lines):
        if not inside and section and _HEAD.match(line):
            yield section
            section = []
        section.append(line)
    yield section


def _paragraphs(lines: Sequence[str]) -> Iterator[str]:
    held: list[str] = []
    for inside, line in _fenced(lines):
        if line or inside:
            held.append(line)
        elif held:
            yield "\n".join(held)
            held = []
    if held:
        yield "\n".join(held)


def _fenced(lines: Sequence[str]) -> Iterator[tuple[bool, str]]:
    """Each line, with whether it is inside a code block."""
    fence = ""
    for line in lines:
        opening = _FENCE.match(line)
        if fence:
            yield True, line
            if line == fence:
                fence = ""
        else:
            if opening:
                fence = opening[1]
            yield bool(opening), line


def _overlap(before: Sequence[str], now: Sequence[str]) -> int:
    """How many entries at the start of ``now`` were already at the end of ``before``: the view may have dropped old ones."""
    return next((n for n in range(min(len(before), len(now)), 0, -1) if before[-n:] == list(now[:n])), 0)


def _line(number: str, paragraph: str) -> ChildLine:
    if paragraph.startswith(">"):
        return ChildLine(number, "said", "\n".join(line[1:].removeprefix(" ") for line in paragraph.split("\n")))
    words = paragraph[2:]
    code = re.match(r"(`+) ?(.*?) ?\1", words, re.DOTALL)
    failed = code is not None and words[code.end() :].startswith(" failed: ")
    if code is not None:
        words = code[2] + words[code.end() :]
    return ChildLine(number, "failed" if failed else "did", words)


_LONGEST = 160


class ChildView:
    """Prints the children of one cast. They are numbered as they start: ``2``, and ``2.1`` for the first child of the second."""

    def __init__(self, screen: Screen, transcript: Transcript) -> None:
        self._screen = screen
        self._transcript = transcript
        self._numbers: dict[str, str] = {}
        self._born: dict[str, int] = {}

    def event(self, event: events.ChildEvent) -> None:
        """Print what happened to a child; most events are not shown."""
        marks, inner = self._screen.marks, event.inner
        if isinstance(inner, events.CastStarted):
            self._line(event, marks.prompt, "magenta", inner.intent)
        elif isinstance(inner, events.GateCalled) and inner.gate != "done":
            self._line(event, marks.call, "dim", inner.title or inner.gate)
        elif isinstance(inner, events.GateFinished) and inner.is_error:
            self._line(event, marks.failed, "red", f"{inner.gate}: {as_text(inner.result)}")
        elif isinstance(inner, events.CommandStarted):
            self._line(event, marks.call, "dim", f"{inner.tool}: {inner.command}")
        elif isinstance(inner, events.CommandFinished) and inner.error:
            self._line(event, marks.failed, "red", inner.error)
        elif isinstance(inner, events.RetryScheduled):
            self._line(event, marks.waiting, "yellow", f"the query failed: {inner.error}; asking again {inner.when}")
        elif isinstance(inner, events.CastEnded):
            turns = f"{inner.turns} turn{'' if inner.turns == 1 else 's'}"
            if inner.terminated:
                self._line(event, marks.done, "green", f"{as_text(inner.result)} {marks.dot} {turns}")
            else:
                said = f": {inner.error}" if inner.error else ""
                self._line(event, marks.stop, "yellow", f"{inner.reason}{said} {marks.dot} {turns}")

    def _line(self, event: events.ChildEvent, mark: str, style: str, words: str) -> None:
        self._transcript.settle()
        number = self._number(event.path)
        line = clean_line(words, _LONGEST)
        self._screen.line((f"{number} ", "dim"), (f"{mark} ", style), line, indent=2 + 2 * len(event.path))

    def _number(self, path: tuple[str, ...]) -> str:
        found = self._numbers.get(path[-1])
        if found is None:
            above = path[-2] if len(path) > 1 else ""
            self._born[above] = self._born.get(above, 0) + 1
            start = f"{self._number(path[:-1])}." if above else ""
            found = self._numbers[path[-1]] = f"{start}{self._born[above]}"
        return found
