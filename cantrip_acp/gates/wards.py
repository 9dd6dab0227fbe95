"""Wards: limits that a circle sets, and how two sets of them combine (§4.4, WARD-1, D-009).

Most wards take something away; a few name what the sandbox opens, which is closed without them. `Wards` holds the value in
force of every ward, including defaults. `compose` combines a parent's wards with its child's; no field of the result is
looser than in either. All functions here are pure.
"""

from __future__ import annotations

import math
import os.path
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

from cantrip_acp.types.checked_values import nearest, short_repr
from cantrip_acp.types.errors import DefinitionError

Rule = Literal["min", "or", "and", "paths", "allow", "deny", "home"]


def _ward(default: Any, rule: Rule, *, low: int = 0, kind: str = "integer", meaning: str = "") -> Any:
    return field(default=default, metadata={"rule": rule, "low": low, "kind": kind, "meaning": meaning})


@dataclass(frozen=True, slots=True)
class Wards:
    """The value in force of every ward. None means not limited (numbers) or not restricted (allow lists).

    Make one with `Wards.of`, which checks names and values.
    """

    max_turns: int | None = _ward(None, "min", low=1, meaning="queries in one cast; required")
    max_depth: int = _ward(1, "min", meaning="how deep children may nest; 0 removes the delegation gates")
    max_seconds: float | None = _ward(None, "min", kind="number", meaning="wall-clock seconds of one cast")
    max_total_tokens: int | None = _ward(None, "min", low=1, meaning="tokens, prompt and completion, of one cast")
    max_cost_usd: float | None = _ward(None, "min", kind="number", meaning="US dollars of one cast")
    max_children_total: int | None = _ward(None, "min", meaning="children in all, those of children among them")
    max_concurrent_children: int = _ward(8, "min", low=1, meaning="children that run at once")

    code_timeout_ms: int = _ward(120_000, "min", low=1, meaning="milliseconds of one cell")
    code_memory_mb: int = _ward(2_048, "min", low=16, meaning="MiB of a code worker")
    code_max_output_bytes: int = _ward(100_000, "min", low=1, meaning="bytes kept of a cell's output")
    bash_timeout_ms: int = _ward(120_000, "min", low=1, meaning="milliseconds of one command")
    bash_max_output_bytes: int = _ward(100_000, "min", low=1, meaning="bytes kept of a command's output")
    sandbox_max_processes: int | None = _ward(
        None,
        "min",
        low=8,
        meaning="processes at once inside the sandbox; without it 128 for each processor, at least 1024",
    )
    sandbox_cpu_percent: int | None = _ward(
        None, "min", low=1, meaning="processor time inside the sandbox, in per cent of one processor"
    )

    max_services: int = _ward(8, "min", meaning="services (the gate start) that run at once")

    require_done_tool: bool = _ward(
        False, "or", kind="boolean", meaning="only done ends a cast, prose does not (LOOP-6)"
    )

    bash_network: bool | tuple[str, ...] = _ward(False, "and", kind="network", meaning="false, true or a list of hosts")
    bash_submit: bool = _ward(False, "and", kind="boolean", meaning="a last line 'SUBMIT: text' ends the cast")

    bash_writable_paths: tuple[str, ...] = _ward((), "paths", kind="paths", meaning="what commands may write")
    allow_protected: tuple[str, ...] = _ward(
        (), "allow", kind="protected", meaning="protected files that may be written, by the names of the table"
    )
    git_writes: bool = _ward(
        False,
        "and",
        kind="boolean",
        meaning="git add, commit, branch and so on work in commands; settings and hooks stay read-only",
    )
    code_readable_paths: tuple[str, ...] = _ward((), "paths", kind="paths", meaning="what cells may read")
    code_writable_paths: tuple[str, ...] = _ward((), "paths", kind="paths", meaning="what cells may write")
    hidden_paths: tuple[str, ...] = _ward(
        (),
        "deny",
        kind="paths",
        meaning="files and folders that commands, cells and gates do not see, such as private or *.key",
    )
    child_medium_allowlist: tuple[str, ...] | None = _ward(None, "allow", kind="names", meaning="mediums for children")
    child_gate_allowlist: tuple[str, ...] | None = _ward(None, "allow", kind="names", meaning="gates children may have")

    remove_gate: tuple[str, ...] = _ward((), "deny", kind="names", meaning="gates taken away")
    child_gate_denylist: tuple[str, ...] = _ward((), "deny", kind="names", meaning="gates children must not have")

    child_max_turns_ceiling: int | None = _ward(
        None, "min", low=1, meaning="a child declares max_turns at or below this"
    )
    child_max_depth_ceiling: int | None = _ward(None, "min", meaning="a child declares max_depth at or below this")

    bash_home: Literal["private", "persistent"] = _ward("private", "home", kind="home", meaning="private or persistent")
    # If none of these four is given, nothing may be compiled. A module must pass each one that is given.
    allow_compile_modules: tuple[str, ...] | None = _ward(
        None, "allow", kind="names", meaning="names of modules that compile_and_load may take"
    )
    allow_compile_paths: tuple[str, ...] | None = _ward(
        None, "paths", kind="paths", meaning="folders that a loaded module's file may lie in"
    )
    allow_compile_sha256: tuple[str, ...] | None = _ward(
        None, "allow", kind="names", meaning="SHA-256 hashes of the sources of modules"
    )
    allow_compile_signers: tuple[str, ...] | None = _ward(
        None, "allow", kind="names", meaning="Ed25519 public keys, one of which signed a module"
    )

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is f.default or (type(value) is type(f.default) and value == f.default):
                continue
            object.__setattr__(self, f.name, _check(f.name, value, None))

    @classmethod
    def of(
        cls, wards: Wards | Mapping[str, Any] | Iterable[Mapping[str, Any]] | None, *, base: Path | None = None
    ) -> Wards:
        """Make wards from a mapping, or from a list of mappings as recipes write them.

        A ward that is named twice is combined with itself.

        Relative paths start from ``base`` (the session's folder); the word ``workspace`` means ``base`` itself.
        Raises `DefinitionError` for an unknown name (with the nearest known one) and for an invalid value.
        """
        if isinstance(wards, Wards):
            return wards
        if wards is None:
            return cls()
        given: Any = wards
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise DefinitionError(
                f"wards must be a list of mappings such as [{{'max_turns': 10}}], not {short_repr(given)}"
            )
        items = [wards] if isinstance(wards, Mapping) else list(wards)
        values: dict[str, Any] = {}
        for index, item in enumerate(items):
            if not isinstance(item, Mapping):
                raise DefinitionError(f"ward {index} must be a mapping such as {{max_turns: 10}}, not {item!r}")
            for name, raw in item.items():
                value = _check(name, raw, base)
                values[name] = _combine(WARDS[name]["rule"], values[name], value) if name in values else value
        return cls(**values)

    @property
    def compiles(self) -> bool:
        """Whether any ward for ``compile_and_load`` is set. Without one nothing may be compiled."""
        return any(getattr(self, name) is not None for name in COMPILE)

    def moved(self, there: Callable[[str], str]) -> Wards:
        """A copy with ``there`` applied to every path, for a circle that moves to another folder."""
        named = [name for name, about in WARDS.items() if about["kind"] == "paths" and getattr(self, name) is not None]
        paths: dict[str, Any] = {name: tuple(map(there, getattr(self, name))) for name in named}
        return replace(self, **paths)

    def declared(self) -> dict[str, Any]:
        """The wards that differ from their defaults, as plain data."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value != f.default:
                out[f.name] = list(value) if isinstance(value, tuple) else value
        return out


COMPILE = ("allow_compile_modules", "allow_compile_paths", "allow_compile_sha256", "allow_compile_signers")
"""The wards that control ``compile_and_load``."""

WARDS: dict[str, Mapping[str, Any]] = {f.name: {**f.metadata, "default": f.default} for f in fields(Wards)}
"""Maps each ward's name to its composition rule, kind, lower bound, default and meaning."""


