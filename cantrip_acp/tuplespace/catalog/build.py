"""Builds the catalog of a project: the agents of its ``AGENTS.md``, recipes, and what this installation has.

Nothing is written. The same files and the same installed packages always give the same catalog.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal

import msgspec

from cantrip_acp.crystals.local.presets import PRESETS
from cantrip_acp.gates import registry as gates
from cantrip_acp.mediums import registry as mediums
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.parse import names
from cantrip_acp.recipes.recipe import BUILT_IN, Recipe, read, recipe_files
from cantrip_acp.tuplespace.batch import cast_yool, recipe_digest
from cantrip_acp.tuplespace.catalog.agents_md import AgentBlock, parse_agents
from cantrip_acp.tuplespace.catalog.capabilities import (
    FILE,
    Capability,
    Catalog,
    capability,
    read_catalog,
    split_version,
    with_newest,
)
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.yools.command_yool import Template
from cantrip_acp.version import __version__

AGENTS_FILE = "AGENTS.md"
_PACKAGE = "cantrip-acp"
_STACKS = (
    ("python", ("pyproject.toml", "setup.py", "requirements.txt")),
    ("typescript", ("tsconfig.json",)),
    ("node", ("package.json",)),
    ("dotnet", ("*.sln", "*.csproj", "*.fsproj", "global.json")),
    ("go", ("go.mod",)),
    ("rust", ("Cargo.toml",)),
    ("java", ("pom.xml", "build.gradle", "build.gradle.kts")),
    ("ruby", ("Gemfile",)),
    ("php", ("composer.json",)),
)
"""Files in the project folder that show what it is written in."""
_MEDIUMS = {
    "conversation": "The gates are the model's tools.",
    "bash": "Commands in a sandboxed shell.",
    "code": "Python cells in a sandbox. Variables survive turns.",
    "monty": "Restricted Python in its own interpreter. Variables survive turns.",
}
_PROVIDERS = {
    "anthropic": "Models of Anthropic.",
    "openai": "Models of OpenAI.",
    "google": "Models of Google.",
    "openrouter": "Models of many providers at OpenRouter.",
    "local": "A model server on this machine or in this network.",
    "embedded": "A small model that this machine runs itself; cantrip models pull gets it.",
    "gguf": "A model in a GGUF file, which this machine runs itself.",
    "scripted": "Answers from a file, without a model.",
    "human": "A person answers.",
}


def build_catalog(folder: Path) -> Catalog:
    """The catalog of a project folder. Recipes of the user's own configuration are not part of it.

    Raises `DefinitionError` with file and line if ``AGENTS.md`` or a recipe is not valid, if an installed gate cannot be loaded,
    or if two capabilities have the same name.
    """
    # A recipe of the project replaces a built-in one.
    recipes = {each.name: each for each in (*_recipes(folder, "built-in"), *Catalog(_recipes(folder, "workspace")))}
    agents: list[Capability] = []
    for name, block in _agents(folder):
        given = {"lane": block.lane, "authority": block.authority, "agent_terms": block.agent_terms}
        if name in recipes:
            for key in ("run", "recipe"):
                if key in block.values:
                    block.fail(key, f"{name} is the name of a recipe already; give the agent another yool_id")
            kept = {key: value for key, value in given.items() if value}
            recipes[name] = msgspec.structs.replace(recipes[name], **kept)
            continue
        agents.append(_agent(name, block))
    return Catalog([*agents, *recipes.values(), *_gates(), *_mediums(), *_providers()])


def authorities(folder: Path) -> dict[str, tuple[str, ...]]:
    """Who may order the agents of a project, by name with and without version, from ``AGENTS.md`` or else the catalog's file.

    Raises `TupleError`.
    """
    if (folder / AGENTS_FILE).is_file():
        return with_newest({name: block.authority for name, block in _agents(folder)})
    if (folder / FILE).is_file():
        return with_newest({each.name: each.authority for each in read_catalog(folder / FILE)})
    return {}


def runnable_agents(folder: Path, lane: str) -> list[Capability]:
    """The agents of a project's ``AGENTS.md`` in this lane that a worker can run. Raises `TupleError`."""
    found = (_agent(name, block) for name, block in _agents(folder) if {"run", "recipe"} & block.values.keys())
    return [each for each in found if each.lane == lane]


