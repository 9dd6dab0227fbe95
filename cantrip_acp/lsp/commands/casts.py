"""Casts that the editor started. Each runs in its own thread with its own event loop, so that no request waits for it.
Imports, the medium and loom writes run in that thread; the server receives progress in its own loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import anyio

    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.loom.loom import Loom

TELL_S = 0.05
"""Seconds from an event until it is reported, together with all events that came meanwhile."""


@dataclass(frozen=True)
class CastOutcome:
    """How a cast ended, for the client. ``record`` is plain data; ``loom`` is the loom's file, if it has one."""

    record: dict[str, Any] = field(repr=False)
    loom: str | None

    @property
    def well(self) -> bool:
        return bool(self.record["terminated"])


class RecipeCast:
    """One cast of one recipe. `start` it, then wait for `ended`; `cancel` may be called at any time."""

    def __init__(self, cantrip: Cantrip, loom: Loom, intent: str, say: Callable[[str], None]) -> None:
        from cantrip_acp.gates.web.named_hosts import NamedHosts

        self._hosts = NamedHosts()
        self._hosts.add_from_text(intent)
        self._cantrip = cantrip.for_session((), self._hosts)
        self._loom, self._intent, self._say = loom, intent, say
        self._server = asyncio.get_running_loop()
        self.ended: asyncio.Future[CastOutcome] = self._server.create_future()
        self._inside: asyncio.AbstractEventLoop | None = None
        self._entity: Entity | None = None
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self.thread = threading.Thread(target=self._live, name="cast", daemon=True)

    def start(self) -> None:
        """Start the cast; call it once."""
        self.thread.start()

    def cancel(self) -> None:
        """Cancel the cast: the running turn is recorded, and what its medium runs is killed. A second call
        does not wait."""
        again, self._cancelled = self._cancelled, True
        if self._inside is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
                self._inside.call_soon_threadsafe(self._stop, again)

    def _stop(self, hard: bool) -> None:
        stopped = self._entity.cancel() if self._entity is not None else False
        if (hard or not stopped) and self._scope is not None:
            self._scope.cancel()

    def _live(self) -> None:
        try:
            ended = asyncio.run(self._drive())
        except BaseException as error:  # noqa: BLE001 - given to the waiting task
            self._on_loop(
                self.ended.set_exception, error if isinstance(error, Exception) else RuntimeError(repr(error))
            )
        else:
            self._on_loop(self.ended.set_result, ended)

    def _on_loop(self, take: Callable[[Any], None], what: Any) -> None:
        def on_loop() -> None:
            if not self.ended.done():
                take(what)

        with contextlib.suppress(RuntimeError):  # the server has ended
            self._server.call_soon_threadsafe(on_loop)

    async def _begin(self) -> Entity:
        return self._cantrip.invoke(loom=self._loom)

    async def _drive(self) -> CastOutcome:
        import anyio

        from cantrip_acp.lsp.commands.progress import CastProgress
        from cantrip_acp.types import events

        self._inside = asyncio.get_running_loop()
        telling, begun = CastProgress(), time.monotonic()
        due: asyncio.TimerHandle | None = None

        def send_line() -> None:
            nonlocal due
            due = None
            with contextlib.suppress(RuntimeError):
                self._server.call_soon_threadsafe(self._say, telling.line())

        record: dict[str, Any] | None = None
        loom = self._loom.location
        try:
            with anyio.CancelScope() as self._scope:
                if self._cancelled:
                    self._scope.cancel()
                self._entity = await self._begin()
            entity = self._entity
            try:
                with anyio.CancelScope() as self._scope:
                    if self._cancelled or entity is None:
                        self._scope.cancel()
                    else:
                        async with entity.stream(self._intent) as stream:
                            async for event in stream:
                                telling.update(event)
                                if isinstance(event, events.CastEnded) and event.entity_id == entity.id:
                                    record = events.as_json(event)
                                # Report after the last event of a burst too: the crystal may think for a long time after it.
                                due = due or self._inside.call_later(TELL_S, send_line)
            finally:
                if due is not None:
                    due.cancel()
                with anyio.CancelScope(shield=True):
                    if entity is not None:
                        await entity.close()
        finally:
            self._loom.close()
        if record is None:  # it was cut off before its end was reported
            usage = entity.usage.record() if entity is not None else {}
            record = {"result": None, "terminated": False, "truncated": True, "reason": "cancelled", "usage": usage}
            name = entity.id if entity is not None else None
            record |= {"turns": telling.turns, "entity_id": name, "cast_id": None, "trace_id": None}
        record.pop("event", None)
        record.pop("depth", None)
        record |= {"loom": loom, "cost": record["usage"].get("cost"), "intent": self._intent}
        record["duration_ms"] = round((time.monotonic() - begun) * 1000, 1)
        return CastOutcome(record, loom)


class RecipeCasts:
    """The running and the ended casts, by recipe."""

    def __init__(self) -> None:
        self.running: dict[Path, list[RecipeCast]] = {}
        self.last: dict[Path, CastOutcome | str] = {}
        """How the last cast ended, or why it failed."""
        self.intents: dict[Path, str] = {}
        """The intent of the last cast."""

    def begin(self, path: Path, cast: RecipeCast, intent: str) -> None:
        """Add a running cast and start it."""
        self.intents[path] = intent
        self.running.setdefault(path, []).append(cast)
        cast.start()

    def end(self, path: Path, cast: RecipeCast, how: CastOutcome | str) -> None:
        """Store the result of an ended cast."""
        running = self.running.get(path, [])
        if cast in running:
            running.remove(cast)
        if not running:
            self.running.pop(path, None)
        self.last[path] = how

    def cancel(self, path: Path | None = None) -> int:
        """Cancel the casts of a recipe, or all casts; return how many there were."""
        found = [cast for at, casts in self.running.items() if path in (None, at) for cast in casts]
        for cast in found:
            cast.cancel()
        return len(found)

    async def close(self, patience: float) -> None:
        """Cancel all casts and wait for their end, at most ``patience`` seconds."""
        self.cancel()
        waiting = [cast.ended for casts in self.running.values() for cast in casts]
        if waiting:
            await asyncio.wait(waiting, timeout=patience)


def summary(ended: CastOutcome, *, whole: bool = False) -> str:
    """Describe on one line how a cast ended."""
    import json

    from cantrip_acp.lsp.commands.progress import money

    record = ended.record
    result = record["result"]
    words = result if isinstance(result, str) else "" if result is None else json.dumps(result, default=str)
    if not whole:
        words = " ".join(words.split())
        words = words if len(words) <= 60 else f"{words[:59]}…"
    parts = [f"{record['reason']}: {words}" if words else str(record["reason"])]
    parts.append("1 turn" if record["turns"] == 1 else f"{record['turns']} turns")
    if record["cost"] is not None:
        parts.append(money(record["cost"]))
    return " · ".join(parts)
