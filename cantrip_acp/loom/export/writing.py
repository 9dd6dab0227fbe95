"""Writing an export: a row a line, to a stream (`outputs.output_file` opens one on a path)."""

from __future__ import annotations

from typing import Any, BinaryIO

import msgspec

from cantrip_acp.loom.export.contract import Format, Report
from cantrip_acp.loom.export.source import Source
from cantrip_acp.text.redaction import ShapeMask, shared

_encoder = msgspec.json.Encoder()


_TOKENS = frozenset({"token_ids", "prompt_token_ids", "logprobs", "tokens"})
"""Keys of rows that hold a text once more as tokens."""


def write(format_: Format, source: Source, out: BinaryIO, *, raw: bool = False) -> Report:
    """Write the rows as they are made; what became of it. Raises what the stream raises, and `LoomError`.

    Secrets that this process knows are masked in any case. What has the shape of a secret is masked too, unless ``raw``
    is true. Tokens cannot be masked: a row (of ``art``, a trajectory) that holds tokens and such a text is left out.
    """
    known, shapes = shared(), ShapeMask()
    for row in format_.rows(source):
        shown: Any = known.data(row)
        if not raw:
            shown = _without_shapes(shown, shapes, source)
        if shown is None:
            continue
        out.write(_encoder.encode(shown) + b"\n")
        source.report.rows += 1
    if shapes.found:
        source.report.notes["a text that has the shape of a secret is masked (--raw keeps it)"] += shapes.found
    for cantrip_id in sorted(source.seen.rebuilt):
        source.note(
            f"the loom does not say what {cantrip_id} was shown of its circle; it is told in this version's words"
        )
    for kind, many in source.loom.later.items():
        source.report.notes[f"records of kind {kind!r} of a later version are left out"] += many
    return source.report


def _without_shapes(row: Any, shapes: ShapeMask, source: Source) -> Any:
    """The row with secret-shaped texts masked; None where nothing of it can be written."""
    several = row.get("trajectories")
    if not isinstance(several, list):
        return _whole_or_none(row, shapes, source)
    kept = [each for one in several if (each := _whole_or_none(one, shapes, source)) is not None]
    return shapes.data({**row, "trajectories": kept}) if kept or not several else None


def _whole_or_none(part: Any, shapes: ShapeMask, source: Source) -> Any:
    before = shapes.found
    masked = shapes.data(part)
    if shapes.found > before and _holds_tokens(part):
        source.report.left_out["tokens of a text that has the shape of a secret (--raw keeps them)"] += 1
        return None
    return masked


def _holds_tokens(value: Any) -> bool:
    if isinstance(value, dict):
        return any((bool(each) and key in _TOKENS) or _holds_tokens(each) for key, each in value.items())
    return isinstance(value, list | tuple) and any(map(_holds_tokens, value))
