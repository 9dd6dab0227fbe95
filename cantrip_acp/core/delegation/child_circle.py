"""Makes the circle of a child: never more than its parent's (COMP-1, COMP-6, COMP-7)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.core.delegation.child_wards import wards_for
from cantrip_acp.core.delegation.request import Request
from cantrip_acp.gates import registry
from cantrip_acp.gates.contract import Gate
from cantrip_acp.gates.wards import Wards
from cantrip_acp.mediums import registry as mediums
from cantrip_acp.mediums.contract import Medium
from cantrip_acp.types.errors import ChildRefused, DefinitionError

_READ_CONTEXT = "read_context"
"""The gate that is added with data and removed with it. A parent cannot pass it on."""


def circle_for(parent: Circle, request: Request) -> Circle:
    """The child's circle, without data. Raises `ChildRefused` for what the parent lacks or its wards forbid."""
    medium = _choose_medium(parent, request)
    wards, declared = wards_for(parent.wards, request, parent.workspace)
    gates = _grant_gates(parent, request)
    seen = parent.workspace if medium.name != "bash" or _reads_workspace(parent) else None
    try:
        circle = Circle(
            medium,
            gates,
            wards,
            workspace=seen,
            folders=parent.folders if seen is not None else (),
        )
        # Gates are computed on first use. Do it now, so that an error in them is an error of this call.
        _ = circle.gates
    except DefinitionError as error:
        raise ChildRefused("circle", f"the child's circle is not valid: {error}") from None
    _check_declaration(parent.wards, circle, declared)
    return circle


def _choose_medium(parent: Circle, request: Request) -> Medium:
    if request.medium is None or request.medium == parent.medium.name:
        return parent.medium
    known = request.medium in mediums.BUILT_IN or request.medium in (parent.wards.child_medium_allowlist or ())
    if not known and request.medium in mediums.names():
        # It is not known here what a medium from another package lets its entity do.
        raise ChildRefused(
            "medium",
            f"cannot grant medium {request.medium!r}: it comes from another package and is not this circle's own; "
            "child_medium_allowlist can admit it (COMP-1)",
        )
    try:
        return mediums.find(request.medium)
    except DefinitionError as error:
        raise ChildRefused("medium", f"the child cannot have this medium: {error}") from None


def _grant_gates(parent: Circle, request: Request) -> list[Gate]:
    offered = {g.name: g for g in parent.declared_gates if g.name in parent.gates and g.name != _READ_CONTEXT}
    if request.gates is None:
        return list(offered.values())
    granted: dict[str, Gate] = {}
    for wanted in request.gates:
        spec: Mapping[str, Any] = {"name": wanted} if isinstance(wanted, str) else wanted
        named = spec.get("name")
        if not isinstance(named, str):
            raise ChildRefused("gate", f"a gate must be a name, or a mapping with a name, not {wanted!r}")
        name = registry.ALIASES.get(named, named)
        gate = offered.get(name)
        if gate is None:
            why = (
                "it comes with context, which is yours to give"
                if name == _READ_CONTEXT
                else "this circle does not have it"
            )
            raise ChildRefused("gate", f"cannot grant gate {name!r}: {why} (it has: {', '.join(offered)}) (COMP-1)")
        granted[name] = _narrow_gate(gate, spec, parent)
    if "done" in offered:
        granted.setdefault("done", offered["done"])
    return list(granted.values())


def _narrow_gate(gate: Gate, spec: Mapping[str, Any], parent: Circle) -> Gate:
    """The parent's gate, changed as the request says: limited to a folder below its root, or with results that do not stay."""
    for key, value in spec.items():
        if key == "root":
            gate = _bind_root_below(gate, value, parent)
        elif key == "ephemeral" and (isinstance(value, bool) or value == "after_use"):
            # A restriction: a child's gate may only keep less visible than its parent's.
            gate = replace(gate, ephemeral=True if True in (gate.ephemeral, value) else gate.ephemeral or value)
        elif key != "name":
            raise ChildRefused(
                "gate",
                f"cannot grant gate {gate.name!r} with {key!r}: only root (a folder below its own) and ephemeral",
            )
    return gate


def _bind_root_below(gate: Gate, root: Any, parent: Circle) -> Gate:
    own = gate.dependencies.get("root", parent.workspace)
    if "root" not in gate.dependencies and not registry.reaches_files(gate.name):
        raise ChildRefused("gate", f"cannot grant gate {gate.name!r} with a root: it does not use files")
    if not isinstance(root, str) or own is None:
        raise ChildRefused("gate", f"cannot grant gate {gate.name!r}: root {root!r} is not a folder below its own")
    base = str(parent.workspace) if parent.workspace is not None else str(own)
    asked = os.path.normpath(os.path.join(base, os.path.expanduser(root)))
    held = os.path.normpath(os.path.join(base, os.fspath(own)))
    if not (_within(asked, held) and _within(os.path.realpath(asked), os.path.realpath(held))):
        raise ChildRefused(
            "gate", f"cannot grant gate {gate.name!r} below {root!r}: this circle's own stays below {held}"
        )
    return gate.bind(root=asked)


def _within(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _reads_workspace(parent: Circle) -> bool:
    """Whether the parent can read all of its workspace. A shell lets its user read all of it."""
    workspace = parent.workspace
    if workspace is None:
        return False
    if parent.medium.name == "bash":
        return True
    wards, place = parent.wards, str(workspace)
    roots = [*wards.bash_writable_paths, *wards.code_readable_paths, *wards.code_writable_paths]
    for gate in parent.gates.values():
        if registry.reaches_files(gate.name):
            roots.append(os.path.normpath(os.path.join(place, gate.dependencies.get("root", place))))
    return any(_within(place, root) for root in roots)


def _check_declaration(wards: Wards, child: Circle, declared: Mapping[str, Any]) -> None:
    """Check the wards on what a child may declare. They refuse and never change a declaration."""
    allowed = wards.child_medium_allowlist
    if allowed is not None and child.medium.name not in allowed:
        raise ChildRefused(
            "child_medium_allowlist",
            f"child refused by child_medium_allowlist: medium {child.medium.name!r} is not among {_names_text(allowed)}",
        )
    names = [name for name in child.gates if name not in ("done", _READ_CONTEXT)]
    if wards.child_gate_allowlist is not None:
        listed = {registry.ALIASES.get(n, n) for n in wards.child_gate_allowlist}
        over = [name for name in names if name not in listed]
        if over:
            raise ChildRefused(
                "child_gate_allowlist",
                f"child refused by child_gate_allowlist: a child may have {_names_text(wards.child_gate_allowlist)}, and not "
                f"{', '.join(over)}; name the child's gates without them",
            )
    denied = {registry.ALIASES.get(n, n) for n in wards.child_gate_denylist}
    over = [name for name in child.gates if name in denied]
    if over:
        raise ChildRefused(
            "child_gate_denylist",
            f"child refused by child_gate_denylist: a child must not have {', '.join(over)}; name the child's gates "
            "without them",
        )
    for ward, ceiling in (
        ("max_turns", wards.child_max_turns_ceiling),
        ("max_depth", wards.child_max_depth_ceiling),
    ):
        # The declared value counts, not the composed one. Without a declaration, the value from the parent counts.
        value = declared.get(ward, getattr(child.wards, ward))
        if ceiling is not None and (value is None or value > ceiling):
            said = f"{ward} {value}" if ward in declared else f"no {ward} of its own (it would have {value})"
            raise ChildRefused(
                f"child_{ward}_ceiling",
                f"child refused by child_{ward}_ceiling: it declares {said}; declare {ward} at or below {ceiling}",
            )


def _names_text(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"
