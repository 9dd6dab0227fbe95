"""The circle: a medium, gates and wards (chapter 4).

An entity can do what the medium and the gates offer, minus what the wards forbid.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.core.scoring import Scorer
from cantrip_acp.gates import registry
from cantrip_acp.gates.contract import NOTHING, Gate
from cantrip_acp.gates.function_gates import gate_options, is_function
from cantrip_acp.gates.ports import MediumBase
from cantrip_acp.gates.wards import Wards
from cantrip_acp.loom.stores.address import POSTGRES, SQLITE
from cantrip_acp.mediums import registry as mediums
from cantrip_acp.mediums.contract import Medium
from cantrip_acp.mediums.text_program import mode_line
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.json_data import FrozenDict, freeze, freeze_record
from cantrip_acp.types.checked_values import Definition, derived, short_repr
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.messages import ToolDefinition

GateLike = Gate | str | Mapping[str, Any] | Callable[..., Any]


LARGEST_DATA = 64 * 1024 * 1024
"""Maximum number of characters of text that an entity can get as data."""


class Circle(Definition):
    """What an entity can do: its medium, its gates (tools) and its wards (limits). Nothing runs until an entity acts in it.

    ``gates`` are functions (see `gates.function_gates.gate`), `Gate`s, names of known gates, or mappings of a ``name`` and
    dependencies (``{"name": "read_file", "root": "data"}``).
    ``wards`` is a list of mappings, a mapping or a `Wards`.
    ``workspace`` is the folder that relative roots and ward paths start from. It is None if the circle uses no files.
    ``folders`` are further folders outside the workspace. Wards that allow the workspace allow them too. Gates
    without a root of their own accept absolute paths in them.
    ``score`` gives rewards: a function of each turn, or a `Scorer`.
    ``data`` is any JSON value that the entity works on. It is never part of the prompt (see `gates.interaction.read_context`).

    A circle cannot be changed, and neither can the lists and mappings in it. `replace` makes a new one.

    Raises `DefinitionError` for an unknown medium, gate, gate option or ward, and for two gates with one name.
    """

    __slots__ = (
        "_definitions",
        "_gates",
        "_given_wards",
        "_presentation",
        "_tool_names",
        "_tools",
        "data",
        "declared_gates",
        "folders",
        "medium",
        "own_gates",
        "score",
        "wards",
        "workspace",
    )
    _arguments = ("medium", "gates", "wards", "workspace", "folders", "score", "data")

    medium: Medium
    wards: Wards
    workspace: Path | None
    folders: tuple[Path, ...]
    score: Scorer | None
    data: Any
    _given_wards: Any
    own_gates: tuple[Gate, ...]
    """The gates as the caller passed them: roots not resolved, and without the gate that is added for ``data``."""
    declared_gates: tuple[Gate, ...]
    """The gates with roots resolved against the workspace, before wards remove any."""

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
        if not isinstance(medium, str) and not isinstance(medium, Medium):
            raise DefinitionError(f"a circle's medium must be a name or a Medium, not {short_repr(medium)}")
        if isinstance(gates, str | Mapping) or not isinstance(gates, Iterable):
            raise DefinitionError(
                f"a circle's gates must be a list of names, mappings, functions and Gates, not {short_repr(gates)}"
            )
        place = _absolute_folder(workspace, "workspace") if workspace is not None else None
        if isinstance(folders, str | os.PathLike):
            raise DefinitionError(f"a circle's folders must be a list of folders, not {short_repr(folders)}")
        beside = tuple(_absolute_folder(folder, "folder") for folder in folders)
        # Keep the original values, so that `replace` can bind them to another workspace.
        written = wards if isinstance(wards, Wards) else freeze(_wards_as_list(wards))
        own = tuple(map(_find_gate, gates))
        seen: set[str] = set()
        for gate in own:
            if gate.name in seen:
                raise DefinitionError(f"two gates are named {gate.name!r} in one circle", rule="duplicate-gate")
            seen.add(gate.name)
        self._set(
            data=data if data is NOTHING else freeze(data),
            workspace=place,
            folders=beside,
            score=Scorer.of(score),
            medium=mediums.find(medium) if isinstance(medium, str) else medium,
            _given_wards=written,
            wards=_admit_folders(Wards.of(written, base=place), place, beside),
            own_gates=own,
        )
        bound = tuple(_bind_root(gate, place) for gate in own)
        self._set(declared_gates=bound if data is NOTHING else (*bound, *self._data_gate(seen)))

    def __repr__(self) -> str:
        return f"Circle(medium={self.medium.name!r}, gates={[g.name for g in self.declared_gates]})"

    def _init_arguments(self) -> dict[str, Any]:
        return {
            "medium": self.medium,
            "gates": self.own_gates,
            "wards": self._given_wards,
            "workspace": self.workspace,
            "folders": self.folders,
            "score": self.score,
            "data": self.data,
        }

    def _data_gate(self, names: set[str]) -> tuple[Gate, ...]:
        """The gate that returns the circle's data, for a medium without variables."""
        if isinstance(self.data, str) and len(self.data) > LARGEST_DATA:
            raise DefinitionError(
                f"an entity can be given {LARGEST_DATA:,} characters of data, not {len(self.data):,}: give a part of it, or a "
                "folder to read it from"
            )
        if self.medium.tool is not None or "read_context" in names:
            return ()
        return (registry.read_context(self.data),)

    @derived
    def gates(self) -> Mapping[str, Gate]:
        """The gates that the wards do not remove, by name."""
        removed = {registry.ALIASES.get(name, name) for name in self.wards.remove_gate}
        if self.wards.max_depth == 0:
            removed |= registry.DELEGATION
        left = [g for g in self.declared_gates if g.name not in removed]
        return FrozenDict({g.name: g if g.warded is None else g.warded(g, self.wards) for g in left})

    @property
    def removed_delegation_gates(self) -> Mapping[str, Gate]:
        """Delegation gates that ``max_depth`` 0 removes.

        A call to one of them gets the reason as its answer (COMP-6).
        """
        if self.wards.max_depth:
            return FrozenDict()
        return FrozenDict(
            {g.name: g for g in self.declared_gates if g.name in registry.DELEGATION and g.name not in self.gates}
        )

    @derived
    def definitions(self) -> tuple[ToolDefinition, ...]:
        """The gates as tool definitions, with names that providers accept (CALL-3)."""
        return tuple(
            ToolDefinition(
                name=offered, description=self.gates[name].description, parameters=self.gates[name].parameters
            )
            for offered, name in self.tool_names.items()
        )

    @derived
    def tool_names(self) -> Mapping[str, str]:
        """Maps each offered name to its gate name.

        ``.`` and ``-`` become ``_``; a number at the end makes names unique.

        Providers, Python and shells do not accept dots, but gate names may contain them.
        """
        names: dict[str, str] = {}
        for name in self.gates:
            plain = name.replace(".", "_").replace("-", "_")
            unique, n = plain, 2
            while unique in names or (unique != name and unique in self.gates):
                unique, n = f"{plain}_{n}", n + 1
            names[unique] = name
        return FrozenDict(names)

    @derived
    def tools(self) -> tuple[ToolDefinition, ...]:
        """The tools that the crystal is offered on every query. They never change during the circle's life."""
        return tuple(freeze_record(tool) for tool in self.medium.tools(self))

    @derived
    def presentation(self) -> str | None:
        """The capability block (CIRCLE-11), the same on every query. None where tool definitions are enough."""
        return self.medium.presentation(self)

    def capabilities(self, *, text_calls: bool = False) -> str | None:
        """The capability block as a crystal sees it: the presentation, and how to write programs in its mode."""
        parts = (self.presentation, mode_line(self.medium, text_calls=text_calls))
        return "\n\n".join(part for part in parts if part) or None

    def record(self) -> dict[str, Any]:
        """The circle as the loom stores it."""
        return {
            "medium": self.medium.name,
            **complete(self.medium, MediumBase).options,
            "gates": [gate.record() for gate in self.gates.values()],
            **({"data": True} if self.data is not NOTHING else {}),
            "wards": self.wards.declared(),
            "workspace": str(self.workspace) if self.workspace is not None else None,
            **({"folders": [str(folder) for folder in self.folders]} if self.folders else {}),
            **({"score": self.score.record()} if self.score is not None else {}),
        }


