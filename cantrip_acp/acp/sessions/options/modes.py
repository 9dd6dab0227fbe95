"""Session modes: a mode adds wards to a session, and decides when the user is asked (ACP, Session Modes).

=============  =====================================================================================================
``plan``       Like ``read-only``, and the entity ends with a plan. The user approves it for another mode, edits it, or
               returns it with comments (`plan_mode`).
``read-only``  Removes every gate that writes. The sandbox has no writable path, and no network, because a request could
               change something on another machine.
``ask``        Asks before each call of a gate that writes and before each command. Asks before a Python cell only if
               cells can write files. The default where no checkpoints can be kept.
``sandboxed``  The default: each change can be undone (`core.lifecycle.checkpoints`). Commands, cells and writes run freely
               in the sandbox's writable paths. A write outside of them, a command that has the network, a request to
               another host and the client's terminal ask.
``trusted``    Asks only before a request to a host that nobody has named: not the user, not the recipe, and not the
               settings. The sandbox and all wards stay in force.
=============  =====================================================================================================
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from cantrip_acp.acp.protocol import ModeState, SessionMode
from cantrip_acp.files.paths import state_dir

if TYPE_CHECKING:
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.core.entity import Entity
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.gates.wards import Wards

PLAN, READ_ONLY, ASK, SANDBOXED, TRUSTED = "plan", "read-only", "ask", "sandboxed", "trusted"

MODES = (
    SessionMode(PLAN, "Plan", "Changes nothing, and ends with a plan that you approve, edit or return."),
    SessionMode(READ_ONLY, "Read only", "Reads files and runs programs, but cannot change anything."),
    SessionMode(ASK, "Ask", "Asks before each write and each command."),
    SessionMode(
        SANDBOXED,
        "Sandboxed",
        "Writes freely in the sandbox's writable folders, and each change can be undone. Asks before anything outside.",
    ),
    SessionMode(
        TRUSTED,
        "Don't ask",
        "Asks only before a request to a host that nobody has named. The sandbox and every limit stay in force.",
    ),
)
FALLBACK = ASK
"""The mode where no checkpoints can be kept, and of a stored session that names no mode or an unknown one."""

NAMES = tuple(mode.id for mode in MODES)

_CHANGING = frozenset({"edit", "delete", "move", "execute"})


def state(current: str) -> ModeState:
    """The current mode and all modes, for a reply."""
    return ModeState(current, list(MODES))


def tightens(before: str, after: str) -> bool:
    """Whether the mode ``after`` allows less than the mode ``before``."""
    return NAMES.index(after) < NAMES.index(before)


def name_of(mode: str) -> str:
    return next(m.name for m in MODES if m.id == mode)


def changes_nothing(mode: str) -> bool:
    """Whether nothing can be changed in this mode."""
    return mode in (PLAN, READ_ONLY)


def changes_something(gate: Gate) -> bool:
    """Whether a gate's call may change something outside of the entity."""
    return gate.writes or gate.kind in _CHANGING


def default_mode(entity: Entity) -> tuple[str, str]:
    """The mode of a new session. If that is not `sandboxed`, also the reason, for the user."""
    circle = entity.circle
    if circle.workspace is None:
        return FALLBACK, ""
    if entity.checkpoints is None:
        return FALLBACK, "the recipe says loom: {files: false}, so changes of files could not be undone"
    state = state_dir()
    while not state.exists():
        state = state.parent
    if not os.access(state, os.W_OK | os.X_OK):
        return FALLBACK, f"{state} cannot be written, so changes of files could not be undone"
    kept = [os.path.realpath(folder) for folder in (circle.workspace, *circle.folders)]
    for path in map(os.path.realpath, (*circle.wards.bash_writable_paths, *circle.wards.code_writable_paths)):
        if not any(path == each or path.startswith(f"{each}/") for each in kept):
            return (
                FALLBACK,
                f"the recipe lets it write to {path}, and only changes in the session's folders can be undone",
            )
    return SANDBOXED, ""


def wards_of(mode: str, circle: Circle) -> Wards | None:
    """The wards of a circle in this mode. None if the mode does not change the circle's own wards."""
    if not changes_nothing(mode):
        return None
    writing = tuple(gate.name for gate in circle.declared_gates if changes_something(gate))
    return replace(
        circle.wards,
        bash_writable_paths=(),
        code_writable_paths=(),
        bash_network=False,
        remove_gate=tuple(dict.fromkeys((*circle.wards.remove_gate, *writing))),
    )
