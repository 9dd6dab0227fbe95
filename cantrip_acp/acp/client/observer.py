"""Client observer: the interface that gets an agent's updates and questions, and the results of requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


class Watcher(Protocol):
    """Gets the agent's actions. Each method is awaited before the next one is called."""

    async def updated(self, session_id: str, update: Mapping[str, Any]) -> None:
        """A `session/update` came."""

    async def asked(self, session_id: str, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> str | None:
        """A `session/request_permission` came. Returns the `optionId` of the answer, or None for no answer ("cancelled").

        It is cancelled when the turn is cancelled or the agent withdraws the question.
        """

    async def lent(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        """The agent read (`action` "read") or wrote ("write") a file through the client, or was refused with a reason.

        With `missing` the reason is that the file does not exist, which is normal before the file is created.
        """

    async def heard(self, source: str, line: str) -> None:
        """The agent wrote a line to stderr, or a line on stdout that is not a message (`source` "stderr" or "stdout")."""


@dataclass(frozen=True)
class Session:
    """The answer to `session/new`, `session/load` or `session/resume`."""

    id: str
    folder: Path
    modes: Mapping[str, Any] = field(default_factory=dict)
    config_options: Sequence[Any] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Listed:
    """A session of `session/list`. Fields that the agent does not send are empty."""

    id: str
    folder: str = ""
    title: str = ""
    updated_at: str = ""


@dataclass(frozen=True)
class Outcome:
    """The end of a prompt: ACP's stop reason, the usage where the agent sends it, and `_meta`."""

    stop_reason: str
    usage: Mapping[str, Any] = field(default_factory=dict)
    meta: Mapping[str, Any] = field(default_factory=dict)
