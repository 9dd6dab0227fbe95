"""The definition of a cantrip: crystal, call, circle and settings (§1.4). A checked value; it runs nothing."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Self

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.core.definition.result_type import with_result_type
from cantrip_acp.core.folding.policy import Folding
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.gates.registry import DELEGATION
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.stores.address import is_address
from cantrip_acp.mediums.text_program import writes_calls
from cantrip_acp.text.json_data import FrozenDict, freeze
from cantrip_acp.text.python_types import PythonType
from cantrip_acp.types.call import Call
from cantrip_acp.types.checked_values import (
    Definition,
    check_flag,
    check_keys,
    check_mapping,
    check_text,
    derived,
    short_repr,
)
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from pathlib import Path

    from cantrip_acp.gates.contract import GateSource, Interceptor
    from cantrip_acp.types.context_block import Contributor

NEVER_DONE = (
    "tool_choice: none cannot be used with require_done_tool: the entity could never call done, so no cast would end "
    "by itself (LOOP-2)"
)

ABSENT: Any = object()
"""The value of an argument that was left out, where None would mean something else."""


class CantripDefinition(Definition):
    """The values that a cantrip is made of, checked. The public class `core.cantrip.Cantrip` adds casting and forking.

    Without ``call``, the call is empty. Without ``loom``, all casts share one loom in memory.
    ``interceptors`` may answer in place of any gate. ``contributors`` add context to each cast. Both belong to the
    host, never to the entity.
    ``folding`` says when earlier turns are folded; the default is at 80 % of the crystal's window (PROD-4).
    ``crystals`` are the named crystals that children may use (COMP-7).
    ``sources`` give each entity more gates when it starts, such as the tools of MCP servers
    (`cantrip_acp.gates.mcp.servers.McpServers`).
    ``inputs`` are the files of the workspace on which results depend, as patterns relative to it (``src/**``): `cast_batch` does
    not take the result of an earlier run if one of them has changed since.
    ``scores`` is False if the circle's scoring function must not be called.
    ``result_type`` is the type of results: a pydantic model, a dataclass, a TypedDict, or a type such as ``list[int]``. Its
    schema is that of the answer of ``done``. An answer that does not fit is an error that the entity reads, and only
    ``done`` ends a cast (except for ``str``). A cast that ends without such a result raises `NoResult`.

    No field can be changed; `replace` makes a new cantrip. Raises `DefinitionError`, checked in the order crystal,
    call, circle: "cantrip requires a crystal", "cantrip requires a call", "cantrip requires a circle" (CANTRIP-1),
    "circle must have a done gate" (CIRCLE-1), "cantrip must have at least one truncation ward" (CIRCLE-2, LOOP-2,
    CANTRIP-3).
    """

    __slots__ = (
        "_id",
        "_records",
        "_shown",
        "call",
        "circle",
        "contributors",
        "crystal",
        "crystals",
        "folding",
        "inputs",
        "interceptors",
        "loom",
        "loom_settings",
        "name",
        "require_done",
        "result_type",
        "retry",
        "scores",
        "sources",
    )
    _arguments = (
        "crystal",
        "call",
        "circle",
        "loom",
        "retry",
        "interceptors",
        "contributors",
        "name",
        "loom_settings",
        "folding",
        "crystals",
        "sources",
        "scores",
        "inputs",
        "result_type",
    )

    crystal: Crystal
    call: Call
    circle: Circle
    loom: Loom
    """The loom that records its casts."""
    retry: RetryPolicy
    interceptors: tuple[Interceptor, ...]
    contributors: tuple[Contributor, ...]
    name: str | None
    loom_settings: Mapping[str, Any]
    """The recipe's settings for its loom (``store``, ``fsync``, …). The front end that opens the loom reads them."""
    folding: Folding
    crystals: Mapping[str, Crystal]
    sources: tuple[GateSource, ...]
    inputs: tuple[str, ...]
    scores: bool
    """Whether the circle's scoring function is called. A replay sets it to False."""
    result_type: PythonType[Any] | None
    require_done: bool

    def __init__(
        self,
        crystal: Crystal | None = None,
        call: Call | Mapping[str, Any] | None = ABSENT,
        circle: Circle | None = None,
        *,
        loom: Loom | None = None,
        retry: RetryPolicy | Mapping[str, Any] | None = None,
        interceptors: Sequence[Interceptor] = (),
        contributors: Sequence[Contributor] = (),
        name: str | None = None,
        loom_settings: Mapping[str, Any] | None = None,
        folding: Folding | Mapping[str, Any] | None = None,
        crystals: Mapping[str, Crystal] | None = None,
        sources: Sequence[GateSource] = (),
        scores: bool = True,
        inputs: Sequence[str] = (),
        result_type: Any = None,
    ) -> None:
        if crystal is None:
            raise DefinitionError(
                'cantrip requires a crystal: the model that is to act, such as model="ollama:qwen3" (CANTRIP-1)',
                rule="CANTRIP-1",
            )
        if not isinstance(crystal, Crystal):
            raise DefinitionError(
                f"cantrip requires a crystal with name, model, context_window and query, not {type(crystal).__name__}",
                rule="CANTRIP-1",
            )
        if call is None:
            raise DefinitionError(
                "cantrip requires a call; leave it out for an empty one (CANTRIP-1)", rule="CANTRIP-1"
            )
        called = Call() if call is ABSENT else Call.of(call)
        if circle is None:
            raise DefinitionError(
                'cantrip requires a circle: give max_turns=10, and what it may use, such as gates=[…] or medium="code" '
                "(CANTRIP-1)",
                rule="CANTRIP-1",
            )
        if not isinstance(circle, Circle):
            raise DefinitionError(f"cantrip requires a circle, not {short_repr(circle)} (CANTRIP-1)", rule="CANTRIP-1")
        if loom is not None and not isinstance(loom, Loom):
            raise DefinitionError(f"cantrip.loom must be a Loom, such as Loom.open(path), not {short_repr(loom)}")
        named: Mapping[str, Crystal] = _check_crystals(crystals)
        kind = result_type
        if kind is not None and not isinstance(kind, PythonType):
            kind = PythonType(kind, "result_type")
        # Words are no result of another type, so they cannot end a cast.
        typed = kind is not None and kind.kind is not str
        require_done = called.require_done_tool or circle.wards.require_done_tool or typed
        _validate(circle, require_done)
        if called.tool_choice == "none" and require_done:
            raise DefinitionError(NEVER_DONE, rule="LOOP-2")
        circle = with_result_type(circle, kind)
        self._set(
            crystal=crystal,
            call=called,
            circle=_bind_child_crystals(circle, named),
            loom=Loom.memory() if loom is None else loom,
            retry=RetryPolicy.of(retry),
            interceptors=_check_functions(interceptors, "interceptors"),
            contributors=_check_functions(contributors, "contributors"),
            name=None if name is None else check_text(name, "cantrip.name"),
            loom_settings=_loom_settings(loom_settings),
            folding=Folding.of(folding),
            crystals=named,
            sources=_check_sources(sources),
            scores=check_flag(scores, "cantrip.scores"),
            inputs=_check_inputs(inputs, circle),
            result_type=kind,
            require_done=require_done,
        )

    def __repr__(self) -> str:
        return f"Cantrip({self.name or self.id}, {self.crystal.model}, {self.circle!r})"

    def __reduce__(self) -> NoReturn:
        # Its crystal has connections and a key, its loom a lock, its gates may be closures: none of them goes into a file.
        raise TypeError(
            f"{type(self).__name__} cannot be pickled, because it has the model's connections and key, and the loom. Make it in "
            "each process instead, in the function that the process runs, such as with Cantrip.load(RECIPE). Threads, forks and "
            "cast_batch can use one cantrip, and results (CastResult) can be pickled"
        )

    @derived
    def records(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """Call and circle as the loom stores them."""
        return freeze(self.call.record()), freeze(self.circle.record())

    @derived
    def shown(self) -> Mapping[str, Any]:
        """The capability block and the tools that a crystal sees, as the loom stores them.

        Stored because their wording may change with this package's version.
        """
        tools = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in self.circle.tools]
        text = self.circle.capabilities(text_calls=writes_calls(self.crystal))
        return FrozenDict({"capabilities": text, "tools": freeze(tools)})

    @derived
    def id(self) -> str:
        """``cantrip_`` and 16 hex digits; the same for the same call and circle.

        The crystal does not change it, with one exception: a crystal that writes its calls as text gets another
        capability block.
        """
        text = json.dumps(self.records, sort_keys=True, ensure_ascii=True, default=str)
        text += "\ntext calls" if self.circle.medium.tool is not None and writes_calls(self.crystal) else ""
        return f"cantrip_{hashlib.sha256(text.encode()).hexdigest()[:16]}"

    def with_crystal(self, crystal: Crystal) -> Self:
        """The same cantrip with another crystal (§2.2)."""
        return self.replace(crystal=crystal)

    def for_session(self, folders: Sequence[Path], interceptor: Interceptor | None = None) -> Self:
        """The same cantrip for a session: with further folders, and with one more interceptor, which is asked last."""
        changes: dict[str, Any] = {"circle": self.circle.replace(folders=folders)} if folders else {}
        if interceptor is not None:
            changes["interceptors"] = (*self.interceptors, interceptor)
        return self.replace(**changes) if changes else self


def _bind_child_crystals(circle: Circle, crystals: Mapping[str, Crystal]) -> Circle:
    """The circle, with delegation gates that name the crystals children may use."""
    names = tuple(crystals)
    gates = [
        g.bind(crystals=names) if g.name in DELEGATION and tuple(g.dependencies.get("crystals") or ()) != names else g
        for g in circle.own_gates
    ]
    return circle if all(a is b for a, b in zip(gates, circle.own_gates, strict=True)) else circle.replace(gates=gates)


def _check_crystals(crystals: Any) -> Mapping[str, Crystal]:
    if crystals is None:
        return FrozenDict()
    found: Mapping[str, Crystal] = check_mapping(crystals, "cantrip.crystals")
    if not isinstance(found, dict):
        # A mapping that makes its crystals when they are looked up. Checking them here would make them all.
        return found
    for name, crystal in found.items():
        check_text(name, "a name in cantrip.crystals", blank=False)
        if not isinstance(crystal, Crystal):
            raise DefinitionError(f"cantrip.crystals[{name!r}] must be a crystal, not {short_repr(crystal)}")
    return FrozenDict(found)


def _loom_settings(settings: Any) -> Mapping[str, Any]:
    if settings is None:
        return FrozenDict()
    found = check_mapping(settings, "cantrip.loom_settings")
    check_keys(found, ("store", "fsync", "snapshots", "files"), "loom")
    for name in ("fsync", "snapshots", "files"):
        if name in found:
            check_flag(found[name], f"loom.{name}")
    if "store" in found:
        store = check_text(found["store"], "loom.store", blank=False)
        if store not in ("memory", "jsonl") and not is_address(store):
            raise DefinitionError(
                f"loom.store must be memory, jsonl, sqlite:FILE or postgresql://…, not {short_repr(store)}"
            )
    frozen: Mapping[str, Any] = freeze(dict(found))
    return frozen


def _check_inputs(given: Any, circle: Circle) -> tuple[str, ...]:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DefinitionError(f"cantrip.inputs must be a list of patterns such as src/**, not {short_repr(given)}")
    found = tuple(check_text(each, f"cantrip.inputs[{number}]", blank=False) for number, each in enumerate(given))
    if found and circle.workspace is None:
        raise DefinitionError("cantrip.inputs names files of the workspace, but the circle has none: give workspace=…")
    return found


def _check_functions(given: Any, what: str) -> tuple[Any, ...]:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DefinitionError(f"cantrip.{what} must be a list of functions, not {short_repr(given)}")
    found = tuple(given)
    for index, each in enumerate(found):
        if not callable(each):
            raise DefinitionError(f"cantrip.{what}[{index}] must be a function, not {short_repr(each)}")
    return found


def _check_sources(given: Any) -> tuple[Any, ...]:
    if isinstance(given, str | Mapping) or not isinstance(given, Iterable):
        raise DefinitionError(f"cantrip.sources must be a list of sources of gates, not {short_repr(given)}")
    found = tuple(given)
    for index, each in enumerate(found):
        if not callable(getattr(each, "open", None)):
            raise DefinitionError(f"cantrip.sources[{index}] must have a method open, and {short_repr(each)} has none")
    return found


def _validate(circle: Circle, require_done: bool) -> None:
    if "done" not in circle.gates:
        if require_done:
            raise DefinitionError(
                "cantrip with require_done must have a done gate: add 'done' to the circle's gates", rule="LOOP-2"
            )
        raise DefinitionError("circle must have a done gate: add 'done' to its gates (CIRCLE-1)", rule="CIRCLE-1")
    if "answer" not in circle.gates["done"].properties and not circle.gates["done"].properties:
        raise DefinitionError("the done gate must accept at least one argument, the answer (CIRCLE-8)", rule="CIRCLE-8")
    if circle.wards.max_turns is None:
        raise DefinitionError(
            "cantrip must have at least one truncation ward: in Python give max_turns=10, in a recipe add "
            "{max_turns: 10} to the circle's wards (CIRCLE-2, LOOP-2)",
            rule="CIRCLE-2",
        )
