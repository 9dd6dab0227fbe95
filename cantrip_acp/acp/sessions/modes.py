"""Session modes: each is a set of wards, and decides when the user is asked (ACP, Session Modes).

=============  =====================================================================================================
``read-only``  removes every gate that writes; the sandbox has no writable path and no network, because a request can
               change something elsewhere
``ask``        the default: asks before each call of a gate that writes, and before each command; it asks before a
               Python cell only where cells can write files, since otherwise a cell changes only its own variables
``sandboxed``  commands, cells and writes run freely in the sandbox's writable paths; a write outside of them asks
``ask_for_trust``    asks only before a request to a host that nobody named (the user in an intent or a permission, the recipe,
               the settings); the sandbox and all wards stay on
=============  =====================================================================================================
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from cantrip_acp.acp.protocol import ModeState, SessionMode

if TYPE_CHECKING:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.core.definition.wards import Wards
    from cantrip_acp.gates.contract import Gate

READ_ONLY, ASK, SANDBOXED, TRUSTED = "read-only", "ask", "sandboxed", "trusted"

MODES = (
    SessionMode(READ_ONLY, "Read only", "Looks and runs things, and can change nothing."),
    SessionMode(ASK, "Ask", "Asks before each write and each command."),
    SessionMode(SANDBOXED, "Sandboxed", "Free inside the sandbox's writable folders; asks before a write outside."),
    SessionMode(
        TRUSTED,
        "Don't ask",
        "Asks nothing, but before a request to a host that nobody named. The sandbox and every limit stay in force.",
    ),
)
DEFAULT = ASK

NAMES = tuple(mode.id for mode in MODES)

_CHANGING = frozenset({"edit", "delete", "move", "execute"})


def state(current: str) -> ModeState:
    """The modes, as part of a reply."""
    return ModeState(current, list(MODES))


def tightens(before: str, after: str) -> bool:
    """Whether a mode allows less than the previous one."""
    return NAMES.index(after) < NAMES.index(before)


def name_of(mode: str) -> str:
    return next(m.name for m in MODES if m.id == mode)


def changes_something(gate: Gate) -> bool:
    """Whether a gate's call may change something outside of the entity."""
    return gate.writes or gate.kind in _CHANGING


def wards_of(mode: str, circle: Circle) -> Wards | None:
    """The wards that a mode adds to a circle's own; None where it adds none."""
    if mode != READ_ONLY:
        return None
    writing = tuple(gate.name for gate in circle.declared_gates if changes_something(gate))
    return replace(
        circle.wards,
        bash_writable_paths=(),
        code_writable_paths=(),
        bash_network=False,
        remove_gate=tuple(dict.fromkeys((*circle.wards.remove_gate, *writing))),
    )
