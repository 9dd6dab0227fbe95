"""Writing an export: a row a line, to a stream (`outputs.output_file` opens one on a path)."""

from __future__ import annotations

from typing import BinaryIO

import msgspec

from cantrip_acp.loom.export.contract import Format, Report
from cantrip_acp.loom.export.source import Source
from cantrip_acp.redaction import shared

_encoder = msgspec.json.Encoder()


def write(format_: Format, source: Source, out: BinaryIO) -> Report:
    """Write the rows as they are made; what became of it. Raises what the stream raises, and `LoomError`.

    Secrets that this process knows are masked once more: an imported loom, or one of another machine, may hold them.
    """
    redactor = shared()
    for row in format_.rows(source):
        out.write(_encoder.encode(redactor.data(row)) + b"\n")
        source.report.rows += 1
    for cantrip_id in sorted(source.seen.rebuilt):
        source.note(
            f"the loom does not say what {cantrip_id} was shown of its circle; it is told in this version's words"
        )
    return source.report
