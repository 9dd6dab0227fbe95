"""Recipe inspection without a cast: finds all problems of a recipe, and summarizes its content (`cantrip recipe`)."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cantrip_acp.core.definition.circle import Circle
from cantrip_acp.crystals.embedded import weights
from cantrip_acp.recipes import trust
from cantrip_acp.recipes.build import build, crystal_factory, crystals
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.parse import names
from cantrip_acp.recipes.parse.problem_positions import KeyPath
from cantrip_acp.recipes.recipe import Recipe, Source, read
from cantrip_acp.types.errors import CrystalError, DefinitionError, MissingKey, MissingVariable, RecipeError


@dataclass(frozen=True, slots=True)
class Report:
    """Result of `check`. A recipe with ``problems`` cannot be used.

    ``notes`` name features that this version does not have, and models that are retired or probably misspelled.
    """

    file: str
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        return not self.problems


def check(path: Path, *, file: str | None = None, source: Source = "path", workspace: Path | None = None) -> Report:
    """All problems of a recipe file and of the files that it names, as ``file:line:column: …``.

    ``workspace`` is the folder in which the recipe would be used. A file that is missing only there is a note.
    """
    shown = file if file is not None else str(path)
    try:
        recipe = read(path, source, Files(), file=shown)
    except RecipeError as error:
        return Report(shown, error.places)
    except DefinitionError as error:
        return Report(shown, (str(error),))
    problems: list[str] = []
    notes: list[str] = []
    for at, message in build.lacking(recipe):
        # If pip can install it, the machine lacks something, and the recipe is right.
        (notes if at[0] in ("loom", "mcp_servers") else problems).append(str(recipe.problem(at, message)))
    for at, makes in _parts(recipe):
        _try(recipe, at, makes, problems, notes)
    for index, gate in enumerate(recipe.data["circle"]["gates"]):
        if isinstance(gate, dict) and "python" in gate:
            at = ("circle", "gates", index, "python")
            problems += _file_problems(recipe, at, gate["python"], "the file of gates", ("gate", "GATES", "Gate"))
    score = recipe.data["circle"].get("score")
    if score is not None:
        at = ("circle", "score", "python")
        problems += _file_problems(recipe, at, score["python"], "the scoring function's file", ("score",))
    if not problems:
        problems, notes = _circle_problems(recipe, workspace, problems, notes)
    for at, weights_missing, is_problem in _weights(recipe):
        text = str(recipe.problem(at, weights_missing))
        (problems if is_problem else notes).append(text)
    # The crystal and the folding may name the same problem.
    return Report(shown, tuple(dict.fromkeys(problems)), tuple(dict.fromkeys((*notes, *_models(recipe)))))


def _parts(recipe: Recipe) -> Iterator[tuple[KeyPath, Callable[[], object]]]:
    """Yield each part of the recipe that a cast makes, with its key. None of them runs code of the recipe or uses the
    network."""
    yield ("call",), lambda: build._call(recipe)
    if recipe.data.get("crystal") is not None:
        yield ("crystal",), lambda: crystals.crystal_for(recipe)
    for name in recipe.data.get("crystals", {}):
        yield ("crystals", name), partial(crystals.make_named_crystal, recipe, name)
    yield ("result_schema",), lambda: build.result_type(recipe)
    yield ("retry",), lambda: build._retry(recipe)
    yield ("folding",), lambda: build._folding(recipe)
    for index, server in enumerate(recipe.data.get("mcp_servers", ())):
        yield ("mcp_servers", index), partial(build._server, recipe, index, server)


def _try(recipe: Recipe, at: KeyPath, makes: Callable[[], object], problems: list[str], notes: list[str]) -> None:
    """Make a part, and add its error to the problems. If only the environment lacks something (a key, a variable), add a note
    instead."""
    try:
        makes()
    except (MissingKey, MissingVariable) as error:
        notes.append(str(error) if isinstance(error, RecipeError) else str(recipe.problem(at, str(error))))
    except RecipeError as error:
        problems += error.places
    except DefinitionError as error:
        problems.append(str(recipe.problem(at, str(error))))


def _circle_problems(
    recipe: Recipe, workspace: Path | None, problems: list[str], notes: list[str]
) -> tuple[list[str], list[str]]:
    """The problems of the circle and its wards, and notes. Files that are missing only in the workspace are notes."""
    place: KeyPath = ("circle", "wards")
    try:
        circle = build._circle(recipe, workspace, gate_files=False)
    except RecipeError as error:
        return [*problems, *error.places], notes
    except DefinitionError as error:
        return [*problems, str(recipe.problem(place, str(error)))], notes
    if workspace is None:
        return problems, notes
    if "code_python" in recipe.data["circle"]:
        unfit = build.unfit(recipe, circle)
        notes = [*notes, *(unfit.places if unfit is not None else ())]
    # The sandbox's parts are imported only here: the language server reads recipes too.
    from cantrip_acp.mediums.ward_paths import ward_problems

    for ward, message, missing in ward_problems(circle.wards, workspace, circle.medium.name):
        index = next((i for i, each in enumerate(recipe.data["circle"]["wards"]) if ward in each), None)
        at = place if index is None else (*place, index, ward)
        (notes if missing else problems).append(str(recipe.problem(at, message)))
    return problems, notes


def _weights(recipe: Recipe) -> Iterator[tuple[KeyPath, str, bool]]:
    """Embedded models whose weights are missing: place, reason, and whether the recipe is wrong. It is not wrong for a known
    model that was not downloaded yet."""
    for at, crystal in _crystals(recipe):
        options = crystal_factory.options_of(crystal)
        provider, model = options.get("provider"), str(options.get("model") or "")
        if provider in names.EMBEDDED:
            try:
                weights.find(provider, model, recipe.path.parent)
            except CrystalError as missing:
                yield (
                    at if isinstance(crystal, str) else (*at, "model"),
                    str(missing),
                    provider == "gguf" or model not in weights.KNOWN,
                )


def _crystals(recipe: Recipe) -> list[tuple[KeyPath, Any]]:
    """The recipe's crystals, each with its place."""
    given: list[tuple[KeyPath, Any]] = [
        (("crystals", name), each) for name, each in recipe.data.get("crystals", {}).items()
    ]
    main = recipe.data.get("crystal")
    return given if main is None else [(("crystal",), main), *given]