def compose(parent: Wards, child: Wards) -> Wards:
    """The wards of a child's circle: the stricter value of the two in every field (WARD-1, D-009).

    Numbers take the minimum, restrictions the logical or, permissions the logical and (host lists intersect). Allow
    lists take the intersection (a child's path inside a parent's path counts), deny lists the union.
    """
    values = {name: _combine(spec["rule"], getattr(parent, name), getattr(child, name)) for name, spec in WARDS.items()}
    if not (parent.compiles and child.compiles):
        # One of them forbids all compiling. The other one's permissions must not open that.
        values.update(dict.fromkeys(COMPILE, ()) if parent.compiles or child.compiles else {})
    return Wards(**values)


def _combine(rule: Rule, a: Any, b: Any) -> Any:
    match rule:
        case "min":
            return b if a is None else a if b is None else min(a, b)
        case "or":
            return a or b
        case "and":
            if a is True:
                return b
            if b is True:
                return a
            if a is False or b is False:
                return False
            return tuple(host for host in b if host in a)
        case "paths":
            if a is None or b is None:
                return b if a is None else a
            inside_a = [p for p in b if any(_within(p, q) for q in a)]
            inside_b = [q for q in a if any(_within(q, p) for p in b)]
            return tuple(dict.fromkeys(inside_a + inside_b))
        case "allow":
            return b if a is None else a if b is None else tuple(name for name in b if name in a)
        case "deny":
            return tuple(dict.fromkeys((*a, *b)))
        case "home":
            return "persistent" if a == b == "persistent" else "private"


