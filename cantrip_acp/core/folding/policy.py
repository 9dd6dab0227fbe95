"""Folding policy: when earlier turns are folded, and which summary replaces them (§6.8, LOOM-5, LOOM-6, PROD-4,
D-007).

Folding changes only what the crystal sees; the turns stay in the loom. The summary is marked, so that the entity does
not take it for a verbatim record. It is made by rule unless a summarizer is named.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.types.checked_values import check_keys, check_mapping, check_number, check_whole, short_repr
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.messages import Message
from cantrip_acp.types.records import GateRecord, Turn

CHARS_PER_TOKEN = 3
"""Characters per token for estimates, used if no provider has counted. A safe value for prose and code."""

ATTACHMENT_TOKENS = 1_500
"""Estimated tokens of an image, a sound or a document, used if no provider has counted."""

KEEP_TURNS = 2
"""Turns that a fold by ``trigger_after_turns`` leaves, if ``keep_turns`` is not set."""

_KEEP_FRACTION = 0.3
"""The part of the window that the remaining turns may fill after a fold by tokens."""

_FULL_FRACTION = 0.9
"""The largest part of the window that is ever sent. What does not fit is cut and marked (compaction)."""

_MARK = re.compile(r"\[Folded: turns (\d+)-(\d+)\]")
_DIGEST_CHARS = 6_000
_LINE_CHARS = 200
_LAST_LINES = 20


@dataclass(frozen=True, slots=True)
class Folding:
    """The folding policy of a cantrip.

    Three triggers ask for a fold, whichever comes first (D-007): ``at_fraction`` of the crystal's window by the
    provider's own count, ``trigger_at_tokens``, and ``trigger_after_turns`` (before query n + 1).
    ``keep_turns`` is the number of turns that stay. The default is `KEEP_TURNS` for the trigger by turns, and for
    tokens as many as fill 30 % of the window. The last turn always stays, also with ``keep_turns: 0``, because no query
    has seen its results yet.
    ``summarizer`` is a crystal that writes the summary. Without it the summary is a digest by rule, which costs no
    query.
    """

    at_fraction: float = 0.8
    trigger_after_turns: int | None = None
    trigger_at_tokens: int | None = None
    keep_turns: int | None = None
    summarizer: Crystal | None = None

    def __post_init__(self) -> None:
        check_number(self.at_fraction, "folding.at_fraction", 0, 1, above=True)
        for name in ("trigger_after_turns", "trigger_at_tokens", "keep_turns"):
            value = getattr(self, name)
            if value is not None:
                check_whole(value, f"folding.{name}", 0 if name == "keep_turns" else 1)
        if self.summarizer is not None and not isinstance(self.summarizer, Crystal):
            raise DefinitionError(f"folding.summarizer must be a crystal, not {short_repr(self.summarizer)}")

    @classmethod
    def of(cls, value: Folding | Mapping[str, Any] | None) -> Folding:
        """Make a policy from a mapping. Raises `DefinitionError` for an unknown key."""
        if value is None:
            return cls()
        if isinstance(value, Folding):
            return value
        check_keys(check_mapping(value, "folding"), tuple(f.name for f in fields(cls)), "folding")
        return cls(**value)

    def limit(self, window: int | None) -> int | None:
        """The context size in tokens from which on turns are folded; None if no limit is known."""
        if window is None:
            return self.trigger_at_tokens
        limit = int(window * self.at_fraction)
        return limit if self.trigger_at_tokens is None else min(limit, self.trigger_at_tokens)

    def should_fold(self, turns: int, tokens: int, window: int | None) -> bool:
        """Whether a context with this many unfolded turns and tokens must be folded before the next query."""
        if self.trigger_after_turns is not None and turns >= self.trigger_after_turns:
            return True
        limit = self.limit(window)
        return limit is not None and tokens >= limit

    def turns_to_keep(self, sizes: Sequence[int], tokens: int, window: int | None) -> int | None:
        """How many of the last unfolded turns stay; None if no trigger asks for a fold.

        ``sizes`` are the unfolded turns' estimated tokens, in order; ``tokens`` is the size of the whole context.
        """
        turns = len(sizes)
        by_turns = self.trigger_after_turns is not None and turns >= self.trigger_after_turns
        limit = self.limit(window)
        by_tokens = limit is not None and tokens >= limit
        if turns < 2 or not (by_turns or by_tokens):
            return None
        choices = []
        if by_turns:
            choices.append(min(KEEP_TURNS if self.keep_turns is None else self.keep_turns, turns - 1))
        if by_tokens and limit is not None:
            room, fits = int((window or limit) * _KEEP_FRACTION), 0
            for size in reversed(sizes[1:]):
                room -= size
                if room < 0:
                    break
                fits += 1
            choices.append(fits if self.keep_turns is None else min(self.keep_turns, turns - 1))
        # The last turn stays, however large: the entity needs what it just learned to go on.
        return max(min(choices), 1)


def largest(window: int) -> int:
    """The size in tokens above which a context is cut before it is sent."""
    return int(window * _FULL_FRACTION)


def tokens_of(message: Message) -> int:
    """An estimate of a message's tokens, rather too high than too low."""
    chars = len(message.content or "") + len(message.thinking or "") + 16
    for call in message.tool_calls:
        chars += len(call.args) + len(call.gate) + 16
    # Scripts other than Latin need more tokens per character.
    if message.content and not message.content.isascii():
        chars += len(message.content.encode("utf-8", "replace")) - len(message.content)
    return chars // CHARS_PER_TOKEN + ATTACHMENT_TOKENS * len(message.attachments)


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
    """A turn in one line: what was said, what was done, what the result was."""
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