def _models(recipe: Recipe) -> Iterator[str]:
    """Notes about the recipe's models: retired ones, and probably misspelled names."""
    from cantrip_acp.crystals.catalog import lookup

    for at, crystal in _crystals(recipe):
        options = crystal_factory.options_of(crystal)
        if options.get("provider") in names.MODEL_PROVIDERS and "base_url" not in options:
            try:
                remark = lookup.remark(options["provider"], options["model"])
            except DefinitionError:
                return  # the user's own models.toml cannot be read; a cast reports that
            if remark:
                yield str(recipe.problem(at if isinstance(crystal, str) else (*at, "model"), remark))


def _file_problems(recipe: Recipe, place: KeyPath, file: str, what: str, words: tuple[str, ...]) -> list[str]:
    """Problems of a Python file that can be found without running it. It must have at least one of these words."""
    path = recipe.path_of(file)
    try:
        tree = compile(recipe.files.read(path), str(path), "exec", ast.PyCF_ONLY_AST, dont_inherit=True)
    except DefinitionError as error:
        return [str(recipe.problem(place, f"{what}: {error}"))]
    except SyntaxError as error:
        return [f"{path}:{error.lineno or 1}: {type(error).__name__}: {error.msg}"]
    except ValueError as error:
        return [f"{path}:1: {type(error).__name__}: {error}"]
    fields = (field for node in ast.walk(tree) for field in ast.iter_fields(node))
    names = {value for field, value in fields if field in ("id", "attr", "name")}
    if names.isdisjoint((*words, "__all__", "*")):
        missing = {"score": "it defines no function with the name score; write: def score(turn): ..."}.get(
            words[0], "it exports no gate: list functions in GATES = [...], or put @gate before them"
        )
        return [str(recipe.problem(place, f"{what}: {path}: {missing}"))]
    return []


def circle_of(recipe: Recipe, workspace: Path) -> Circle:
    """The circle for a folder, without a crystal. Raises `RecipeError` for features that this version lacks."""
    missing = [
        str(recipe.problem(at, message)) for at, message in build.lacking(recipe) if at[0] in ("circle", "folding")
    ]
    if missing:
        raise RecipeError(missing)
    # Inspection must not run a recipe's code.
    return build._circle(recipe, workspace, gate_files=False)


def gate_files(recipe: Recipe) -> list[str]:
    """The Python files of gates, as the recipe names them."""
    listed = recipe.data["circle"]["gates"]
    return [gate["python"] for gate in listed if isinstance(gate, dict) and "python" in gate]


def trust_of(recipe: Recipe, workspace: Path, state_dir: Path) -> str:
    """Whether the recipe is trusted, and why, as text."""
    if recipe.source == "built-in":
        return "built in"
    if recipe.source == "user":
        return "yours: it is in your configuration folder"
    asked = list(trust.demands(recipe.data, recipe.path.parent, workspace))
    if not asked:
        return "not needed: nothing in the recipe needs trust"
    state = trust.Ledger(state_dir).state(workspace, recipe.files) if trust.lies_in(workspace, recipe) else "untrusted"
    if state == "trusted":
        return "trusted"
    why = "; ".join(recipe.problem(at, reason).key + ": " + reason for at, reason in asked)
    changed = "changed since it was trusted" if state == "changed" else "not trusted"
    return f"{changed}; if it is named without a path, it is refused ({why})"


def crystal_line(recipe: Recipe) -> str:
    """The crystal as one line, without secrets."""
    given = recipe.data.get("crystal")
    if given is None:
        return f"not named in the recipe: ${crystal_factory.VARIABLE}, else a provider whose key is set"
    options: dict[str, Any] = crystal_factory.options_of(given)
    provider = options["provider"]
    if provider == "scripted":
        script = options.get("script")
        return f"scripted: {script}" if script else f"scripted: {len(options['responses'])} responses"
    model = options.get("model")
    return f"{provider}: {model}" if model else str(provider)


def writes_calls(recipe: Recipe) -> bool:
    """Whether the recipe's crystal writes its tool calls as text, because of its option or of the model catalog."""
    given = recipe.data.get("crystal")
    if given is None:
        return False
    options: dict[str, Any] = crystal_factory.options_of(given)
    if options.get("tools", "auto") != "auto":
        return bool(options["tools"] == "text")
    from cantrip_acp.crystals.catalog import lookup
    from cantrip_acp.crystals.local.presets import PRESETS

    if options["provider"] not in ("local", "openrouter", *PRESETS):
        return False
    return not lookup.look_up(options["provider"], str(options.get("model")), remark=False).tools
