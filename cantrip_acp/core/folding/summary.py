"""The summary that replaces folded turns: its mark, a digest by rule, and what a summarizing crystal is asked (LOOM-6, D-007).

The summary is marked, so that the entity does not take it for a verbatim record.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from cantrip_acp.types.records import GateRecord, Turn

_MARK = re.compile(r"\[Folded: turns (\d+)-(\d+)\]")
_DIGEST_CHARS = 6_000
_LINE_CHARS = 200
_LAST_LINES = 20


def mark(first: int, last: int) -> str:
    """The mark that tells an entity that a text is a summary."""
    return f"[Folded: turns {first}-{last}]"


def folded_through(text: str | None) -> int | None:
    """The number of the last turn that a fold message replaces; None if the text is not a fold message."""
    found = _MARK.match(text or "")
    return int(found[2]) if found else None


def explained(first: int, last: int, summary: str, variable: str | None) -> str:
    """The message that replaces turns ``first`` to ``last``."""
    where = f" They are whole in the variable `{variable}`." if variable else ""
    return (
        f"{mark(first, last)}\nA summary stands here for these turns; it is not a verbatim record.{where}\n\n"
        f"{summary.strip()}"
    )


class Digest:
    """A summary by rule of everything folded so far. Each fold adds to it, but its size stays limited."""

    def __init__(self) -> None:
        self.turns = 0
        self._gates: Counter[str] = Counter()
        self._errors: Counter[str] = Counter()
        self._intents: list[str] = []
        self._lines: list[str] = []

    def add(self, number: int, turn: Turn, intent: str | None) -> None:
        """Add turn ``number`` (from 1); ``intent`` is set for the first turn of a cast."""
        self.turns += 1
        if intent:
            self._intents.append(_line(intent))
        for record in turn.observation.results:
            self._gates[record.gate] += 1
            if record.is_error:
                self._errors[record.gate] += 1
        self._lines.append(f"{number}. {_summarize_turn(turn)}")
        del self._lines[: -_LAST_LINES * 2]

    def text(self) -> str:
        """The digest: intents, gates, and a line for each of the last turns that were folded."""
        parts = []
        if self._intents:
            earlier = len(self._intents) - 12
            latest = self._intents[-12:]
            head = f"Intents (the {earlier} before these are left out):" if earlier > 0 else "Intents:"
            parts.append("\n".join((head, *(f"- {i}" for i in latest))))
        if self._gates:
            calls = ", ".join(
                f"{gate} ×{n}" + (f" ({self._errors[gate]} failed)" if self._errors[gate] else "")
                for gate, n in self._gates.most_common(20)
            )
            parts.append(f"Gates called: {calls}.")
        lines = self._lines[-_LAST_LINES:]
        while lines and sum(map(len, lines)) > _DIGEST_CHARS:
            lines = lines[1:]
        if lines:
            left = self.turns - len(lines)
            head = f"What was done ({left} earlier turns are left out):" if left > 0 else "What was done:"
            parts.append("\n".join((head, *lines)))
        return "\n\n".join(parts)


def _summarize_turn(turn: Turn) -> str:
    """Describe a turn in one line: its text, its actions and their results."""
    said, observation = turn.utterance, turn.observation
    parts = []
    if said.content:
        parts.append(_line(said.content))
    if said.code:
        parts.append(f"ran: {_line(said.code)}")
    for record in observation.results[:4]:
        outcome = f"failed: {_line(str(record.result), 80)}" if record.is_error else "ok"
        outcome += _left_out(record)
        parts.append(f"{record.gate}({_line(str(record.args), 60)}) {outcome}")
    if len(observation.results) > 4:
        parts.append(f"and {len(observation.results) - 4} calls more")
    if observation.output is not None:
        output = observation.output
        if output.error:
            parts.append(f"error: {_line(output.error, 100)}")
        elif output.exit_code not in (None, 0):
            parts.append(f"exit status {output.exit_code}")
        elif output.stdout.strip():
            parts.append(f"output: {_line(output.stdout, 100)}")
    return "; ".join(parts) or "nothing"


def _left_out(record: GateRecord) -> str:
    """A note that the images of a result are not in the summary."""
    count = len(record.attachments or ())
    return f" [{count} image{'s' if count > 1 else ''} left out]" if count else ""


def _line(text: str, most: int = _LINE_CHARS) -> str:
    line = " ".join(text[: most * 8].split())
    return line if len(line) <= most else line[: most - 1] + "…"


REQUEST = (
    "Summarize the part of your work that is shown above, for yourself: it will be taken out of your context, and your "
    "summary will stand in its place. Keep what is needed to go on: the goal, decisions and their reasons, facts found "
    "(with exact names, paths and numbers), what was changed, what failed, and what is still to be done. Be brief. "
    "Answer with the summary alone."
)
"""The prompt for a summarizer."""


def transcript(turns: Iterable[tuple[int, Turn]], most: int) -> str:
    """Turns as plain text for a summarizer. Each is shortened so that all of them fit in ``most`` characters."""
    listed = list(turns)
    share = max(200, most // max(1, len(listed)))
    parts = []
    for number, turn in listed:
        said, observation = turn.utterance, turn.observation
        texts = [said.content or "", *(f"{c.gate}: {c.args}" for c in said.tool_calls)]
        texts += [f"-> {'error: ' if r.is_error else ''}{r.result}{_left_out(r)}" for r in observation.results]
        if observation.output is not None:
            output = observation.output
            texts += [f"-> {t}" for t in (output.stdout, output.stderr, output.error or "") if t]
        body = "\n".join(t for t in texts if t)
        if len(body) > share:
            body = f"{body[: share // 2]}\n[…]\n{body[-share // 2 :]}"
        parts.append(f"[turn {number}]\n{body}")
    return "\n\n".join(parts)
