"""Computes the wards of a child's circle: its parent's, or tighter if the child declares so (WARD-1, D-009).

Numbers and restrictions are combined silently. A declared ward that would open something that is closed for the
parent (a path, the network, a kept home, modules to compile) is refused instead. Otherwise a child that relied on it
would fail in a way that is hard to see.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cantrip_acp.core.delegation.request import Request
from cantrip_acp.gates.wards import COMPILE, WARDS, Wards, compose
from cantrip_acp.types.errors import ChildRefused, DefinitionError

_PERMISSION_WARDS = (
    "bash_writable_paths",
    "code_readable_paths",
    "code_writable_paths",
    "bash_network",
    "bash_home",
    "allow_protected",
    "git_writes",
    *COMPILE,
)
"""Wards whose values give a permission."""


def wards_for(parent: Wards, request: Request, workspace: Path | None) -> tuple[Wards, Mapping[str, Any]]:
    """The wards in force for a child, and by name the wards that it declared itself.

    Raises `ChildRefused` for a permission that is wider than the parent's, and for an invalid ward.
    """
    declared = _declared_wards(request, workspace)
    for name in _PERMISSION_WARDS:
        if name in declared and _is_wider(name, getattr(parent, name), declared[name]):
            raise ChildRefused(
                name,
                f"cannot grant ward {name} {_value_text(declared[name])}: it is wider than this circle's own, which is "
                f"{_value_text(getattr(parent, name))} (COMP-1)",
            )
    below = replace(parent, max_depth=max(0, parent.max_depth - 1))
    depth = declared.get("max_depth", below.max_depth)
    return compose(below, replace(below, **{**declared, "max_depth": depth})), declared


def _declared_wards(request: Request, workspace: Path | None) -> dict[str, Any]:
    try:
        of = Wards.of(request.wards, base=workspace)
    except DefinitionError as error:
        raise ChildRefused("wards", f"the child's wards are not valid: {error}") from None
    found = {name: getattr(of, name) for item in request.wards for name in item}
    if request.max_depth is not None:
        found["max_depth"] = min(request.max_depth, found.get("max_depth", request.max_depth))
    return found


def _is_wider(name: str, parent: Any, child: Any) -> bool:
    if child is None:
        return False
    match WARDS[name]["rule"]:
        case "home":
            return bool(child == "persistent" and parent != "persistent")
        case "and":
            if parent is True or child is False:
                return False
            return child is True or parent is False or any(host not in parent for host in child)
        case "paths":
            if parent is None:
                return name in COMPILE and bool(child)
            return any(not _inside(path, parent) for path in child)
        case _:
            return bool(child) if parent is None else any(each not in parent for each in child)


def _inside(path: str, roots: tuple[str, ...]) -> bool:
    """Check the path as written and with links resolved: a link inside a root may lead out of it."""
    from os.path import realpath

    return any(p == r or p.startswith(r.rstrip("/") + "/") for r, p in ((root, path) for root in roots)) and any(
        p == r or p.startswith(r.rstrip("/") + "/") for r, p in ((realpath(root), realpath(path)) for root in roots)
    )


def _value_text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, tuple):
        return ", ".join(map(repr, value)) or "none"
    return str(value).lower() if isinstance(value, bool) else repr(value)