def _admit_folders(wards: Wards, workspace: Path | None, folders: tuple[Path, ...]) -> Wards:
    """Add the further folders to every ward that admits the whole workspace."""
    if workspace is None or not folders:
        return wards
    more = tuple(map(str, folders))
    admitted: dict[str, Any] = {
        name: tuple(dict.fromkeys((*paths, *more)))
        for name in ("bash_writable_paths", "code_readable_paths", "code_writable_paths")
        if str(workspace) in (paths := getattr(wards, name))
    }
    return replace(wards, **admitted) if admitted else wards


def _wards_as_list(wards: Any) -> Any:
    """The wards as a list, or unchanged if they are a mapping or None. Raises `DefinitionError` for anything else."""
    if wards is None or isinstance(wards, Mapping):
        return wards
    if isinstance(wards, str) or not isinstance(wards, Iterable):
        raise DefinitionError(
            f"wards must be a list of mappings such as [{{'max_turns': 10}}], not {short_repr(wards)}"
        )
    return list(wards)


def _absolute_folder(folder: Any, what: str) -> Path:
    if not isinstance(folder, str | os.PathLike) or not str(folder) or "\0" in str(folder):
        raise DefinitionError(f"a circle's {what} must be a path, not {short_repr(folder)}")
    return Path(folder).absolute()


