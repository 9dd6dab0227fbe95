"""The logs of the package: no secret is in them, whatever handler a program adds."""

from __future__ import annotations

import logging
from typing import Final

from cantrip_acp.text.redaction import shared


class _Masking(logging.Filter):
    """Masks known secrets, and what looks like one, in the message and in the traceback of a record."""

    def filter(self, record: logging.LogRecord) -> bool:
        clean, said = shared().diagnostic, record.getMessage()
        if (shown := clean(said)) != said:
            record.msg, record.args = shown, None
        if record.exc_info:
            record.exc_text = clean(record.exc_text or logging.Formatter().formatException(record.exc_info))
        return True


MASKING: Final = _Masking()
"""The filter for a handler that also writes what other packages log."""


def logger(name: str) -> logging.Logger:
    """The logger of a module of this package."""
    made = logging.getLogger(name)
    made.addFilter(MASKING)
    return made
