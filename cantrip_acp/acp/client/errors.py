"""Errors of an ACP agent, as its client reports them. Each error shows the last lines of the agent's stderr."""

from __future__ import annotations

from collections.abc import Sequence

from cantrip_acp.core.errors import CantripError


class AgentError(CantripError):
    """An agent that failed. `stderr` holds the last lines of its stderr; the text shows them too."""

    def __init__(self, message: str, stderr: Sequence[str] = ()) -> None:
        self.stderr = tuple(stderr)
        tail = "".join(f"\n  {line}" for line in self.stderr[-12:])
        super().__init__(f"{message}\nIts stderr ended with:{tail}" if tail.strip() else message)


class AgentDied(AgentError):
    """The agent ended, or closed its stdout, before it answered."""


class AgentTimeout(AgentError):
    """The agent did not answer in time."""


class AgentRefused(AgentError):
    """The agent answered with an error, or with something that the protocol does not allow. `code` is the JSON-RPC code."""

    def __init__(self, message: str, stderr: Sequence[str] = (), *, code: int, data: object = None) -> None:
        self.code = code
        self.data = data
        super().__init__(message, stderr)
