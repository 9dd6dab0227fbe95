"""The conversation medium: the entity speaks and calls gates as tools, nothing else (§4.5)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.mediums.contract import SessionBase
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.gates.ports import TurnContext
    from cantrip_acp.types.messages import ToolCall, ToolDefinition
    from cantrip_acp.types.records import Output


class ConversationMedium(MediumBase):
    """Gates are the crystal's tools. Their definitions are the whole capability presentation (CIRCLE-11)."""

    name = "conversation"
    tool: str | None = None

    def tools(self, circle: CircleView) -> tuple[ToolDefinition, ...]:
        return circle.definitions

    def presentation(self, circle: CircleView) -> str | None:
        return None

    async def open(self, circle: CircleView, entity_id: str) -> ConversationSession:
        return ConversationSession()

    def code(self, call: ToolCall) -> str | None:
        return None

    def observe(self, output: Output) -> str:
        return output.stdout


class ConversationSession(SessionBase):
    """A session without state: all state is in the messages and behind the gates."""

    async def run(self, call: ToolCall, turn: TurnContext) -> Output:
        raise DefinitionError(f"the conversation medium has no tool of its own, yet {call.gate!r} was sent to it")

    async def close(self) -> None:
        return None
