"""The circle: a medium, gates and wards (chapter 4). What is left of medium and gates after the wards is what an entity can do."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from copy import copy
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from cantrip_acp.crystals.contract import ToolDefinition
from cantrip_acp.errors import DefinitionError
from cantrip_acp.gates import registry
from cantrip_acp.gates.contract import Gate
from cantrip_acp.mediums import registry as mediums
from cantrip_acp.mediums.contract import Medium
from cantrip_acp.mediums.text_program import mode_line
from cantrip_acp.scoring import Scorer
from cantrip_acp.wards import Wards, compose

GateLike = Gate | str | Mapping[str, Any]

NOTHING: Any = type("Nothing", (), {"__repr__": lambda self: "NOTHING", "__bool__": lambda self: False})()
"""The ``data`` of a circle that has none; None would be data."""


LARGEST_DATA = 64 * 1024 * 1024
"""Characters of text that an entity can be given as data."""


class Circle:
    """A circle is a value: nothing runs until an entity acts in it.

    ``gates`` are `Gate`s, names of known gates, or mappings of a ``name`` and dependencies (``{"name": "read_file",
    "root": "data"}``). ``wards`` is a list of mappings, a mapping or a `Wards`. ``workspace`` is the folder that relative
    roots and ward paths are taken from; None where the circle reaches no files. ``folders`` are beside the workspace and
    reached as it is: wards that admit the workspace admit them, and gates without a root of their own take their absolute paths.
    ``score`` rewards what happens here: a function of each turn, or a `Scorer`.
    ``data`` is what the entity works on, any JSON value: never in its prompt, but where it works (`delegation.given`).

    Raises `DefinitionError` for an unknown medium, gate or ward and for two gates of one name.
    """

    def __init__(
        self,
        medium: str | Medium = "conversation",
        gates: Iterable[GateLike] = ("done",),
        wards: Wards | Mapping[str, Any] | Iterable[Mapping[str, Any]] = (),
        *,
        workspace: Path | str | None = None,
        folders: Iterable[Path | str] = (),
        score: Scorer | Callable[[Any], Any] | None = None,
        data: Any = NOTHING,
    ) -> None:
        self.data = data
        self.workspace = Path(workspace).absolute() if workspace is not None else None
        self.score = Scorer.of(score)
        self.folders = tuple(Path(folder).absolute() for folder in folders)
        self.medium: Medium = mediums.find(medium) if isinstance(medium, str) else medium
        self.wards = _opened_to(Wards.of(wards, base=self.workspace), self.workspace, self.folders)
        self.declared_gates: tuple[Gate, ...] = tuple(self._resolve(g) for g in gates)
        seen: set[str] = set()
        for gate in self.declared_gates:
            if gate.name in seen:
                raise DefinitionError(f"two gates are named {gate.name!r} in one circle")
            seen.add(gate.name)
        if data is not NOTHING:
            self._offer_data()

    def __repr__(self) -> str:
        return f"Circle(medium={self.medium.name!r}, gates={[g.name for g in self.declared_gates]})"

    def _resolve(self, gate: GateLike) -> Gate:
        if isinstance(gate, str):
            resolved = registry.find(gate)
        elif isinstance(gate, Gate):
            resolved = gate
        elif isinstance(gate, Mapping):
            options = dict(gate)
            name = options.pop("name", None)
            if not isinstance(name, str):
                raise DefinitionError(f"a gate given as a mapping needs a name: {gate!r}")
            resolved = registry.find(name).bind(**options)
        else:
            raise DefinitionError(f"a gate is a name, a mapping or a Gate, not {type(gate).__name__}")
        root = resolved.dependencies.get("root")
        if root is not None and self.workspace is not None:
            resolved = resolved.bind(root=self.workspace.joinpath(root))
        return resolved

    def _offer_data(self) -> None:
        """A medium without a place for data has a gate that shows it."""
        if isinstance(self.data, str) and len(self.data) > LARGEST_DATA:
            raise DefinitionError(
                f"an entity can be given {LARGEST_DATA:,} characters of data, not {len(self.data):,}: give a part of it, or a "
                "folder to read it from"
            )
        if self.medium.tool is None and all(gate.name != "read_context" for gate in self.declared_gates):
            from cantrip_acp.delegation.given import read_context

            self.declared_gates = (*self.declared_gates, read_context(self.data))

    def given(self, data: Any) -> Circle:
        """The same circle with data to work on, where it has none yet."""
        made = copy(self)
        made.data = data
        for derived in (
            "presentation",
            *(("gates", "definitions", "tool_names", "tools") if self.medium.tool is None else ()),
        ):
            made.__dict__.pop(derived, None)
        made._offer_data()
        return made

    def with_gates(self, gates: Iterable[Gate]) -> Circle:
        """The same circle with further gates, behind its own; `DefinitionError` where one has a name that is taken."""
        made = copy(self)
        made.declared_gates = (*self.declared_gates, *gates)
        names = [gate.name for gate in made.declared_gates]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise DefinitionError(f"two gates are named {twice!r} in one circle")
        for derived in ("gates", "definitions", "tool_names", "tools", "presentation", "construction"):
            made.__dict__.pop(derived, None)
        return made

    def naming(self, crystals: Iterable[str]) -> Circle:
        """The same circle, whose delegation gates say which crystals children may be given."""
        names = tuple(crystals)
        told = [g.name in registry.DELEGATION and g.dependencies.get("crystals") != names for g in self.declared_gates]
        if not any(told):
            return self
        made = copy(self)
        made.declared_gates = tuple(
            g.bind(crystals=names) if new else g for g, new in zip(self.declared_gates, told, strict=True)
        )
        for derived in ("gates", "definitions", "tool_names", "tools", "presentation", "construction"):
            made.__dict__.pop(derived, None)
        return made

    def within(self, wards: Wards) -> Circle:
        """The same circle held to further wards (WARD-1)."""
        return Circle(
            self.medium,
            self.declared_gates,
            compose(self.wards, wards),
            workspace=self.workspace,
            folders=self.folders,
            score=self.score,
            data=self.data,
        )

    def moved(self, old: str, new: str) -> Circle:
        """The same circle in another place: what lies in the folder ``old`` (a real path) is taken from ``new`` instead.

        That is the workspace, the roots that gates are bound to, and the paths of wards; all else stays where it is.
        """

        def there(path: Any) -> Any:
            real = os.path.realpath(path)
            inside = real == old or real.startswith(old.rstrip("/") + "/")
            return type(path)(new + real[len(old.rstrip("/")) :]) if inside else path

        gates = [
            gate.bind(root=there(gate.dependencies["root"])) if gate.dependencies.get("root") is not None else gate
            for gate in self.declared_gates
        ]
        circle = copy(self)
        for name, value in vars(Circle).items():
            # Made of the rest when they are first asked for.
            if isinstance(value, cached_property):
                circle.__dict__.pop(name, None)
        circle.workspace = None if self.workspace is None else there(self.workspace)
        circle.folders = tuple(there(folder) for folder in self.folders)
        circle.wards = self.wards.moved(there)
        circle.declared_gates = tuple(gates)
        return circle

    @cached_property
    def gates(self) -> Mapping[str, Gate]:
        """The gates that the wards leave, by name."""
        removed = {registry.ALIASES.get(name, name) for name in self.wards.remove_gate}
        if self.wards.max_depth == 0:
            removed |= registry.DELEGATION
        left = [g for g in self.declared_gates if g.name not in removed]
        return {g.name: g if g.warded is None else g.warded(g, self.wards) for g in left}

    @property
    def withheld(self) -> Mapping[str, Gate]:
        """Delegation gates that ``max_depth`` 0 takes away: whoever calls one by name is told why it is not there (COMP-6)."""
        if self.wards.max_depth:
            return {}
        return {g.name: g for g in self.declared_gates if g.name in registry.DELEGATION and g.name not in self.gates}

    @cached_property
    def construction(self) -> Mapping[str, Gate]:
        """What children from values come to, where the medium has values and the circle ``call_agent``; never shown as tools."""
        if "call_agent" not in self.gates:
            return {}
        from cantrip_acp.delegation.construction import construction_of

        return construction_of(self)

    @cached_property
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The gates as tool definitions, under names that providers take (CALL-3)."""
        return tuple(
            ToolDefinition(name=shown, description=self.gates[name].description, parameters=self.gates[name].parameters)
            for shown, name in self.tool_names.items()
        )

    @cached_property
    def tool_names(self) -> Mapping[str, str]:
        """Shown name to gate name: ``.`` and ``-`` become ``_``, made unique by a number at the end.

        Providers, Python and shells take no dots; gate names may have them.
        """
        shown: dict[str, str] = {}
        for name in self.gates:
            plain = name.replace(".", "_").replace("-", "_")
            unique, n = plain, 2
            while unique in shown or (unique != name and unique in self.gates):
                unique, n = f"{plain}_{n}", n + 1
            shown[unique] = name
        return shown

    @cached_property
    def tools(self) -> tuple[ToolDefinition, ...]:
        """What the crystal is offered on every query; fixed for the circle's life."""
        return self.medium.tools(self)

    @cached_property
    def presentation(self) -> str | None:
        """The capability block (CIRCLE-11), the same on every query; None where tool definitions alone serve."""
        return self.medium.presentation(self)

    def capabilities(self, *, text_calls: bool = False) -> str | None:
        """The capability block as a crystal sees it: the presentation, and how programs are given in its mode."""
        parts = (self.presentation, mode_line(self.medium, text_calls=text_calls))
        return "\n\n".join(part for part in parts if part) or None

    def record(self) -> dict[str, Any]:
        """What the loom keeps of it."""
        return {
            "medium": self.medium.name,
            **getattr(self.medium, "options", {}),
            "gates": [gate.record() for gate in self.gates.values()],
            **({"data": True} if self.data is not NOTHING else {}),
            "wards": self.wards.declared(),
            "workspace": str(self.workspace) if self.workspace is not None else None,
            **({"folders": [str(folder) for folder in self.folders]} if self.folders else {}),
            **({"score": self.score.record()} if self.score is not None else {}),
        }


def _opened_to(wards: Wards, workspace: Path | None, folders: tuple[Path, ...]) -> Wards:
    """The wards with the further folders wherever they admit the workspace as a whole."""
    if workspace is None or not folders:
        return wards
    more = tuple(map(str, folders))
    admitted: dict[str, Any] = {
        name: tuple(dict.fromkeys((*paths, *more)))
        for name in ("bash_writable_paths", "code_readable_paths", "code_writable_paths")
        if str(workspace) in (paths := getattr(wards, name))
    }
    return replace(wards, **admitted) if admitted else wards