def _within(path: str, root: str) -> bool:
    return path == root or root == "/" or path.startswith(root.rstrip("/") + "/")


def _check(name: str, raw: Any, base: Path | None) -> Any:
    spec = WARDS.get(name)
    if spec is None:
        raise DefinitionError(f"unknown ward {name!r}{nearest(name, WARDS)}", rule="unknown-key")
    kind = spec["kind"]
    if kind in ("integer", "number"):
        good = isinstance(raw, int if kind == "integer" else (int, float)) and not isinstance(raw, bool)
        if not good or not math.isfinite(raw) or raw < spec["low"] or (kind == "number" and raw <= 0):
            least = f"of at least {spec['low']}" if kind == "integer" else "above 0"
            raise DefinitionError(
                f"ward {name} must be {'an ' if kind == 'integer' else 'a '}{kind} {least}, not {raw!r}"
            )
        return raw
    if kind == "boolean":
        if not isinstance(raw, bool):
            raise DefinitionError(f"ward {name} must be true or false, not {raw!r}")
        return raw
    if kind == "home":
        if raw not in ("private", "persistent"):
            raise DefinitionError(f"ward {name} must be private or persistent, not {raw!r}")
        return raw
    if kind == "network" and isinstance(raw, bool):
        return raw
    items = [raw] if isinstance(raw, str | os.PathLike | dict) else raw
    if kind == "network" and isinstance(items, list | tuple):
        items = [host_entry(item) for item in items]
    if not isinstance(items, list | tuple) or not all(isinstance(i, str | os.PathLike) and str(i) for i in items):
        wanted = "true, false or a list of hosts" if kind == "network" else "a list of texts"
        raise DefinitionError(f"ward {name} must be {wanted}, not {raw!r}")
    if kind == "protected":
        from cantrip_acp.files.protected_paths import ALLOWABLE

        for item in map(str, items):
            if item not in ALLOWABLE:
                raise DefinitionError(
                    f"ward {name}: {item!r} is not a protected name that a recipe can allow{nearest(item, ALLOWABLE)}"
                )
    if kind == "paths":
        return tuple(dict.fromkeys(_absolute(str(i), base) for i in items))
    if kind == "network":
        return tuple(dict.fromkeys(str(i).lower() for i in items))
    return tuple(dict.fromkeys(str(i) for i in items))


def host_entry(item: Any) -> Any:
    """The text of an item of a host list: ``private:mirror.corp`` for ``{host: mirror.corp, private: true}``."""
    if (
        isinstance(item, dict)
        and isinstance(item.get("host"), str)
        and item["host"]
        and set(item) <= {"host", "private"}
    ):
        if isinstance(item.get("private", False), bool):
            return f"private:{item['host']}" if item.get("private") else item["host"]
    return item


def _absolute(path: str, base: Path | None) -> str:
    if path == "workspace":
        path = "."
    path = os.path.expanduser(path)
    if os.path.isabs(path):
        return os.path.normpath(path)
    if base is None:
        # Relative to nothing yet: the path is kept as it is until there is a session's folder.
        return os.path.normpath(path)
    return os.path.normpath(os.path.join(base, path))
