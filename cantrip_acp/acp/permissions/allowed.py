"""What a cantrip may do without a question: a table of writes, network, children and servers, from its definition alone.

Everything that starts in the sandbox gets the wards of the circle, and a child's wards are never looser (`gates.wards`).
So the table follows from the circle and its sources.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from msgspec import Struct

from cantrip_acp.gates.contract import SourceBase
from cantrip_acp.text.defaults import complete

if TYPE_CHECKING:
    from cantrip_acp.core.definition.cantrip_definition import CantripDefinition
    from cantrip_acp.core.definition.circle import Circle
    from cantrip_acp.gates.contract import Gate
    from cantrip_acp.gates.mcp.declaration import McpServer


class Allowed(Struct, frozen=True):
    """The rows of the table: what each may do, as texts. An empty row means that nothing is possible.

    ``own``: gates that are Python code of the recipe or the program; they run outside the sandbox.
    """

    writes: tuple[str, ...]
    network: tuple[str, ...]
    children: tuple[str, ...]
    servers: tuple[str, ...]
    own: tuple[str, ...] = ()
    programs: str = ""
    """The programs that run in the sandbox, such as ``commands``. Empty if the medium runs none."""

    @property
    def nothing(self) -> bool:
        """Whether nothing can be changed or reached."""
        return not (self.writes or self.network or self.children or self.servers or self.own or self.programs)

    def rows(self) -> list[tuple[str, str]]:
        """The rows, each with its title."""
        rows = [
            ("writes", "; ".join(self.writes) or "nothing"),
            ("network", "; ".join(self.network) or "none"),
            ("children", "; ".join(self.children) or "none"),
            ("servers", "; ".join(self.servers) or "none"),
        ]
        return [*rows, *([("own gates", "; ".join(self.own))] if self.own else [])]

    def record(self) -> dict[str, Any]:
        """The table as data, for ``--json``."""
        return {
            title.replace(" ", "_"): list(texts)
            for title, texts in (
                ("writes", self.writes),
                ("network", self.network),
                ("children", self.children),
                ("servers", self.servers),
                ("own gates", self.own),
            )
        }


def allowed_of(cantrip: CantripDefinition, circle: Circle, hosts: Sequence[str] = ()) -> Allowed:
    """The table of a cantrip whose circle is this one. ``hosts`` are the hosts of ``--allow-host``."""
    return allowed(
        circle,
        [server for source in cantrip.sources for server in complete(source, SourceBase).servers],
        hosts=hosts,
        stored_programs=any(complete(source, SourceBase).runs_programs for source in cantrip.sources),
    )


def allowed(
    circle: Circle,
    servers: Iterable[McpServer] = (),
    *,
    hosts: Sequence[str] = (),
    stored_programs: bool = False,
    gate_files: Sequence[str] = (),
) -> Allowed:
    """The table of a circle.

    ``hosts``: those of ``--allow-host``. ``stored_programs``: scripts of skills and pinned programs are gates.
    ``gate_files``: Python files with gates that are not loaded.
    """
    from cantrip_acp.gates import registry

    wards, medium, gates = circle.wards, circle.medium, circle.gates
    bash, code = _paths(circle, wards.bash_writable_paths), _paths(circle, wards.code_writable_paths)
    net = _network(wards.bash_network)
    in_sandbox = [
        *(["commands"] if medium.name == "bash" else []),
        *(name for name in registry.SANDBOXED if name in gates),
        *(["scripts of skills and pinned programs"] if stored_programs else []),
    ]
    writes = [f"{_and(in_sandbox)} in {bash}"] if in_sandbox and bash else []
    network = [f"{_and(in_sandbox)}: {net}"] if in_sandbox and net else []
    writes += [f"Python in {code}"] if medium.name == "code" and code else []
    if medium.name == "bash" and wards.bash_home == "persistent":
        writes.append("a home folder of its own, which is kept")
    if medium.tool is not None and medium.name not in _PROGRAMS:
        writes.append(f"programs of the medium {medium.name}, which another package has")
    writes += _gate_writes(circle)
    if any(gate.kind == "fetch" for gate in gates.values()):
        further = [*(wards.bash_network if isinstance(wards.bash_network, tuple) else ()), *hosts]
        where = "any public host" if wards.bash_network is True else "hosts that the intent names by their address"
        named = f" and {', '.join(further)}" if further and wards.bash_network is not True else ""
        network.append(f"{_and(g.name for g in gates.values() if g.kind == 'fetch')}: {where}{named}")
    known = {*registry.BUILT_IN, *registry.DELEGATION, "read_context"}
    own = [name for name in gates if name not in known]
    return Allowed(
        tuple(writes),
        tuple(network),
        _children(circle, bash, code, net),
        tuple(_server(circle, server, bash, net) for server in servers),
        (f"{_and([*own, *gate_files])}: Python on this machine, outside the sandbox",) if own or gate_files else (),
        _PROGRAMS.get(medium.name, "programs") if medium.tool is not None else "",
    )


_PROGRAMS = {"bash": "commands", "code": "Python", "monty": "restricted Python"}


def _gate_writes(circle: Circle) -> list[str]:
    """The files that gates of the host may write, or the names of gates that write elsewhere."""
    from cantrip_acp.acp.sessions.options.modes import changes_something
    from cantrip_acp.gates import registry

    roots: dict[str, list[str]] = {}
    others: list[str] = []
    for gate in circle.gates.values():
        if (
            not changes_something(gate)
            or gate.kind == "fetch"
            or gate.name in (*registry.SANDBOXED, *registry.DELEGATION)
        ):
            continue
        if registry.reaches_files(gate.name):
            roots.setdefault(_root(circle, gate), []).append(gate.name)
        elif gate.name in registry.BUILT_IN:
            others.append(gate.name)
    found = [f"{_and(names)} in {root}" for root, names in roots.items()]
    return [*found, *([f"calls of {_and(others)}"] if others else [])]


def _root(circle: Circle, gate: Gate) -> str:
    root = gate.dependencies.get("root")
    if root is None:
        folders = [*([circle.workspace] if circle.workspace is not None else []), *circle.folders]
        return _paths(circle, map(str, folders)) or "no folder"
    base = str(circle.workspace) if circle.workspace is not None else ""
    return _paths(circle, [os.path.normpath(os.path.join(base, root))])


def _children(circle: Circle, bash: str, code: str, net: str) -> tuple[str, ...]:
    """The additional abilities of children whose medium is not the parent's. They never exceed the wards of the circle."""
    from cantrip_acp.gates import registry

    if not any(gate.name in registry.DELEGATION for gate in circle.gates.values()):
        return ()
    own, listed = circle.medium.name, circle.wards.child_medium_allowlist
    depth = circle.wards.max_depth
    found = ["with no more than this" if depth == 1 else f"up to {depth} deep, with no more than this"]
    mediums = {own, *(("bash", "code") if listed is None else listed)}
    if "bash" in mediums and own != "bash":
        found += [f"a shell of theirs writes in {bash}"] if bash else []
        found += [f"a shell of theirs reaches {net}"] if net else []
    if "code" in mediums and own != "code":
        found += [f"their Python writes in {code}"] if code else []
    return tuple(found)


def _server(circle: Circle, server: McpServer, bash: str, net: str) -> str:
    if server.url:
        return f"{server.name}: at {urlsplit(server.url).hostname}, which does what its tools do"
    if not server.sandboxed:
        return f"{server.name}: runs as you, outside the sandbox, with all your files and the network"
    writes = f"writes in {bash}" if bash else "writes no files of yours"
    return f"{server.name}: in the sandbox, {writes}, {f'reaches {net}' if net else 'no network'}"


def _network(network: bool | tuple[str, ...]) -> str:
    return "the whole network" if network is True else ", ".join(network) if network else ""


def _paths(circle: Circle, paths: Iterable[str]) -> str:
    own = str(circle.workspace)
    return ", ".join(f"{path} (the workspace)" if path == own else path for path in paths)


def _and(words: Iterable[str]) -> str:
    return ", ".join(words)
