"""What can be wrong with an agent, as its client says it; each error shows how the agent's stderr ended."""

from __future__ import annotations

from collections.abc import Sequence

from cantrip_acp.core.errors import CantripError


class AgentError(CantripError):
    """An agent that failed. `stderr` holds the last lines that it wrote there; the text shows them too."""

    def __init__(self, message: str, stderr: Sequence[str] = ()) -> None:
        self.stderr = tuple(stderr)
        tail = "".join(f"\n  {line}" for line in self.stderr[-12:])
        super().__init__(f"{message}\nIts stderr ended with:{tail}" if tail.strip() else message)


class AgentDied(AgentError):
    """The agent ended, or closed its stdout, while an answer was due."""


class AgentTimeout(AgentError):
    """The agent did not answer in time."""


class AgentRefused(AgentError):
    """The agent answered with an error, or with what the protocol does not allow. `code` is JSON-RPC's."""

    def __init__(self, message: str, stderr: Sequence[str] = (), *, code: int, data: object = None) -> None:
        self.code = code
        self.data = data
        super().__init__(message, stderr)
