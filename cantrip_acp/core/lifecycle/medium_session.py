"""The session of an entity's medium: opens it on first use, renews it when wards change, and stores its snapshots."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.loom.snapshots import SnapshotChunks
from cantrip_acp.mediums.contract import SessionBase
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.errors import CantripError, SandboxError
from cantrip_acp.types.events import Noticed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from cantrip_acp.core.state import EntityState
    from cantrip_acp.gates.dynamic_gates import DynamicGates
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.mediums.contract import MediumSession
    from cantrip_acp.types.records import Output

_SANDBOX_WARDS = (
    "bash_writable_paths", "bash_network", "bash_home", "code_readable_paths", "code_writable_paths", "allow_protected",
    "git_writes", "hidden_paths",
)  # fmt: skip
"""Wards that a medium's session is built with. A change of one of them needs a new session."""


class SessionKeeper:
    """Keeps one entity's medium session, and its snapshots if the recipe asks for them (``loom.snapshots``)."""

    def __init__(self, entity: EntityState, dynamic_gates: DynamicGates) -> None:
        self._entity = entity
        self._dynamic_gates = dynamic_gates
        keeps = bool(entity.cantrip.loom_settings.get("snapshots"))
        keeps = keeps and complete(entity.circle.medium, MediumBase).keeps_state
        self._pieces: SnapshotChunks | None = SnapshotChunks(entity.loom) if keeps else None
        self.pending_restore: Callable[[], Awaitable[None]] | None = None
        """Restores the state of a medium that was just opened, if this entity ran earlier in another process."""
        self.restore_first = False
        """Restore before the first query and not only for the first program, because the tools depend on it."""
        self.loaded_again: list[str] = []
        """The modules that the restore loaded again, in words, until the entity is told."""
        self.not_loaded: list[str] = []
        """The modules that could not be loaded, until the entity and the user are told."""
        self.notices: list[str] = []
        """Notices for the user at the start of the cast."""
        self._session: MediumSession | None = None
        self._outdated = False
        self._opening = anyio.Lock()
        self._snapshot: asyncio.Task[dict[str, str]] | None = None
        """The task that makes the current snapshot."""
        self._missing: dict[str, str] = {}
        """The names that the last snapshot does not contain, each with the reason."""

    @property
    def is_open(self) -> bool:
        return self._session is not None

    async def open(self) -> MediumSession:
        """The session. It is opened on first use."""
        if self._session is not None and not self._outdated and self.pending_restore is None:
            return self._session
        async with self._opening:
            if self._outdated and self._session is not None:
                await self._renew(self._session)
            session = await self._open()
        restore, self.pending_restore = self.pending_restore, None
        if restore is not None:
            try:
                await restore()
            except BaseException:
                # A partly restored state must not be used: the next use restores from the start.
                self.pending_restore = restore
                await self.discard()
                raise
        return self._session or session

    async def restore_before_query(self) -> None:
        """Open the medium now if its state from an earlier process must be restored before the first query."""
        if self.restore_first and self.pending_restore is not None:
            await self.open()

    def take_notes(self, *, also_loaded: bool) -> str:
        """Notes for the entity about modules that could not be loaded again, and with ``also_loaded`` about those that could.
        Empty if there are none."""
        notes = [*(self.loaded_again if also_loaded else ()), *self.not_loaded]
        if self.not_loaded:
            self.notices.append(f"not loaded again: {'; '.join(self.not_loaded)}")
        self.loaded_again, self.not_loaded = [], []
        return "\n".join(notes)

    async def _open(self) -> MediumSession:
        if self._session is None:
            circle = self._entity.circle
            self._session = session = await circle.medium.open(circle, self._entity.id)
            if self._pieces is not None:
                session.chunks = self._pieces  # type: ignore[attr-defined]
            self._dynamic_gates.set_listener(complete(session, SessionBase).gates_added)
        return self._session

    async def _renew(self, old: MediumSession) -> None:
        """Open the medium again under the wards that are in force now, and restore its state."""
        source: Any = old
        snapshot = None
        keeps = complete(self._entity.circle.medium, MediumBase).keeps_state
        if keeps:
            with suppress(SandboxError):
                snapshot = await source.snapshot()
        self._session, self._outdated = None, False
        try:
            session: Any = await self._open()
            if snapshot is not None:
                await session.restore(snapshot, source.chunks)
                if snapshot.missing:
                    lost = "; ".join(f"{name} ({why})" for name, why in snapshot.missing[:10])
                    session.remark(f"the wards changed, and what could not be kept is gone: {lost}")
            elif keeps:
                session.remark("what had been defined was lost: the wards changed, and no snapshot could be taken")
        finally:
            with anyio.CancelScope(shield=True):
                await old.close()

    def wards_changed(self, before: Wards, now: Wards) -> None:
        """Renew the session at its next use, if one of the wards that it was built with changed."""
        if any(getattr(before, name) != getattr(now, name) for name in _SANDBOX_WARDS):
            self._outdated = True

    async def discard(self) -> None:
        """Close the session. The next use opens a new one."""
        session, self._session = self._session, None
        if session is not None:
            with anyio.CancelScope(shield=True):
                await session.close()

    async def start_snapshot(self, turn_id: str) -> None:
        """Start to store a snapshot of the medium's current state for a turn.

        The rest of the work runs during the next query; `finish_snapshot` waits for it.
        """
        if self._session is None or self._pieces is None:
            return
        await self.finish_snapshot()
        began = anyio.Event()
        self._snapshot = asyncio.create_task(self._store_snapshot(self._session, self._pieces, turn_id, began))
        await began.wait()

    async def _store_snapshot(
        self, session: Any, pieces: SnapshotChunks, turn_id: str, began: anyio.Event
    ) -> dict[str, str]:
        """Store the snapshot.

        Returns what it does not contain, and why. A snapshot that could not be opened again is not offered.
        """
        missing: dict[str, str] = {}
        try:
            snapshot = await session.snapshot(began.set)
            record = snapshot.record()
            missing = dict(snapshot.missing)
        except SandboxError as error:
            record = {"error": str(error)}
            missing = {"all variables": record["error"]}
        except asyncio.CancelledError:
            record = {"error": "the cast was stopped before the state could be kept"}
            missing = {"all variables": record["error"]}
        finally:
            began.set()
        pieces.keep(turn_id, self._entity.id, record)
        return missing

    async def finish_snapshot(self, patience: float | None = None) -> None:
        """Wait until the last snapshot is in the loom, and report what it does not contain.

        ``patience`` is the maximum wait in seconds. After it the snapshot is abandoned, which is also recorded.
        """
        task = self._snapshot
        if task is None:
            return
        await asyncio.wait([task], timeout=patience)
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        self._snapshot = None
        missing = task.result()
        fresh = {name: why for name, why in missing.items() if self._missing.get(name) != why}
        self._missing = missing
        if fresh and self._session is not None:
            text = "; ".join(f"{name} ({why})" for name, why in list(fresh.items())[:10])
            text = f"not kept in the snapshot, and gone where this session is opened again: {text}"
            await self.remark(text, aloud=True)

    async def remark(self, text: str, *, aloud: bool) -> None:
        """Add a text in front of the output of the entity's next program; with ``aloud``, show it to the user too."""
        complete(self._session, SessionBase).remark(text)
        entity = self._entity
        if aloud and entity.hub.active:
            cast_id = entity.running.id if entity.running is not None else ""
            await entity.hub.send(Noticed(entity_id=entity.id, cast_id=cast_id, depth=entity.depth, text=text))

    def partial_output(self) -> Output | None:
        """What the running program has printed since the last request. None if no program runs."""
        return complete(self._session, SessionBase).so_far()

    @property
    def sandbox_pid(self) -> int:
        """A process of the sandbox that runs now; 0 if none runs."""
        return complete(self._session, SessionBase).sandbox_pid

    async def close(self) -> None:
        """End the session and everything that it started. Safe to call twice."""
        session, self._session = self._session, None
        if self._snapshot is not None:
            with suppress(CantripError):
                await self.finish_snapshot(patience=0)
        if session is not None:
            await session.close()