def _find_gate(gate: GateLike) -> Gate:
    """Find the gate for a name, a mapping, a function or a `Gate`."""
    if isinstance(gate, str):
        found = registry.find(gate)
    elif isinstance(gate, Gate):
        found = gate
    elif isinstance(gate, Mapping):
        options = dict(gate)
        name = options.pop("name", None)
        if not isinstance(name, str):
            raise DefinitionError(
                f"a gate given as a mapping needs a name, as in {{'name': 'echo'}}, not {short_repr(name)}"
            )
        found = registry.find(name).configured(options)
    elif is_function(gate):
        found = Gate.of(gate, **gate_options(gate))
    else:
        raise DefinitionError(f"a gate must be a name, a mapping, a function or a Gate, not {short_repr(gate)}")
    missing = [name for name in found.needs if name not in found.dependencies]
    if missing:
        raise DefinitionError(
            f"gate {found.name!r} needs {', '.join(map(repr, missing))}: bind it, or give it in the gate's mapping"
        )
    return found


def _bind_root(gate: Gate, workspace: Path | None) -> Gate:
    root = gate.dependencies.get("root")
    if root is None or workspace is None:
        return gate
    return replace(gate, dependencies={**gate.dependencies, "root": workspace.joinpath(root)})


def check_reference(reference: Any, circle: Circle, file: str | None) -> None:
    """Check the expected answer of a cast, and that the entity cannot read the ``file`` that holds it.

    ``file`` is a path, or the address of a loom. Raises `DefinitionError`.
    """
    if reference is None:
        return
    try:
        msgspec.json.encode(reference)
    except (TypeError, ValueError, RecursionError) as error:
        raise DefinitionError(f"a reference is JSON data: {error}", where="reference") from None
    if file is None or file.startswith(POSTGRES):
        return
    path = Path(file.removeprefix(SQLITE)).resolve()
    for folder in _readable_folders(circle):
        if path.is_relative_to(folder.resolve()):
            raise DefinitionError(
                f"{path} holds the expected answer of the cast, and the entity could read it there ({folder} is open to it); "
                "keep that file in another folder",
                where="reference",
            )


def _readable_folders(circle: Circle) -> Iterator[Path]:
    """The folders that commands, cells and file gates of a circle can read."""
    workspace = [] if circle.workspace is None else [circle.workspace]
    roots = [Path(root) for gate in circle.declared_gates if (root := gate.dependencies.get("root")) is not None]
    yield from roots
    if circle.medium.tool is not None or roots:
        wards = circle.wards
        yield from (*workspace, *circle.folders)
        yield from map(Path, (*wards.bash_writable_paths, *wards.code_readable_paths, *wards.code_writable_paths))
