"""The yool ``agent.cast.<recipe>``: casts a recipe on the intent of a tuple."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio.to_thread

from cantrip_acp.core.definition.circle import check_reference
from cantrip_acp.files import disk_limit
from cantrip_acp.files.disk_limit import DiskLimit
from cantrip_acp.gates.web.named_hosts import NamedHosts
from cantrip_acp.text.storable import storable
from cantrip_acp.tuplespace.errors import LeaseLost
from cantrip_acp.tuplespace.workers.worker import StepCall, StepFailed, StepResult, is_of_the_machine
from cantrip_acp.tuplespace.yools.step import YoolBase
from cantrip_acp.types.errors import (
    CantripError,
    ContextLimitError,
    CrystalError,
    DefinitionError,
    LoomAppendOnly,
    LoomDamaged,
    LoomError,
    SandboxMissing,
    ScriptExhausted,
    TurnNotFound,
)
from cantrip_acp.types.events import TurnEnded
from cantrip_acp.types.records import ConfigRecord, new_id, now

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.tuplespace.budget import Budget
    from cantrip_acp.types.usage import Usage

_OVERLOADED = frozenset({429, 502, 503, 504, 529})
_REFUSED = frozenset({400, 413, 422})
"""Statuses by which a provider refuses the request itself: every attempt would fail in the same way."""
"""HTTP statuses that say nothing about the request."""


class _QuotaExceeded(Exception):
    """A step used more disk than its tuple allows."""


class CastYool(YoolBase):
    """Casts one recipe, each tuple with a separate entity, into one loom. Accepts only tuples with the recipe's text and
    project.

    Requests may go only to ``hosts``, to the hosts of the recipe and to those that the cast's own intent names. ``model``
    replaces the recipe's model, if it is not empty, and is recorded for each entity.
    """

    def __init__(
        self,
        cantrip: Cantrip,
        loom: Loom,
        digest: str,
        *,
        hosts: Sequence[str] = (),
        model: str = "",
        project: str = "",
    ) -> None:
        self.cantrip = cantrip
        self.loom = loom
        self.needs = {"recipe": digest, **({"project": project} if project else {})}
        self.without = ("reference",) if why_no_references(cantrip, loom) else ()
        self._hosts = hosts
        self._model = model

    async def __call__(self, call: StepCall) -> StepResult:
        with disk_limit.in_force(None if call.disk_mb is None else DiskLimit(round(call.disk_mb * 1_000_000))):
            return await self._run(call)

    async def _run(self, call: StepCall) -> StepResult:
        intent = call.args.get("intent")
        if not isinstance(intent, str) or not intent.strip():
            return StepResult(exit=64, error="the step's args have no intent")
        hosts = NamedHosts()
        hosts.allow(self._hosts)
        hosts.add_from_text(intent)
        cantrip = self._within(call).for_session((), hosts)
        try:
            entity, ended = await self._entity(call, cantrip)
            async with entity:
                if ended is not None:
                    return _step_result(entity, ended)
                return _step_result(entity, (await self._cast(call, entity, intent)).record())
        except (LoomDamaged, LoomAppendOnly, TurnNotFound) as error:
            raise StepFailed(str(error)) from None
        except LoomError as error:
            # Without its record the cast does not count, and the next one would fail too.
            raise StepFailed(str(error), outage=True) from None
        except _QuotaExceeded as exceeded:
            return StepResult(exit=75, error=str(exceeded), cost=_cost(entity.usage))
        except (ContextLimitError, ScriptExhausted) as error:
            # Every attempt would fail in the same way.
            return StepResult(exit=1, error=str(error))
        except CrystalError as error:
            if error.status in _REFUSED and not error.may_retry():
                return StepResult(exit=1, error=str(error))
            certain = error.unreachable or (error.may_retry() and error.status in _OVERLOADED)
            # A wrong key, or a model or an address that does not exist.
            mistake = error.status in (401, 404)
            raise StepFailed(str(error), outage=certain, perhaps=error.may_retry(), mistake=mistake) from None
        except SandboxMissing as error:
            # A full disk ends, but a machine without a sandbox stays one.
            told, passes = str(error), is_of_the_machine(error)
            raise StepFailed(told, outage=True, mistake=not passes) from error
        except CantripError as error:
            if is_of_the_machine(error):
                raise StepFailed(str(error), outage=True) from None
            return StepResult(exit=1, error=str(error))

    async def _entity(self, call: StepCall, cantrip: Cantrip) -> tuple[Entity, dict[str, Any] | None]:
        """The entity for a tuple, and the result of its cast if an earlier attempt finished it but could not store it.

        The entity of an interrupted attempt continues from its loom, so that no work is repeated.
        """
        known = (call.progress or {}).get("entity_id")
        if isinstance(known, str) and self.loom.has_entity(known):
            return await anyio.to_thread.run_sync(self._resumed, cantrip, known)
        entity = cantrip.invoke(loom=self.loom)
        if self._model:
            self.loom.append(ConfigRecord(new_id("g"), entity.id, {"crystal": self._model}, now()))
        await call.save(_place(entity))
        return entity, None

    def _resumed(self, cantrip: Cantrip, entity_id: str) -> tuple[Entity, dict[str, Any] | None]:
        """The entity of an earlier attempt, or None. Blocks: it reads the loom. Raises `StepFailed` while the process of the
        earlier attempt holds the cast."""
        from cantrip_acp.core.forking.earlier_casts import recorded_result
        from cantrip_acp.core.forking.resume import resume_entity

        loom = self.loom
        casts = [start for start in loom.cast_starts().values() if start.entity_id == entity_id]
        if loom.running_casts({start.id for start in casts}):
            raise StepFailed(f"the cast of entity {entity_id} still runs in another process", tried=False)
        entity = resume_entity(cantrip, loom, entity_id).entity
        ended = recorded_result(loom, entity_id, casts)
        return entity, None if ended is None else replace(ended, usage=entity.usage, children_usage=None).record()

    async def _cast(self, call: StepCall, entity: Entity, intent: str) -> CastResult:
        """Cast, or continue the cast of an earlier attempt, and save the cost after each turn."""
        begun = call.progress is not None and entity.id == call.progress.get("entity_id")
        entity.set_wards(_further_wards(call, entity))
        goes_on = begun and any(start.entity_id == entity.id for start in self.loom.cast_starts().values())
        limit = disk_limit.current()
        shared_budget: Budget | None = None
        options: dict[str, Any] = {} if goes_on else {"reference": call.args.get("reference")}
        async with entity.stream(None if goes_on else intent, trace=call.trace, **options) as events:
            async for event in events:
                if isinstance(event, TurnEnded):
                    if limit is not None and limit.exceeded():
                        entity.cancel()
                    # Without its lease the worker stops the cast soon.
                    with suppress(LeaseLost):
                        shared_budget = await call.save({**_place(entity), "cost": _cost(entity.usage)})
                        if shared_budget is not None and shared_budget.is_spent:
                            entity.cancel()
        result = events.result
        if limit is not None and (over := limit.exceeded()) is not None:
            raise _QuotaExceeded(f"the cast was stopped: it used {over}")
        if shared_budget is not None and shared_budget.is_spent and result.reason == "cancelled":
            raise StepFailed(f"the budget {shared_budget.name} is spent; raise it to continue the cast", tried=False)
        return result

    def _within(self, call: StepCall) -> Cantrip:
        """The cantrip with wards for the rest of the tuple's budget. The worker itself enforces the deadline.

        Tuples with equal budgets get equal wards, so that their casts can be compared.
        """
        wards = self.cantrip.circle.wards
        limits: dict[str, Any] = {}
        if call.left_usd is not None and (wards.max_cost_usd is None or call.left_usd < wards.max_cost_usd):
            limits["max_cost_usd"] = call.left_usd
        if call.left_tokens is not None and (
            wards.max_total_tokens is None or call.left_tokens < wards.max_total_tokens
        ):
            limits["max_total_tokens"] = call.left_tokens
        if not limits:
            return self.cantrip
        return self.cantrip.replace(circle=self.cantrip.circle.replace(wards=replace(wards, **limits)))


def _further_wards(call: StepCall, entity: Entity) -> Wards:
    """Further wards for this attempt, outside of the cantrip: they subtract the usage of earlier attempts."""
    used, wards = entity.usage, entity.circle.wards
    if call.left_usd is not None and used.cost:
        wards = replace(wards, max_cost_usd=max(0.0, call.left_usd - used.cost))
    if call.left_tokens is not None and used.total_tokens:
        wards = replace(wards, max_total_tokens=max(1, call.left_tokens - used.total_tokens))
    return replace(wards, sandbox_cpu_percent=call.cpu_percent)


def why_no_references(cantrip: Cantrip, loom: Loom) -> str | None:
    """Why casts with an expected answer are impossible: the entities could read the loom that holds it. None if they are
    possible."""
    try:
        check_reference([], cantrip.circle, loom.location)
    except DefinitionError as error:
        return str(error)
    return None


def _place(entity: Entity) -> dict[str, Any]:
    """The location of a cast's record."""
    return {"entity_id": entity.id, "loom": entity.loom.location}


def _cost(usage: Usage) -> dict[str, Any]:
    return {"usd": usage.cost, "tokens_in": usage.prompt_tokens, "tokens_out": usage.completion_tokens}


def _step_result(entity: Entity, ended: Mapping[str, Any]) -> StepResult:
    """The result of a cast, with the cost of all its attempts."""
    record, cost = storable(dict(ended), shapes=True), _cost(entity.usage)
    if ended["terminated"]:
        return StepResult(result=record, cost=cost)
    return StepResult(exit=1, result=record, error=f"the cast was cut off: {ended['reason']}", cost=cost)
