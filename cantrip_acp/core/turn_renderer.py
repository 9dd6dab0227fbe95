"""The messages of one turn: what the crystal said, and what it reads of its calls."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from cantrip_acp.crystals.contract import CUTS
from cantrip_acp.crystals.refused_media import without_media
from cantrip_acp.gates.contract import render_record
from cantrip_acp.gates.registry import ALIASES, DELEGATION
from cantrip_acp.types.messages import Attachment, Message
from cantrip_acp.types.records import GateRecord, Output, Turn

if TYPE_CHECKING:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.mediums.contract import Medium

NUDGE = "No gate was called. Go on, and call done with the answer when the task is finished."
"""The message after prose if only done may end the cast (LOOP-6). The crystal must not speak twice in a row
(LOOP-1).
"""

CUT = "Your answer was cut off, because it became too long. Go on from there, and call done when the task is finished."
"""The message after prose that the provider cut off, if only done may end the cast."""

SKIPPED = "[not run: done ended the cast before this call]"
INTERRUPTED = "[not run: the cast was stopped before this call]"
UNKNOWN = "[a child was spawned here; what came of it, and what followed, is not known]"
MOST_IMAGES = 8
"""Maximum number of images that the crystal sees from the gate calls of one program; it sees the first ones."""

MORE_IMAGES = "[{count} more images are not shown; one program shows {most} at most]"
EPHEMERAL_BEGINS = "[ephemeral:"
EPHEMERAL = EPHEMERAL_BEGINS + "{gate}]"
"""The placeholder that the crystal sees for an ephemeral gate's result. The loom has the whole result (PROD-5, D-010)."""


Marks = Mapping[str, bool | str]
"""The ephemeral gates, each with its value of ``ephemeral``."""


class Recorded(Protocol):
    """What the loom says of the circles in which turns were written (`history.recorded_circle.RecordedCircles`)."""

    def medium_of(self, cantrip_id: str) -> Medium | None: ...

    def ephemeral_of(self, cantrip_id: str) -> Marks | None: ...


class TurnRenderer:
    """Makes the messages of turns, from the records and the circle alone, so that a loom can rebuild what the crystal saw."""

    def __init__(self, circle: Circle, recorded: Recorded | None) -> None:
        """``recorded`` tells the medium and the ephemeral gates with which turns were written; None means that those of
        the circle were used.
        """
        self.circle = circle
        self._recorded = recorded
        self._ephemeral: Marks = {name: gate.ephemeral for name, gate in circle.gates.items() if gate.ephemeral}
        self._refused: frozenset[str] = frozenset()
        """Media that a provider refused (`crystals.refused_media`). Results that hold them again are shown without them."""

    def refuse(self, media: Collection[str]) -> None:
        """Leave out media that a provider refused, from now on."""
        self._refused = self._refused.union(media)

    def shows_ephemeral(self, turn: Turn) -> bool:
        """Whether a turn has a result that only one query may see (``ephemeral: after_use``)."""
        marks = self._marks(turn)
        return bool(marks) and any(
            marks.get(record.gate) == "after_use" and not record.is_error for record in turn.observation.results
        )

    def without_ephemeral(self, turn: Turn) -> Turn:
        """The turn with placeholders for the results of ephemeral gates. A summarizer must not see them either."""
        results = turn.observation.results
        marks = self._marks(turn)
        if not any(_is_ephemeral(marks, record) for record in results):
            return turn
        masked = tuple(
            msgspec.structs.replace(r, result=EPHEMERAL.format(gate=r.gate), attachments=msgspec.UNSET)
            if _is_ephemeral(marks, r)
            else r
            for r in results
        )
        return msgspec.structs.replace(turn, observation=msgspec.structs.replace(turn.observation, results=masked))

    def _marks(self, turn: Turn) -> Marks:
        """The ephemeral gates of a turn: those with which it was written, whatever the present circle says."""
        found = self._recorded.ephemeral_of(turn.cantrip_id) if self._recorded is not None else None
        return self._ephemeral if found is None else found

    def render(self, turn: Turn, *, fresh: bool = False) -> list[Message]:
        """The messages of a turn.

        ``fresh``: as the next query sees it, with the results of gates that are ``ephemeral: after_use``.
        """
        said = turn.utterance
        provider = said.provider if said.provider is not msgspec.UNSET else None
        out = [
            Message(
                "assistant",
                said.content,
                said.tool_calls,
                thinking=said.thinking,
                provider=provider,
                text_calls=said.text_calls is True,
            )
        ]
        if not said.tool_calls:
            if not turn.terminated and not turn.truncated:
                problem = turn.observation.output.error if turn.observation.output is not None else None
                cut = turn.metadata.stop_reason in CUTS
                out.append(Message("user", problem or (CUT if cut else NUDGE), kind="nudge"))
            return out
        # An earlier recipe, or a forked child, may have worked in another medium.
        written_in = self._recorded.medium_of(turn.cantrip_id) if self._recorded is not None else None
        marks = self._marks(turn)
        medium = written_in or self.circle.medium
        observation = turn.observation
        outputs: Sequence[Output]
        if isinstance(observation.outputs, tuple):
            outputs = observation.outputs
        else:
            outputs = (observation.output,) if observation.output is not None else ()
        commands = iter(outputs)
        answers = {r.tool_call_id: r for r in observation.results if r.tool_call_id is not None}
        for place, call in enumerate(said.tool_calls):
            images: tuple[Attachment, ...] = ()
            if call.gate == medium.tool:
                output = next(commands, None)
                text = medium.observe(output) if output is not None else None
                if output is not None and output.unfinished is True:
                    # Nothing is known of what followed: the process died there, or a fork continued from that turn.
                    text = f"{text}\n{UNKNOWN}"
                failed = output is not None and output.failed
                made = (r for r in observation.results if r.tool_call_id is None and r.via in (place, msgspec.UNSET))
                images = (
                    tuple(image for r in made for image in _images(marks, r, fresh=fresh)) if text is not None else ()
                )
                if len(images) > MOST_IMAGES:
                    text = f"{text}\n{MORE_IMAGES.format(count=len(images) - MOST_IMAGES, most=MOST_IMAGES)}"
                    images = images[:MOST_IMAGES]
            else:
                record = answers.get(call.id)
                text = _observed(marks, record, fresh=fresh) if record is not None else None
                failed = record is not None and record.is_error
                images = _images(marks, record, fresh=fresh) if record is not None else ()
            if text is None and not turn.terminated and not turn.truncated and _delegates(call.gate):
                text = UNKNOWN
            if text is None:
                text = SKIPPED if turn.terminated else INTERRUPTED
            said_back = Message("tool", text, tool_call_id=call.id, name=call.gate, is_error=failed, attachments=images)
            out.append(without_media(said_back, self._refused))
        return out


def _is_ephemeral(marks: Marks, record: GateRecord) -> bool:
    return record.gate in marks and not record.is_error


def _observed(marks: Marks, record: GateRecord, *, fresh: bool) -> str:
    return EPHEMERAL.format(gate=record.gate) if _expired(marks, record, fresh=fresh) else render_record(record)


def _images(marks: Marks, record: GateRecord, *, fresh: bool) -> tuple[Attachment, ...]:
    return () if _expired(marks, record, fresh=fresh) else record.attachments or ()


def _expired(marks: Marks, record: GateRecord, *, fresh: bool) -> bool:
    return _is_ephemeral(marks, record) and not (fresh and marks[record.gate] == "after_use")


def _delegates(gate: str) -> bool:
    return ALIASES.get(gate, gate) in DELEGATION
