"""Runs a case's actions: builds cantrips, invokes and casts them, and carries out the steps after a cast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import anyio

from cantrip_acp.conformance.case import Case
from cantrip_acp.conformance.setup import CaseSetup
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.core.casting.result import CastResult
from cantrip_acp.core.entity import Entity
from cantrip_acp.gates.contract import as_text
from cantrip_acp.loom.query.thread import Thread
from cantrip_acp.types.errors import CantripError, DefinitionError


class CaseRun:
    """Runs a case's actions in order until one fails, and keeps the results.

    ``results`` are those of the finished casts, ``entities`` the ids of the created entities in order, ``extracted``
    the thread of ``extract_thread``. ``error`` is the failure of the action at the path ``failed_at`` in the case.
    """

    def __init__(self, scene: CaseSetup) -> None:
        self.scene = scene
        self.results: list[CastResult] = []
        self.entities: list[str] = []
        self.extracted: Thread | None = None
        self.error: CantripError | None = None
        self.failed_at = ""
        self.entity: Entity | None = None
        """The invoked entity that casts go to; None where each cast creates its own."""
        self._invoked: list[Entity] = []
        self._cantrip: Cantrip | None = None

    async def run(self, case: Case) -> None:
        """Run everything. An expected kind of failure (`CantripError`) is kept in ``error``; any other exception is
        raised."""
        try:
            self.failed_at = "setup"
            self.scene.build()
            for path, action in case.actions:
                for key, value, where in _steps(action, path):
                    self.failed_at = where
                    await self._do(key, value)
            self.failed_at = ""
        except CantripError as error:
            self.error = error
        finally:
            with anyio.CancelScope(shield=True):
                for entity in self._invoked:
                    await entity.close()

    async def _do(self, key: str, value: Any) -> None:
        match key:
            case "construct_cantrip":
                self._cantrip = self.scene.cantrip()
            case "invoke":
                self.entity = self._current_cantrip().invoke()
                self._invoked.append(self.entity)
                self.entities.append(self.entity.id)
            case "cast":
                await self._cast(value or {})
            case "mutate_call":
                call = self._current_cantrip().call
                for name, changed in (value or {}).items():
                    setattr(call, name, changed)
            case "delete_turn":
                self.scene.loom.delete_turn(self._turn_id(value))
            case "annotate_reward":
                given: dict[str, Any] = value or {}
                self.scene.loom.annotate_reward(
                    self._turn_id(given.get("turn")), given.get("reward", math.nan), by="suite"
                )
            case "fork":
                await self._fork(value or {})
            case "extract_thread":
                self.extracted = _at(self.scene.loom.threads(), value, "thread")
            case _:
                raise DefinitionError(f"{key} cannot be done by this version")

    def _current_cantrip(self) -> Cantrip:
        if self._cantrip is None:
            self._cantrip = self.scene.cantrip()
        return self._cantrip

    async def _cast(self, given: Mapping[str, Any]) -> None:
        intent: Any = given.get("intent")
        if intent is not None and not isinstance(intent, str):
            intent = as_text(intent)
        crystal = given.get("crystal")
        if self.entity is not None:
            if crystal is not None:
                raise DefinitionError("a cast of an invoked entity cannot name a crystal; the entity has its own")
            self.results.append(await self.entity.cast(intent))
            return
        cantrip = self._current_cantrip() if crystal is None else self.scene.cantrip(crystal)
        known = len(self.scene.loom.casts())
        try:
            self.results.append(await cantrip.cast(intent))
        finally:
            started = [start for start, _ in self.scene.loom.casts()[known:] if start.parent_turn_id is None]
            self.entities.extend(start.entity_id for start in started)

    async def _fork(self, given: Mapping[str, Any]) -> None:
        """``from_turn: n`` keeps the first n turns; with an intent, the fork is cast on it."""
        turn_count = given.get("from_turn")
        if isinstance(turn_count, bool) or not isinstance(turn_count, int) or turn_count < 0:
            raise DefinitionError(f"from_turn must be the number of turns that are kept, not {turn_count!r}")
        loom = self.scene.loom
        if turn_count:
            origin = self._turn_id(turn_count - 1)
        else:
            first = loom.turn(self._turn_id(0))
            if first.parent_id is None:
                raise DefinitionError("the first turn has no call above it to fork from")
            origin = first.parent_id
        crystal = given.get("crystal")
        cantrip = self._current_cantrip() if crystal is None else self.scene.cantrip(crystal)
        entity = await cantrip.fork(origin, loom=loom, state="auto")
        self._invoked.append(entity)
        self.entities.append(entity.id)
        intent = given.get("intent")
        if intent is not None:
            self.results.append(await entity.cast(intent if isinstance(intent, str) else as_text(intent)))

    def _turn_id(self, index: Any) -> str:
        turns = [turn.id for turn in self.scene.loom.turns() if turn.role == "crystal"]
        return str(_at(turns, index, "turn"))


def _steps(action: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any, str]]:
    """The steps of one action: what it creates, then its cast, then what comes after the cast."""
    for key in ("construct_cantrip", "invoke", "cast"):
        if key not in action:
            continue
        value = action[key]
        if key in ("construct_cantrip", "invoke") and value not in (True, "on"):
            raise DefinitionError(f"{path}.{key} is true or left out, not {value!r}")
        yield key, value, f"{path}.{key}"
    then = action.get("then") or []
    for number, step in enumerate(then if isinstance(then, list) else [then]):
        where = f"{path}.then[{number}]" if isinstance(then, list) else f"{path}.then"
        for key, value in (step or {}).items():
            yield key, value, f"{where}.{key}"


def _at(items: list[Any], index: Any, what: str) -> Any:
    if not isinstance(index, int) or isinstance(index, bool):
        raise DefinitionError(f"a {what} is named by its index from 0, not {index!r}")
    if not 0 <= index < len(items):
        raise DefinitionError(f"no {what} {index}: the loom has {len(items)} (counted from 0)")
    return items[index]
