"""Gate contract: the types for a gate's declaration, its call and its reply (§4.3, CIRCLE-10).

A gate is declared once. Its dependencies are bound when the circle is made. Entities only give arguments. All mediums call
gates through `core.casting.gate_executor`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from msgspec import Struct

from cantrip_acp.gates.function_gates import gate_from_function
from cantrip_acp.text.json_data import FrozenDict, freeze, thaw
from cantrip_acp.text.json_schema import Schema
from cantrip_acp.text.redaction import looks_secret
from cantrip_acp.types.checked_values import nearest, short_repr
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.events import PlanEntry
from cantrip_acp.types.messages import Attachment
from cantrip_acp.types.records import Diff, Location

if TYPE_CHECKING:
    from pathlib import Path

    from cantrip_acp.gates.known_texts import KnownTexts
    from cantrip_acp.gates.ports import MediumView, TurnContext
    from cantrip_acp.gates.services import Services
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.types.messages import ToolDefinition
    from cantrip_acp.types.records import GateRecord

KINDS = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "other")
"""The kinds of calls. Editors show each kind differently."""

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(?:[.\-][A-Za-z0-9_]+)*\Z")


class _Nothing:
    def __repr__(self) -> str:
        return "NOTHING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "NOTHING"


NOTHING: Any = _Nothing()
"""The value of ``data`` in a circle without data. None is not used for this, because None is valid data."""


@dataclass(frozen=True, slots=True)
class GateContext:
    """The data that a handler gets besides its arguments: bound dependencies, wards, folders, and ids of the call."""

    dependencies: Mapping[str, Any] = field(repr=False)
    wards: Wards
    workspace: Path | None
    entity_id: str
    cast_id: str
    trace_id: str
    call_id: str
    folders: tuple[Path, ...] = ()
    """More folders, which the session can use like the workspace."""
    turn: TurnContext | None = None
    """The turn of the call; None outside a cast."""
    known: KnownTexts | None = field(default=None, repr=False)
    """The texts of files that the entity has seen; None outside a cast."""
    services: Services | None = field(default=None, repr=False)
    """The entity's commands that go on beside its turns; None if it can have none."""


class GateReply(Struct, frozen=True):
    """The result of a call, and data for editors. ``result`` (JSON data) and ``attachments`` are the observation.

    ``attachments`` are images (`Attachment.of`). A model without image input gets a note instead. ``annotations`` are
    for interceptors and the loom; the entity never sees them. ``plan`` is sent to readers as a `PlanChanged` event after
    the call.
    """

    result: Any
    locations: tuple[Location, ...] = ()
    diffs: tuple[Diff, ...] = ()
    title: str | None = None
    is_error: bool = False
    annotations: Mapping[str, Any] = {}
    plan: tuple[PlanEntry, ...] | None = None
    attachments: tuple[Attachment, ...] = ()


@dataclass(frozen=True, slots=True)
class GateInvocation:
    """One running call. Its arguments are already parsed and validated."""

    gate: Gate
    args: Mapping[str, Any]
    call_id: str
    via: str | None
    context: GateContext
    locations: tuple[Location, ...] = ()


class GateInputs(Struct, frozen=True):
    """What the result of a call depends on besides its arguments, so that an earlier result can be reused.

    - ``folders``: all files in them, except ignored ones.
    - ``programs``: programs and folders of packages, by size and times.
    - ``variables``: names of environment variables.
    - ``more``: JSON data, such as the command line.
    """

    folders: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()
    more: Any = None


Handler = Callable[[Mapping[str, Any], GateContext], Any]
"""Takes arguments and context. Returns JSON data, a `GateReply`, or an awaitable of either. Raises `GateError` if it fails."""

Proceed = Callable[[GateInvocation], Awaitable[GateReply]]
Interceptor = Callable[[GateInvocation, Proceed], Awaitable[GateReply]]
"""One step in the executor's chain. It calls ``proceed``, or answers instead of the gate (permission, receipt, replay).

It may also be an `InterceptorBase`, a `ProgramInterceptor` or an `EditInterceptor`.
"""


