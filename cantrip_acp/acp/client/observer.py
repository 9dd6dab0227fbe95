"""What a client is told: of an agent's doings as they happen, of sessions, of how a prompt ended."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Watcher(Protocol):
    """Who is told what the agent does. Each method is awaited before the next one is called."""

    async def updated(self, session_id: str, update: Mapping[str, Any]) -> None:
        """A `session/update` came."""

    async def asked(self, session_id: str, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:
        """A `session/request_permission` came: the `optionId` of the answer, or None for no answer ("cancelled").

        Cancelled when the turn is cancelled or the agent takes the question back.
        """

    async def lent(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        """A file was read (`action` "read") or written ("write") for the agent, or refused for a reason.

        With `missing` the reason is that there is no such file, as whoever is about to make one finds.
        """

    async def heard(self, source: str, line: str) -> None:
        """The agent wrote a line to stderr, or one on stdout that is no message (`source` "stderr" or "stdout")."""


@dataclass(frozen=True)
class Session:
    """What `session/new`, `session/load` or `session/resume` answered."""

    id: str
    folder: Path
    modes: Mapping[str, Any] = field(default_factory=dict)
    config_options: Sequence[Any] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Listed:
    """A session of `session/list`. Whatever the agent does not say is empty."""

    id: str
    folder: str = ""
    title: str = ""
    updated_at: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a prompt ended: ACP's stop reason, the usage where the agent says it, and `_meta`."""

    stop_reason: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
