"""Gate registry: finds gates by name, built-in ones and those of other packages (entry points ``cantrip_acp.gates``).

A gate's module is imported when a circle names the gate.
"""

from __future__ import annotations

import difflib
import importlib
from functools import cache
from typing import Any

from cantrip_acp.gates.contract import CircleView, Gate
from cantrip_acp.types.errors import DefinitionError, describe, interrupts

BUILT_IN: dict[str, str] = {
    "done": "cantrip_acp.gates.interaction.done_echo:DONE",
    "echo": "cantrip_acp.gates.interaction.done_echo:ECHO",
    "read_file": "cantrip_acp.gates.files.read_file:READ_FILE",
    "write_file": "cantrip_acp.gates.files.write_file:WRITE_FILE",
    "edit_file": "cantrip_acp.gates.files.edit_file:EDIT_FILE",
    "list_dir": "cantrip_acp.gates.files.list_dir:LIST_DIR",
    "search": "cantrip_acp.gates.search.search:SEARCH",
    "fetch": "cantrip_acp.gates.web.fetch:FETCH",
    "git_status": "cantrip_acp.gates.git.git_read:GIT_STATUS",
    "git_diff": "cantrip_acp.gates.git.git_read:GIT_DIFF",
    "git_log": "cantrip_acp.gates.git.git_read:GIT_LOG",
    "git_show": "cantrip_acp.gates.git.git_read:GIT_SHOW",
    "git_commit": "cantrip_acp.gates.git.git_commit:GIT_COMMIT",
    "run_tests": "cantrip_acp.gates.testing.run_tests:RUN_TESTS",
    "plan": "cantrip_acp.gates.interaction.plan:PLAN",
    "ask_user": "cantrip_acp.gates.interaction.ask_user:ASK_USER",
    "shell": "cantrip_acp.gates.interaction.shell:SHELL",
    "start": "cantrip_acp.gates.services.service_gates:START",
    "output": "cantrip_acp.gates.services.service_gates:OUTPUT",
    "stop": "cantrip_acp.gates.services.service_gates:STOP",
    "client_terminal": "cantrip_acp.gates.interaction.client_terminal:CLIENT_TERMINAL",
    "compile_and_load": "cantrip_acp.gates.loaded.compile_and_load:COMPILE_AND_LOAD",
    "call_agent": "cantrip_acp.core.delegation.call_agent:CALL_AGENT",
    "call_agent_batch": "cantrip_acp.core.delegation.call_agent:CALL_AGENT_BATCH",
}

ALIASES: dict[str, str] = {"call_entity": "call_agent", "call_entity_batch": "call_agent_batch"}
"""Other names that definitions may use for a gate (D-002)."""

DELEGATION: frozenset[str] = frozenset({"call_agent", "call_agent_batch"})
"""The gates that are removed at ``max_depth`` 0 (COMP-6, D-009)."""

SANDBOXED: tuple[str, ...] = ("shell", "run_tests", "start")
"""The gates that run commands in the sandbox of the circle, with the wards of its commands."""

CHILD_FUNCTIONS: frozenset[str] = frozenset(
    {"cantrip.cast", "cantrip.cast_batch", "cantrip.summon", "cantrip.send", "cantrip.dismiss"}
)
"""The gates behind `Cantrip(...)` and similar functions in code cells (`core.delegation.child_values`). No circle declares them,
and they are never offered as tools.
"""
_CHILD_FUNCTIONS_TARGET = "cantrip_acp.core.delegation.child_values:CHILD_FUNCTIONS"
_READ_CONTEXT_TARGET = "cantrip_acp.gates.interaction.read_context:read_context"


RESERVED: frozenset[str] = frozenset(
    {*ALIASES, *DELEGATION, "read_context", "fetch", "plan", "git_commit", "run_tests"}
)
"""Names with a fixed meaning. An entity's own gates cannot use them, even if the circle does not have the gate."""


FILE_OPTIONS: dict[str, dict[str, Any]] = {
    "root": {
        "type": "string",
        "pattern": r"^[^\x00]*[^ \t\r\n\x00][^\x00]*$",
        "description": "a folder, which the gate cannot leave",
    },
    "absolute_is_root": {"type": "boolean", "description": "true or false"},
    "max_bytes": {"type": "integer", "minimum": 1, "description": "a whole number of at least 1"},
}
"""The options of all gates that work below a root folder."""

TIMEOUT: dict[str, Any] = {"type": "number", "exclusiveMinimum": 0, "description": "a number of seconds above 0"}

_FILES = frozenset({"read_file", "write_file", "edit_file", "list_dir", "search"})


def reaches_files(name: str) -> bool:
    """Whether a built-in gate works below a root folder."""
    return name in _FILES


def names() -> list[str]:
    """All gate names that a circle may use, sorted."""
    return sorted({*BUILT_IN, *installed()})


def find(name: str) -> Gate:
    """Find a gate by name. Raises `DefinitionError` with the nearest known name."""
    name = ALIASES.get(name, name)
    target = BUILT_IN.get(name)
    if target is not None:
        found = _load(target)
    else:
        entry = installed().get(name)
        if entry is None:
            known = names()
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise DefinitionError(f"unknown gate {name!r}{hint} (known: {', '.join(known)})", rule="unknown-name")
        found = load_entry(entry)
    if not isinstance(found, Gate):
        raise DefinitionError(f"gate {name!r} is registered as {type(found).__name__}, not as a Gate")
    return found


def _load(target: str) -> Any:
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)


def read_context(data: Any) -> Gate:
    """Make the gate that shows a circle's data, for a medium without variables."""
    gate: Gate = _load(_READ_CONTEXT_TARGET)(data)
    return gate


def child_functions(circle: CircleView) -> frozenset[str]:
    """The functions of `CHILD_FUNCTIONS` that the code cells of a circle have.

    Without ``call_agent``, or in a medium without values, there are none. Without ``call_agent_batch`` there are no
    batches.
    """
    gates = circle.gates
    if "call_agent" not in gates or not getattr(circle.medium, "has_values", False):
        return frozenset()
    if CHILD_FUNCTIONS & gates.keys():
        # A user's own gate has one of these names. Leave ours out, so that the two are not confused.
        return frozenset()
    removed = set(circle.wards.remove_gate)
    if "call_agent_batch" not in gates:
        removed.add("cantrip.cast_batch")
    return CHILD_FUNCTIONS - removed


def child_function(circle: CircleView, name: str) -> Gate | None:
    """Find the gate behind one of the functions of `child_functions`; None if the circle does not have it."""
    if name not in CHILD_FUNCTIONS or name not in child_functions(circle):
        return None
    gate: Gate = _load(_CHILD_FUNCTIONS_TARGET)[name]
    return gate


def load_entry(entry: Any) -> Any:
    """Load the entry point of another package. Raises `DefinitionError` if it cannot be imported."""
    try:
        return entry.load()
    except BaseException as error:
        if interrupts(error):
            raise
        package = f" of {entry.dist.name}" if entry.dist is not None else ""
        raise DefinitionError(
            f"{entry.name!r} cannot be loaded: the entry point {entry.value!r}{package} failed with {describe(error)}"
        ) from error


@cache
def installed() -> dict[str, Any]:
    """The entry points of installed packages, by name. Scanning is slow, and most circles use only built-in gates."""
    from importlib.metadata import entry_points

    return {e.name: e for e in entry_points(group="cantrip_acp.gates")}
