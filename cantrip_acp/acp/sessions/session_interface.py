"""What commands, options and services of the client use of a session: the part of `acp.sessions.session.Session` below them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    import anyio

    from cantrip_acp.acp import protocol as acp
    from cantrip_acp.acp.permissions.interceptor import Permissions
    from cantrip_acp.acp.render.event_translator import Translator
    from cantrip_acp.acp.sessions.factory import OpenedSession
    from cantrip_acp.acp.sessions.prompt.prompt_queue import PromptQueue
    from cantrip_acp.acp.sessions.session_store import SessionMetadata
    from cantrip_acp.acp.wire.connection import Connection
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.contract import GateSource
    from cantrip_acp.recipes.recipe import Recipe
    from cantrip_acp.types.context_block import ContextBlock


T = TypeVar("T")


class Notes:
    """What waits to be told to the entity or to the user of a session."""

    def __init__(self) -> None:
        self.entity: list[str] = []
        """For the entity, before its next intent."""
        self.context: list[ContextBlock] = []
        """The context that the entity reads before its next intent: from the request that opened the session, or from a
        command of the user."""
        self.user: list[str] = []
        """For the user, after the reply that opens the session."""


class RunsPrompts(Protocol):
    """What runs in a session (`acp.sessions.prompt.prompts.Prompts`)."""

    running: bool
    cancelled: bool

    async def until_cancelled(self, work: Callable[[], Awaitable[T]]) -> T | None: ...


class OpenSession(Protocol):
    """A session, as commands, options and client services use it."""

    id: str
    client: acp.ClientAbilities
    connection: Connection
    sources: Sequence[GateSource]
    opened: OpenedSession
    metadata: SessionMetadata
    entity: Entity
    notes: Notes
    permissions: Permissions
    queue: PromptQueue
    translator: Translator
    loom_read: anyio.Lock
    mode_chosen: bool
    closing: bool

    @property
    def prompts(self) -> RunsPrompts: ...

    def send_now(self, update: acp.Update) -> None: ...

    async def send(self, updates: Sequence[acp.Update]) -> None: ...

    def save(self) -> None: ...

    def use_entity(self, entity: Entity, recipe: Recipe | None) -> None: ...
