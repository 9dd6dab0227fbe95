"""Joins the turns of one utterance: a delegation ends a turn, and the rest of the utterance is the next turn (§5.5,
LOOM-8).

The loom keeps the parts, each written when it happened. The crystal said one thing, and sees one observation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from cantrip_acp.types.records import Observation, Output, Turn
from cantrip_acp.types.styled import join


def join_parts(turns: Iterable[Turn]) -> list[Turn]:
    """The turns of one thread in order, with the parts of each utterance joined into one turn."""
    out: list[Turn] = []
    parts: list[Turn] = []
    for turn in turns:
        if turn.continues is not None and parts and parts[0].id == turn.continues:
            parts.append(turn)
            continue
        if parts:
            out.append(joined(parts))
        if turn.role == "crystal":
            parts = [turn]
        else:
            parts = []
            out.append(turn)
    if parts:
        out.append(joined(parts))
    return out


def joined(parts: Sequence[Turn]) -> Turn:
    """Join the parts of one utterance into one turn. Its id is that of the last part, from which the entity continued.
    ``continues`` names the first part if there are several."""
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return first
    outputs: list[Output] = []
    for part in parts:
        for output in _outputs(part):
            if outputs and outputs[-1].unfinished is True:
                outputs[-1] = _glued(outputs[-1], output)
            else:
                outputs.append(output)
    observation = Observation(
        tuple(record for part in parts for record in part.observation.results),
        together(outputs),
        tuple(outputs) if len(outputs) > 1 else msgspec.UNSET,
    )
    metadata = msgspec.structs.replace(
        first.metadata,
        duration_ms=sum(part.metadata.duration_ms for part in parts),
        timestamp=last.metadata.timestamp,
    )
    return msgspec.structs.replace(
        first,
        id=last.id,
        continues=first.id,
        sequence=last.sequence,
        observation=observation,
        gate_calls=tuple(name for part in parts for name in part.gate_calls),
        metadata=metadata,
        reward=last.reward if last.reward is not None else first.reward,
        terminated=last.terminated,
        truncated=last.truncated,
        reason=last.reason,
    )


def together(outputs: Sequence[Output]) -> Output | None:
    """Join the outputs of several programs into one; None if there is none."""
    if len(outputs) < 2:
        return outputs[0] if outputs else None
    last = outputs[-1]
    return Output.of(
        join(o.streams[0] for o in outputs),
        join(o.streams[1] for o in outputs),
        exit_code=last.exit_code,
        value=last.value,
        error=next((o.error for o in reversed(outputs) if o.error), None),
        truncated=any(o.truncated for o in outputs),
        unfinished=last.unfinished,
        timed_out=True if any(o.timed_out is True for o in outputs) else msgspec.UNSET,
    )


def _outputs(turn: Turn) -> Sequence[Output]:
    observation = turn.observation
    if isinstance(observation.outputs, tuple):
        return observation.outputs
    return () if observation.output is None else (observation.output,)


def _glued(before: Output, after: Output) -> Output:
    """Join the output of one program before and after a delegation."""
    stdout, stderr = (join(both) for both in zip(before.streams, after.streams, strict=True))
    return msgspec.structs.replace(
        after,
        stdout=stdout.text,
        stderr=stderr.text,
        stdout_styles=stdout.changes or msgspec.UNSET,
        stderr_styles=stderr.changes or msgspec.UNSET,
        truncated=before.truncated or after.truncated,
    )
