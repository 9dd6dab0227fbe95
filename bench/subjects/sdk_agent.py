"""Updates as fast as the official Python SDK's agent sends them.

`python -m bench.subjects.sdk_agent COUNT` is an ACP agent that answers each prompt with COUNT updates.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import acp
from acp.schema import InitializeResponse, NewSessionResponse, PromptResponse


class Talker:
    """As little of an agent as the SDK takes."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._client: Any = None

    def on_connect(self, conn: Any) -> None:
        self._client = conn

    async def initialize(self, protocol_version: int, **rest: Any) -> InitializeResponse:
        return InitializeResponse(protocol_version=protocol_version)

    async def new_session(self, **rest: Any) -> NewSessionResponse:
        return NewSessionResponse(session_id="sess_0123456789")

    async def prompt(self, **rest: Any) -> PromptResponse:
        for number in range(self._count):
            await self._client.session_update("sess_0123456789", acp.update_agent_message_text(f"word {number} "))
        return PromptResponse(stop_reason="end_turn")


if __name__ == "__main__":
    agent: Any = Talker(int(sys.argv[1]))
    asyncio.run(acp.run_agent(agent))
