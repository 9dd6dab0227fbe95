"""Builds a `Cantrip` from a recipe: its crystal, call, gates, circle and loom.

The recipe language has features that this version of the package lacks. They are reported here with name and position.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.core.folding.policy import Folding
from cantrip_acp.crystals.contract import Crystal
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.files.installation import install_command
from cantrip_acp.files.paths import config_dir, private, state_dir, substrate_address
from cantrip_acp.gates import registry as gates
from cantrip_acp.gates.contract import Gate
from cantrip_acp.gates.wards import Wards
from cantrip_acp.loom.stores import address
from cantrip_acp.mediums import registry as mediums
from cantrip_acp.recipes.build import crystal_factory, crystals
from cantrip_acp.recipes.parse.cross_field import gate_name
from cantrip_acp.recipes.parse.problem_positions import KeyPath
from cantrip_acp.recipes.recipe import Recipe
from cantrip_acp.types.call import Call
from cantrip_acp.types.errors import DefinitionError, MissingVariable, RecipeError

if TYPE_CHECKING:
    from cantrip_acp.core.cantrip import Cantrip
    from cantrip_acp.core.scoring import Scorer
    from cantrip_acp.gates.contract import GateSource
    from cantrip_acp.gates.mcp.declaration import McpServer
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.mediums.contract import Medium
    from cantrip_acp.substrate.view import SessionView
    from cantrip_acp.text.python_types import SchemaType
    from cantrip_acp.types.context_block import Contributor

NOT_YET = "not available in this version yet"


def build(
    recipe: Recipe, *, workspace: Path | None = None, loom: Loom | None = None, crystal: Crystal | None = None
) -> Cantrip:
    """Build the cantrip of a recipe, with a new crystal. Gate roots and ward paths are relative to ``workspace``.

    Raises `RecipeError` with the position of an unsupported feature or a missing file, and `DefinitionError` or
    `MissingKey` if no crystal is available.
    """
    from cantrip_acp.core.cantrip import Cantrip

    missing = [
        str(recipe.problem(path, message))
        for path, message in lacking(recipe)
        # The given crystal replaces the recipe's own.
        if crystal is None or path[0] != "crystal"
    ]
    if missing:
        raise RecipeError(missing)
    if workspace is not None and (recipe.source != "built-in" or (workspace / ".cantrip").is_dir()):
        from cantrip_acp.recipes import trust

        trust.guard(workspace, recipe)
    # Keep the order crystal, call, circle: `Cantrip` checks its parts in the same order.
    chosen = crystal if crystal is not None else crystals.crystal_for(recipe)
    call = _call(recipe)
    view = _knowledge(recipe, workspace)
    known: Sequence[GateSource] = () if view is None else (view, *_programs(recipe, view))
    circle = _circle(recipe, workspace)
    wrong = unfit(recipe, circle)
    if wrong is not None:
        raise wrong
    answers: Any = result_type(recipe)
    try:
        return Cantrip(
            chosen,
            call,
            circle,
            loom=loom,
            retry=_retry(recipe),
            name=recipe.name,
            loom_settings=_loom_settings(recipe),
            folding=_folding(recipe),
            contributors=(*(() if view is None else (view,)), *_recorder(recipe, workspace, view)),
            crystals=crystals.NamedCrystals(recipe),
            sources=(*_servers(recipe), *known),
            inputs=recipe.data.get("inputs", ()) if workspace is not None else (),
            result_type=answers,
        )
    except RecipeError:
        raise
    except DefinitionError as error:
        raise recipe.error(("circle",), str(error), at_key=True, rule=error.rule) from None


def lacking(recipe: Recipe) -> Iterator[tuple[KeyPath, str]]:
    """The features of the recipe that this version lacks, as key and message.

    Built-in names are checked first, because searching the installed packages takes longer than the rest of the start.
    """
    data = recipe.data
    store = data.get("loom", {}).get("store", "jsonl")
    if store.startswith(address.POSTGRES) and find_spec("psycopg") is None:
        yield ("loom", "store"), f"a loom in PostgreSQL needs psycopg: {install_command('postgres')}"
    if data.get("mcp_servers"):
        from cantrip_acp.gates.mcp.servers import sdk_missing

        if (missing := sdk_missing()) is not None:
            yield ("mcp_servers",), missing
    circle = data["circle"]
    medium = circle.get("medium", "conversation")
    if medium not in mediums.BUILT_IN and medium not in mediums.names():
        yield ("circle", "medium"), f"medium {medium} is {NOT_YET} (available: {', '.join(mediums.names())})"
    for index, gate in enumerate(circle["gates"]):
        if isinstance(gate, dict) and "python" in gate:
            continue
        name = gate if isinstance(gate, str) else gate["name"]
        if name not in gates.BUILT_IN and name not in gates.names():
            yield ("circle", "gates", index), f"gate {name} is {NOT_YET} (available: {', '.join(gates.names())})"
    given: list[tuple[KeyPath, Any]] = [(("crystals", name), each) for name, each in data.get("crystals", {}).items()]
    if data.get("crystal") is not None:
        given.append((("crystal",), data["crystal"]))
    for place, crystal in given:
        provider = crystal_factory.options_of(crystal)["provider"]
        if provider not in crystal_factory.BUILT_IN and provider not in crystal_factory.available():
            here = ", ".join(crystal_factory.available())
            where = place if isinstance(crystal, str) else (*place, "provider")
            yield where, f"provider {provider} is {NOT_YET} (available: {here})"


def _loom_settings(recipe: Recipe) -> dict[str, Any]:
    """The recipe's ``loom`` settings. A database file is relative to the recipe's folder, like all files in a recipe."""
    settings = dict(recipe.data.get("loom", {}))
    if "store" in settings:
        settings["store"] = address.resolve_address(settings["store"], recipe.path.parent)
    return settings


def _call(recipe: Recipe) -> Call:
    call: dict[str, Any] = dict(recipe.data.get("call", {}))
    file = call.pop("system_prompt_file", None)
    if file is not None:
        place = ("call", "system_prompt_file")
        try:
            raw = recipe.files.read(recipe.path_of(file))
            call["system_prompt"] = raw.decode("utf-8-sig")
        except DefinitionError as error:
            raise recipe.error(place, f"the system prompt {error}") from None
        except UnicodeDecodeError as error:
            raise recipe.error(place, f"{recipe.path_of(file)} is not UTF-8 (byte {error.start})") from None
    if "stop" in call:
        call["stop"] = tuple(call["stop"])
    return Call(**call)


def result_type(recipe: Recipe) -> SchemaType | None:
    """The type of results that the recipe asks for. Raises `RecipeError` with the position."""
    given = recipe.data.get("result_schema")
    if given is None:
        return None
    from cantrip_acp.recipes.parse import yaml_text
    from cantrip_acp.text.python_types import SchemaType

    place = ("result_schema",)
    if isinstance(given, str):
        path = recipe.path_of(given)
        try:
            # JSON is YAML.
            given, _ = yaml_text.read(recipe.files.read(path).decode("utf-8-sig"), str(path))
        except (RecipeError, UnicodeDecodeError) as error:
            raise recipe.error(place, f"the file of the schema: {error}") from None
        except DefinitionError as error:
            raise recipe.error(place, f"the file of the schema {error}") from None
    try:
        return SchemaType(given, "")
    except DefinitionError as error:
        raise recipe.error(place, str(error)) from None


def _circle(recipe: Recipe, workspace: Path | None, *, gate_files: bool = True) -> Circle:
    """Build the circle. If ``gate_files``, the recipe's Python files (gates, a scoring function) run.

    Use this only for a trusted recipe.
    """
    circle = recipe.data["circle"]
    bound: list[Gate | str] = []
    taken = {name for gate in circle["gates"] if (name := gate_name(gate)) is not None}
    for index, gate in enumerate(circle["gates"]):
        if isinstance(gate, dict) and "python" in gate:
            bound += _from_file(recipe, index, gate["python"], taken) if gate_files else []
        else:
            bound.append(_gate(gate))
    score = _scorer(recipe) if gate_files else None
    return Circle(_medium(circle), bound, circle["wards"], workspace=workspace, score=score)


def _medium(circle: dict[str, Any]) -> Medium | str:
    name: str = circle.get("medium", "conversation")
    options: dict[str, Any] = {}
    if "code_python" in circle:
        options["python"] = circle["code_python"]
    if circle.get("loom"):
        options["loom"] = True
    return mediums.find(name, **options) if options else name


def unfit(recipe: Recipe, circle: Circle) -> RecipeError | None:
    """The error if the recipe's interpreter for cells cannot be used in this circle's workspace, else None."""
    if "code_python" not in recipe.data["circle"]:
        return None
    from cantrip_acp.mediums.code.medium import CodeMedium

    if isinstance(circle.medium, CodeMedium):
        try:
            circle.medium.check(circle)
        except DefinitionError as error:
            return recipe.error(("circle", "code_python"), str(error).removeprefix("code_python: "))
    return None


def _from_file(recipe: Recipe, index: int, file: str, taken: set[str]) -> list[Gate]:
    """The gates of a Python file. Adds their names to ``taken``. Raises `RecipeError` if a name is already there."""
    from cantrip_acp.recipes.build import python_files

    place = ("circle", "gates", index, "python")
    path = recipe.path_of(file)
    try:
        recipe.files.read(path)
    except DefinitionError as error:
        raise recipe.error(place, f"the file of gates: {error}") from None
    found = python_files.load(path, recipe.files)
    for gate in found:
        name = gates.ALIASES.get(gate.name, gate.name)
        if name in taken:
            raise recipe.error(
                place, f"{file} exports a gate {gate.name!r}, but the circle already has a gate of that name"
            )
        taken.add(name)
    return found


def _scorer(recipe: Recipe) -> Scorer | None:
    score = recipe.data["circle"].get("score")
    if score is None:
        return None
    from cantrip_acp.recipes.build import python_files

    path = recipe.path_of(score["python"])
    try:
        recipe.files.read(path)
    except DefinitionError as error:
        raise recipe.error(("circle", "score", "python"), f"the scoring function's file: {error}") from None
    return python_files.load_score(path, recipe.files, score.get("at", "turn"))


def _gate(gate: Any) -> Gate | str:
    if isinstance(gate, str):
        return gate
    options = dict(gate)
    found = gates.find(options.pop("name"))
    if "root" in options:
        options["root"] = Path(options["root"]).expanduser()
    return found.configured(options)


def _knowledge(recipe: Recipe, workspace: Path | None) -> SessionView | None:
    """The view of documents and earlier sessions of the folder, from the substrate. None if the recipe needs none."""
    memory = recipe.data.get("memory", {})
    address = substrate_address(recipe.state_dir or state_dir())
    culture = bool(memory.get("culture"))
    if workspace is None or not (culture or (memory.get("sessions") and address is not None)):
        return None
    from cantrip_acp.substrate.view import SessionView

    return SessionView(
        address,
        workspace,
        config_dir=config_dir(),
        documents=culture,
        sessions=memory.get("sessions", 0),
        placement=memory.get("placement", "system"),
        most_tokens=memory.get("max_tokens", 16_000),
        always=culture,
        hidden=Wards.of(recipe.data["circle"]["wards"], base=workspace).hidden_paths,
        alone=bool(memory.get("alone")),
        batches=bool(memory.get("batches")),
    )


def _programs(recipe: Recipe, view: SessionView) -> Sequence[GateSource]:
    """The programs of the substrate as gates, if the recipe wants them."""
    if not recipe.data.get("memory", {}).get("programs"):
        return ()
    from cantrip_acp.substrate.engine.program_gates import ProgramGates

    def make_crystal(text: str) -> Crystal:
        return crystals.crystal_named(text, recipe, "the agent's crystal")

    return (ProgramGates(view, make_crystal, (config_dir() / "skills",)),)


def _recorder(recipe: Recipe, workspace: Path | None, view: SessionView | None) -> Sequence[Contributor]:
    """The recorder of casts in the substrate, unless the recipe turns it off."""
    address = substrate_address(recipe.state_dir or state_dir())
    memory = recipe.data.get("memory", {})
    if workspace is None or address is None or not memory.get("record", True):
        return ()
    from cantrip_acp.substrate.recorder import SessionRecorder

    return (SessionRecorder(address, workspace, view, batches=bool(memory.get("batches"))),)


def _servers(recipe: Recipe) -> Sequence[GateSource]:
    """The MCP servers of the recipe as one source of gates.

    Raises `RecipeError` with the position if an environment variable is not set or a value is not valid.
    """
    if not recipe.data.get("mcp_servers"):
        return ()
    from cantrip_acp.gates.mcp.servers import McpServers

    return (McpServers([_server(recipe, place, data) for place, data in enumerate(recipe.data["mcp_servers"])]),)


def _retry(recipe: Recipe) -> RetryPolicy | None:
    retry = dict(recipe.data.get("retry", {}))
    if not retry:
        return None
    if "retryable_status_codes" in retry:
        retry["statuses"] = frozenset(retry.pop("retryable_status_codes"))
    return RetryPolicy(**retry)


def _folding(recipe: Recipe) -> Folding:
    folding: dict[str, Any] = dict(recipe.data.get("folding", {}))
    name = folding.pop("summarizer", None)
    if name is not None:
        known = recipe.data.get("crystals", {})
        if name not in known:
            listed = ", ".join(known) or "none"
            raise recipe.error(("folding", "summarizer"), f"the recipe's crystals have no {name!r} (known: {listed})")
        folding["summarizer"] = crystals.make_named_crystal(recipe, name)
    return Folding.of(folding)


def open_loom(settings: Mapping[str, Any], file: Path | str | None, state: Path) -> Loom:
    """Open the loom that the user named, else the loom of the recipe's settings, else a new file in the state folder.

    Raises `DefinitionError` if it cannot be opened.
    """
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.types.records import new_id

    fsync = bool(settings.get("fsync", False))
    if file is not None and address.is_address(file):
        return Loom.open(file, fsync=fsync)
    if file is not None:
        file = Path(file)
        if file.exists() and not file.is_file():
            what = "a folder" if file.is_dir() else "not a regular file"
            raise DefinitionError(f"this is {what}; --loom needs a file", where=str(file))
        return Loom.open(file, fsync=fsync)
    store = settings.get("store", "jsonl")
    if store == "memory":
        return Loom.memory()
    if address.is_address(store):
        return Loom.open(store, fsync=fsync)
    return Loom.open(looms_folder(state) / f"{new_id('cast')}.loom.jsonl", fsync=fsync)


def looms_folder(state: Path) -> Path:
    """The folder of looms in the state folder. Raises `DefinitionError` if it cannot be used."""
    try:
        return private(state / "looms")
    except OSError as error:
        mend = "choose another folder with --state-dir or $CANTRIP_STATE_DIR, or a file with --loom"
        raise DefinitionError(f"the state folder cannot be used: {error.strerror}; {mend}", where=str(state)) from None


def _server(recipe: Recipe, place: int, data: dict[str, Any]) -> McpServer:
    at: KeyPath = ("mcp_servers", place)
    env = dict(data.get("env", {}))
    for index, name in enumerate(data.get("env_names", ())):
        env[name] = _variable(recipe, name, (*at, "env_names", index))
    headers = dict(data.get("headers", {}))
    for header, name in data.get("header_env", {}).items():
        headers[header] = _variable(recipe, name, (*at, "header_env", header))
    given: dict[str, Any] = {key: data[key] for key in ("trusted", "required", "start_s", "call_s") if key in data}
    from cantrip_acp.gates.mcp.declaration import McpServer

    if "url" in data:
        given |= {"transport": data.get("transport", "http"), "url": data["url"], "headers": headers}
    else:
        given |= {"command": data["command"], "args": tuple(data.get("args", ())), "env": env}
        given["sandboxed"] = data.get("sandbox", True)
    try:
        return McpServer(name=data["name"], **given)
    except DefinitionError as error:
        raise recipe.error(at, str(error)) from None


def _variable(recipe: Recipe, name: str, place: KeyPath) -> str:
    value = os.environ.get(name)
    if value is None:
        raise MissingVariable(problems=[recipe.problem(place, f"the environment variable {name} is not set")])
    return value
