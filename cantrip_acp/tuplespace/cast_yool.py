"""The yool ``agent.cast.<recipe>``: casts a recipe on the intent of a tuple."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.errors import CantripError, CrystalError, LoomError
from cantrip_acp.gates.web.named_hosts import NamedHosts
from cantrip_acp.text.redaction import shared
from cantrip_acp.tuplespace.worker import StepCall, StepFailed, StepResult

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.casting.result import CastResult
    from cantrip_acp.loom.loom import Loom


class CastYool:
    """Casts one recipe, each time with a new entity, into one loom. Refuses work for another text of the recipe.

    Requests may go only to ``hosts``, to the hosts of the recipe and to those that the cast's own intent names.
    """

    def __init__(self, cantrip: Cantrip, loom: Loom, digest: str, *, hosts: Sequence[str] = ()) -> None:
        self.cantrip = cantrip
        self.loom = loom
        self.digest = digest
        self._hosts = hosts

    async def __call__(self, call: StepCall) -> StepResult:
        intent = call.args.get("intent")
        if not isinstance(intent, str) or not intent.strip():
            return StepResult(exit=64, error="the step's args have no intent")
        if call.args.get("recipe") != self.digest:
            return StepResult(
                exit=65,
                error="the tuple is for another text of this recipe; give the worker the same file, and emit again",
            )
        hosts = NamedHosts()
        hosts.allow(self._hosts)
        hosts.add_from_text(intent)
        cantrip = self._within(call).for_session((), hosts)
        try:
            async with cantrip.invoke(loom=self.loom) as entity:
                result = await entity.cast(intent)
        except LoomError:
            # Without its record the cast does not count, and the next one would fail too.
            raise
        except CrystalError as error:
            raise StepFailed(shared().text(str(error))) from None
        except CantripError as error:
            return StepResult(exit=1, error=shared().text(str(error)))
        return _step_result(result)

    def _within(self, call: StepCall) -> Cantrip:
        """The cantrip with wards that keep within what is left of the tuple's budget. The worker itself keeps the deadline.

        Tuples with the same budget get the same wards, so that their casts can be compared.
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


def _step_result(result: CastResult) -> StepResult:
    usage = result.usage
    record = shared().data(result.record())
    cost = {"usd": usage.cost, "tokens_in": usage.prompt_tokens, "tokens_out": usage.completion_tokens}
    if result.terminated:
        return StepResult(result=record, cost=cost)
    return StepResult(exit=1, result=record, error=f"the cast was cut off: {result.reason}", cost=cost)