class InterceptorBase:
    """The defaults for the optional members of an interceptor."""

    innermost: bool = False
    """Whether the interceptor answers only calls that all others let through."""

    def without_checkpoints(self, why: str) -> None:
        """Called once if no files are kept, so that nothing can be undone."""


@runtime_checkable
class ProgramInterceptor(Protocol):
    """An interceptor that also decides about the programs of the medium."""

    async def program(self, call: ProgramCall) -> GateReply | None:
        """Allow a program before it runs (None), or refuse it: the reply has the reason and becomes the observation."""
        ...


@runtime_checkable
class EditInterceptor(Protocol):
    """An interceptor that also learns which edits of files an utterance will make, before the first call of it runs."""

    def coming(self, invocations: Sequence[GateInvocation], entity_id: str, depth: int) -> None:
        """Note edits that are about to happen. ``depth`` is 0 for an entity that is not a child."""
        ...


class ProgramCall(Struct, frozen=True):
    """A command or cell that is about to run. ``call_id`` is its id in events, ``tool`` is the medium's own tool."""

    tool: str
    text: str
    call_id: str
    circle: CircleView
    entity_id: str
    cast_id: str
    depth: int


class GateSession(Protocol):
    """The state of a gate for one entity, from its first call to the entity's end."""

    def call(self, args: Mapping[str, Any], context: GateContext) -> Any: ...

    async def close(self) -> None:
        """End everything that the session started. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class Gate:
    """A gate's declaration.

    - ``parameters``: a JSON Schema of type object. The order of its properties is the order of positional arguments.
    - ``options``: the dependencies that a circle may set by name (``{"name": "read_file", "root": "data"}``), each with its
      JSON Schema. Other names are refused. None: the names in ``dependencies`` may be set.
    - ``needs``: the names of required dependencies.
    - ``ephemeral``: True shows a placeholder instead of the result from the next query (D-010). ``"after_use"`` shows the
      result to one query, and then the placeholder (§7.2).
    - ``pure``: the same arguments always give the same result.
    - ``inputs``: returns what the result of a call depends on besides its arguments. A result with the same inputs is
      reused, and then the call has no effect. None if this call must run. It is called in a thread.
    - ``writes``: a call changes something outside the entity.
    - ``main_text``: the name of the argument that is set from a command's standard input.
    - ``json_input``: a command's standard input may be a JSON object with all arguments.
    - ``blocking``: the handler is synchronous and may take long, so it runs in a thread.
    - ``preview``: returns locations and a title from the arguments, before the call.
    - ``proposes``: returns the file changes that the call would make, for a permission request. It is called in a thread,
      unless it is a coroutine function. It raises `GateError` if the call would fail even with permission (for example, if
      the path is outside the root). Then this is the call's error, and the user is not asked.
    - ``runs``: returns the command line that a call would run, for a permission request. It is called in a thread.
    - ``covers``: returns the scope of a lasting permission for a call, if that is not a folder: a pattern that is equal for
      all covered calls, and its text for people ("from example.org").
    - ``opens``: makes the session of a gate with state for each entity. The session's `call` is then the handler.
    - ``recorded``: returns the arguments for loom and events, without data that must not be stored.
    - ``warded``: returns the gate adapted to a circle's wards (for example its description). It raises `DefinitionError`
      for wards that the gate cannot use.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    handler: Handler = field(repr=False)
    # A dependency may be a key or a header, so it must not be in a repr.
    dependencies: Mapping[str, Any] = field(default_factory=dict, hash=False, repr=False)
    ephemeral: bool | Literal["after_use"] = False
    pure: bool = False
    inputs: Callable[[Mapping[str, Any], GateContext], GateInputs | None] | None = None
    writes: bool = False
    kind: str = "other"
    main_text: str | None = None
    blocking: bool = False
    preview: Callable[[Mapping[str, Any], GateContext], GateReply] | None = None
    proposes: Callable[[Mapping[str, Any], GateContext], tuple[Diff, ...] | Awaitable[tuple[Diff, ...]]] | None = None
    runs: Callable[[Mapping[str, Any], GateContext], str] | None = None
    covers: Callable[[Mapping[str, Any]], tuple[str, str]] | None = None
    opens: Callable[[GateRegistrar, CircleView], GateSession] | None = None
    warded: Callable[[Gate, Wards], Gate] | None = None
    recorded: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None
    json_input: bool = False
    options: Mapping[str, Mapping[str, Any]] | None = field(default=None, hash=False, repr=False)
    needs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.parameters, Mapping):
            raise DefinitionError(
                f"gate {self.name!r}: parameters must be a JSON Schema, not {short_repr(self.parameters)}"
            )
        if not isinstance(self.dependencies, Mapping):
            raise DefinitionError(
                f"gate {self.name!r}: dependencies must be a mapping, not {short_repr(self.dependencies)}"
            )
        # Freeze them, so that later changes by the caller have no effect here.
        object.__setattr__(self, "parameters", freeze(self.parameters))
        object.__setattr__(self, "dependencies", freeze(self.dependencies))
        object.__setattr__(self, "options", freeze(self.options))
        if self.ephemeral != "after_use" and not isinstance(self.ephemeral, bool):
            raise DefinitionError(
                f"gate {self.name!r}: ephemeral must be true, false or after_use, not {short_repr(self.ephemeral)}"
            )
        if not isinstance(self.name, str) or not _NAME.match(self.name):
            raise DefinitionError(f"gate name {self.name!r} must be letters, digits, '_', with '.' or '-' inside")
        if self.kind not in KINDS:
            raise DefinitionError(f"gate {self.name!r}: kind {self.kind!r} is not one of {', '.join(KINDS)}")
        if self.parameters.get("type", "object") != "object":
            raise DefinitionError(f"gate {self.name!r}: parameters must be a JSON Schema of type object")

    def bind(self, **dependencies: Any) -> Gate:
        """Return the gate with more bound dependencies, which entities cannot change (CIRCLE-10).

        Raises `DefinitionError` for an unknown option, or a value that does not fit its schema.
        """
        if self.options is not None:
            self._check_options(dependencies, (*self.options, *self.dependencies))
        return replace(self, dependencies={**self.dependencies, **dependencies})

    def configured(self, options: Mapping[str, Any]) -> Gate:
        """Return the gate with the options of a circle's mapping: ``ephemeral``, and the options that the gate declares.

        Raises `DefinitionError` for an unknown option (with the nearest known name), and for a value that does not fit.
        """
        given = dict(options)
        ephemeral = given.pop("ephemeral", False)
        known = tuple(self.options if self.options is not None else self.dependencies)
        self._check_options(given, known)
        gate = replace(self, dependencies={**self.dependencies, **given}) if given else self
        if ephemeral is False:
            return gate
        return replace(gate, ephemeral=ephemeral)

    def _check_options(self, given: Mapping[str, Any], known: Sequence[str]) -> None:
        for name, value in given.items():
            if name not in known:
                raise DefinitionError(
                    f"unknown option {name!r} of gate {self.name!r}{nearest(name, (*known, 'ephemeral'))}",
                    rule="unknown-key",
                )
            schema = (self.options or {}).get(name)
            if schema:
                plain = os.fspath(value) if isinstance(value, os.PathLike) else thaw(value)
                try:
                    fits = Schema(thaw(schema)).is_valid(plain)
                except (ValueError, TypeError, RecursionError):
                    fits = False
                if isinstance(value, float) and value != value:
                    fits = False
                if not fits:
                    seen = "" if looks_secret(name) else f", not {short_repr(value)}"
                    wanted = schema.get("description") or f"what its schema says ({dict(schema)})"
                    raise DefinitionError(f"option {name!r} of gate {self.name!r} must be {wanted}{seen}")

    @property
    def properties(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.parameters.get("properties", FrozenDict())
        return found

    @property
    def required(self) -> tuple[str, ...]:
        """The names of the arguments that a call must have."""
        return tuple(self.parameters.get("required", ()))

    def signature(self) -> str:
        """The signature for descriptions, such as ``read_file(path, offset?, limit?)``."""
        parts = [name if name in self.required else f"{name}?" for name in self.properties]
        return f"{self.name}({', '.join(parts)})"

    def record(self) -> dict[str, Any]:
        """The declaration for the loom. It has no values of dependencies, because they may be secret."""
        flags = {k: getattr(self, k) for k in ("ephemeral", "pure", "writes") if getattr(self, k)}
        return {"name": self.name, "description": self.description, "parameters": dict(self.parameters), **flags}

    @classmethod
    def of(cls, function: Callable[..., Any], *, name: str | None = None, **options: Any) -> Gate:
        """Make a gate from a function. The schema comes from its annotations, the description from its docstring.

        Positional parameters are the entity's arguments. Keyword-only parameters are dependencies, which must be bound; a
        keyword-only parameter named ``context`` gets the `GateContext`. The decorator `function_gates.gate` is shorter.

        >>> def shout(text: str, times: int = 1) -> str:
        ...     "Say it loudly."
        ...     return text.upper() * times
        >>> Gate.of(shout).signature()
        'shout(text, times?)'
        """
        return gate_from_function(cls, function, name, options)


class CircleView(Protocol):
    """The attributes of a circle (`core.definition.circle.Circle`) that gates and mediums use."""

    @property
    def medium(self) -> MediumView: ...

    @property
    def wards(self) -> Wards: ...

    @property
    def workspace(self) -> Path | None: ...

    @property
    def folders(self) -> tuple[Path, ...]: ...

    @property
    def data(self) -> Any: ...

    @property
    def gates(self) -> Mapping[str, Gate]: ...

    @property
    def removed_delegation_gates(self) -> Mapping[str, Gate]: ...

    @property
    def definitions(self) -> tuple[ToolDefinition, ...]: ...

    @property
    def tool_names(self) -> Mapping[str, str]: ...

    @property
    def own_gates(self) -> tuple[Gate, ...]: ...

    @property
    def declared_gates(self) -> tuple[Gate, ...]: ...


class GateRegistrar(Protocol):
    """Adds gates to an entity while it runs (`gates.dynamic_gates.DynamicGates`)."""

    @property
    def gates(self) -> Mapping[str, Gate]:
        """The gates added so far."""
        ...

    @property
    def reserved(self) -> Mapping[str, str]:
        """Names that an added gate cannot have, with the reasons."""
        ...

    def name_problem(self, name: str) -> str | None:
        """Say why no gate of this name can be added; None if it can."""
        ...

    def change(self, added: Mapping[str, Gate], removed: frozenset[str] | set[str] = frozenset()) -> None:
        """Remove some gates and add others in one step."""
        ...


class OpenedSource(Protocol):
    """An opened source: its ``gates``, and ``problems`` as messages for the user. `close` may be called twice."""

    @property
    def gates(self) -> Sequence[Gate]: ...

    @property
    def problems(self) -> Sequence[str]: ...

    async def close(self) -> None: ...


class GateSource(Protocol):
    """A source of gates that are known only after a connection, such as an MCP server.

    It is an immutable value; any number of entities may open it. It may also have the members of `SourceBase`.
    """

    async def open(self, circle: CircleView) -> OpenedSource:
        """Open the source within its own time limit. Raises `CantripError` if that fails and the source is required."""
        ...


class SourceBase:
    """The defaults for the optional members of a gate source: what the user is told it may do."""

    servers: Sequence[Any] = ()
    """The MCP servers that it starts or connects to (`gates.mcp.declaration.McpServer`)."""
    runs_programs: bool = False
    """Whether its gates run programs that the substrate stores."""


def as_text(value: Any) -> str:
    """Render a gate's result for the crystal: text stays unchanged, other data becomes JSON."""
    if isinstance(value, str):
        return value
    import json

    return json.dumps(value, ensure_ascii=False, default=str)


def render_record(record: GateRecord) -> str:
    """Render a gate record for the crystal."""
    return as_text(record.result)
