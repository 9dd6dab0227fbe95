"""The loom's times (ISO 8601) as numbers."""

from __future__ import annotations

from datetime import datetime


def seconds(timestamp: str) -> float:
    """Seconds since 1970; 0 for what is no time."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return 0.0


def nanoseconds(timestamp: str) -> int:
    """Nanoseconds since 1970, exact to the microsecond; 0 for what is no time."""
    try:
        when = datetime.fromisoformat(timestamp)
    except ValueError:
        return 0
    return int(when.timestamp()) * 1_000_000_000 + when.microsecond * 1000
