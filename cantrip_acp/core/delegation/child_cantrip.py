"""Makes a child's cantrip from its parent's and from the request: crystal, call and circle (COMP-1, COMP-7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.core.delegation.child_circle import circle_for
from cantrip_acp.core.delegation.request import Request
from cantrip_acp.crystals.contract import Crystal, CrystalBase
from cantrip_acp.gates.contract import NOTHING
from cantrip_acp.text.defaults import complete
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import CantripError, ChildRefused, DefinitionError

if TYPE_CHECKING:
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.core.state import EntityState


@dataclass(frozen=True, slots=True)
class CheckedChild:
    """A child that passed the checks. Its crystal is chosen later: it depends on how many children came before it."""

    request: Request
    call: Call
    circle: Circle


def check_request(parent: EntityState, request: Request, alike: dict[str, Circle]) -> CheckedChild:
    """Check a request for a child. Raises `ChildRefused` for something that the parent's circle does not allow, and for an
    unknown crystal name.

    ``alike`` caches the circles of a batch by their request, because most children of a batch differ only in their data.
    """
    of = parent.cantrip
    call = _child_call(of.call, request)
    shape = repr((request.gates, request.wards, request.medium, request.max_depth))
    circle = alike.get(shape)
    if circle is None:
        circle = alike[shape] = circle_for(parent.circle, request)
    if request.context is not NOTHING:
        circle = circle.replace(data=request.context)
    if request.crystal is not None and request.crystal not in of.crystals:
        known = ", ".join(of.crystals) or "none"
        raise ChildRefused("crystal", f"there is no crystal {request.crystal!r} for children (there are: {known})")
    return CheckedChild(request, call, circle)


def _child_call(own: Call, request: Request) -> Call:
    if request.call is None:
        return own if request.system_prompt is None else replace(own, system_prompt=request.system_prompt)
    asked = {**own.record(), **request.call}
    if request.system_prompt is not None:
        asked["system_prompt"] = request.system_prompt
    try:
        made = Call.of(asked)
    except (DefinitionError, TypeError) as error:
        raise ChildRefused("call", f"the child cannot have this call: {error}") from None
    # A restriction of the parent is never loosened.
    return replace(made, require_done_tool=bool(made.require_done_tool) or own.require_done_tool)


def cantrip_of(parent: EntityState, judged: CheckedChild, number: int) -> CantripDefinition:
    """The cantrip of the parent's child with that number, from 0.

    Raises `ChildRefused` if its crystal is not available.
    """
    of = parent.cantrip
    crystal = crystal_of(parent, judged.request, number)
    try:
        # Interceptors apply to children too. The parent's contributors do not: context for a cast is not a child's (COMP-4).
        return of.replace(
            crystal=crystal,
            call=judged.call,
            circle=judged.circle,
            loom=parent.loom,
            contributors=judged.request.contributors,
            sources=(),
            scores=True,
            # The type is that of the parent's own result.
            result_type=None,
        )
    except DefinitionError as error:
        raise ChildRefused("circle", f"the child cannot be made: {error}") from None


def crystal_of(parent: EntityState, request: Request, number: int) -> Crystal:
    """The crystal of the parent's child with that number. Raises `ChildRefused` if it is not available."""
    of = parent.cantrip
    if request.own_crystal is not None:
        return request.own_crystal
    try:
        if request.crystal is not None:
            return of.crystals[request.crystal]
        # A scripted crystal has scripts for its children; any other crystal is used for the children too.
        return complete(parent.crystal, CrystalBase).child(number, parent.depth + 1) or parent.crystal
    except CantripError as error:
        raise ChildRefused("crystal", f"the child has no crystal: {error}") from None