def _agent(name: str, block: AgentBlock) -> Capability:
    if block.lane is None:
        block.fail("yool_id", "it has no lane; add a bullet such as - lane: build")
    number, command = split_version(name)[1], block.command
    runs: dict[str, Any] = {"recipe": block.recipe}
    if command is not None:
        runs = {**msgspec.structs.asdict(command), "input_schema": Template(command.run).schema}
    try:
        return capability(
            name=name,
            version=f"v{1 if number is None else number}",
            kind="agent",
            source=f"{AGENTS_FILE}: {block.title}",
            lane=block.lane,
            authority=block.authority,
            agent_terms=block.agent_terms,
            description=block.description,
            **runs,
        )
    except TupleError as error:
        block.fail("lane" if "$.lane" in str(error) else "yool_id", str(error))


def _agents(folder: Path) -> Iterator[tuple[str, AgentBlock]]:
    path = folder / AGENTS_FILE
    if not path.is_file():
        return
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise TupleError(f"cannot be read: {reason}", where=AGENTS_FILE) from None
    stacks = tuple(stack for stack, files in _STACKS if any(any(folder.glob(each)) for each in files))
    seen: dict[str, AgentBlock] = {}
    for block in parse_agents(text, AGENTS_FILE):
        for name in block.names({"stack": stacks}):
            other = seen.setdefault(name, block)
            if other is not block:
                block.fail("yool_id", f"{name!r} is the name of agent {other.title!r} in line {other.line} too")
            yield name, block


def _recipes(folder: Path, source: Literal["workspace", "built-in"]) -> Iterator[Capability]:
    for path in recipe_files(folder / ".cantrip" if source == "workspace" else BUILT_IN):
        shown = path.relative_to(folder).as_posix() if source == "workspace" else f"{_PACKAGE}: {path.name}"
        yield recipe_capability(read(path, source, Files(), file=shown))


def recipe_capability(recipe: Recipe) -> Capability:
    """The capability of casting a recipe. Its version is the hash of the recipe's text."""
    name, digest = cast_yool(recipe.name), recipe_digest(recipe)
    return capability(
        name=name,
        version=digest,
        kind="recipe",
        source=recipe.file,
        lane=name.removeprefix("agent.cast.").lstrip("-_") or None,
        description=recipe.description,
        input_schema={
            "type": "object",
            "properties": {
                "intent": {"type": "string", "minLength": 1},
                "recipe": {"const": digest},
                "reference": {},
                "project": {"type": "string"},
                "inputs": {"type": "string"},
            },
            "required": ["intent", "recipe"],
            "additionalProperties": False,
        },
    )


def _gates() -> Iterator[Capability]:
    for name, (version, source) in _installed(gates.BUILT_IN, "cantrip_acp.gates"):
        gate = gates.find(name)
        yield capability(
            name=gate_yool(name),
            version=version,
            kind="gate",
            source=source,
            description=gate.description,
            input_schema=gate.parameters,
        )


def _mediums() -> Iterator[Capability]:
    for name, (version, source) in _installed(mediums.BUILT_IN, "cantrip_acp.mediums"):
        yield capability(
            name=f"medium.{_word(name)}",
            version=version,
            kind="medium",
            source=source,
            description=_MEDIUMS.get(name, ""),
        )


def _providers() -> Iterator[Capability]:
    for name, (version, source) in _installed(names.PROVIDERS, "cantrip_acp.crystals"):
        preset = PRESETS.get(name)
        yield capability(
            name=f"provider.{_word(name)}",
            version=version,
            kind="provider",
            source=source,
            description=f"Models at {preset.base_url}" if preset else _PROVIDERS.get(name, ""),
        )


def gate_yool(gate_name: str) -> str:
    """The name of a gate in the catalog."""
    return f"gate.{_word(gate_name)}"


def _word(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".")


def _installed(built_in: Iterable[str], group: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Names with the version and the name of their package. A built-in one is used before another package's."""
    found = {
        entry.name: (entry.dist.version, entry.dist.name) if entry.dist is not None else ("unknown", "unknown")
        for entry in entry_points(group=group)
    }
    yield from (found | dict.fromkeys(built_in, (__version__, _PACKAGE))).items()
