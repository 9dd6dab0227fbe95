"""Suites: what is asked, of which recipe, and how a sample is judged. A suite is a YAML file, a folder, an Inspect task, or a
taskset of verifiers.

The keys are checked with the models of recipes, so an error has the file, the line and the key.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError

from cantrip_acp.recipes import trust
from cantrip_acp.recipes.build.python_files import Files, imported, load_score
from cantrip_acp.recipes.models.crystal import Script, ScriptedResponse
from cantrip_acp.recipes.models.field_types import Kind, Line, Model, PathText, Text, number, one_of, text, whole, wrong
from cantrip_acp.recipes.parse import validation
from cantrip_acp.recipes.parse.document import SUFFIXES, Document, parse
from cantrip_acp.recipes.parse.problem_positions import KeyPath, Places
from cantrip_acp.recipes.recipe import Recipe, is_path
from cantrip_acp.recipes.recipe import load as load_recipe
from cantrip_acp.tuplespace.batch import read_intents
from cantrip_acp.types.errors import DefinitionError, RecipeError

if TYPE_CHECKING:
    from cantrip_acp.evaluation.inspect_tasks import InspectSample
    from cantrip_acp.evaluation.verifiers_tasks import VerifiersSample

BUILT_IN = Path(__file__).with_name("builtin")
SUITE_FILE = "suite.yaml"
"""The file of a folder that is a suite. A folder without it is a suite of task files."""
TEMPLATE = Path(__file__).with_name("template")
"""The files of `cantrip eval --new`."""
DEFAULT_SECONDS = 900.0
_SHARED = ("recipe", "score", "verifier", "pass_at", "seconds", "checks")
"""Settings of a suite that a task may replace."""


def _regex(value: Any) -> str:
    if not isinstance(value, str):
        raise wrong("a regular expression", value)
    try:
        re.compile(value)
    except re.error as error:
        raise PydanticCustomError("value", "not a regular expression: {why}", {"why": str(error)}) from None
    return value


def _regexes(value: Any) -> list[str]:
    return [_regex(each) for each in (value if isinstance(value, list) else [value])]


Regex = Annotated[str, Kind(_regex, {"type": "string"})]
Regexes = Annotated[
    list[str], Kind(_regexes, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
]


_OUT = r"\x00|(^|/)\.\.(/|$)"


def _names(value: Any) -> list[str]:
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) and name and name[0] not in "/~" and not re.search(_OUT, name) for name in names):
        raise wrong("a path inside the sample's folder, or a list of such paths", value)
    return names


Names = Annotated[
    list[str], Kind(_names, {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]})
]
Inside = Annotated[
    str,
    text("a path inside the task's folder", pattern=r"^[^/~]", without=r"\x00|(^|/)\.\.?(/|$)|^\.git(/|$)|/\.git(/|$)"),
]


Left = Annotated[str, text("a path inside the sample's folder", pattern=r"^[^/~]", without=_OUT)]


class Check(Model):
    """One check of the answer or of the files. It has exactly one key."""

    model_config = ConfigDict(json_schema_extra={"minProperties": 1, "maxProperties": 1})
    noun = "check"
    reference: Annotated[str, one_of(("exact", "includes"))] = Field(
        default="includes", description="exact: the answer is the reference. includes: the reference is in the answer."
    )
    answer: Regexes = Field(default=[], description="Regular expressions that the answer must match somewhere.")
    answer_lacks: Regexes = Field(default=[], description="Regular expressions that the answer must match nowhere.")
    has: dict[Left, Regex] = Field(default={}, description="Files and what each must contain (a regular expression).")
    lacks: dict[Left, Regex] = Field(default={}, description="Files and what each must not contain.")
    unchanged: Names = Field(default=[], description="Files that must be as they were. all: every file of the task.")
    missing: Names = Field(default=[], description="Paths that must not exist.")
    lines_at_most: dict[Left, Annotated[int, whole(0)]] = Field(
        default={}, description="Files and the largest number of lines that each may have."
    )

    @model_validator(mode="after")
    def _one(self) -> Check:
        if len(self.model_fields_set) != 1:
            raise PydanticCustomError(
                "value", "a check has exactly one of the keys {keys}", {"keys": ", ".join(_CHECKS)}
            )
        return self


_CHECKS = tuple(Check.model_fields)


class _Settings(Model):
    """The settings that a suite makes for all its tasks, and a task for itself."""

    recipe: Line = Field(
        default="familiar", description="The recipe that works on it: a name, or a path relative to this file."
    )
    score: PathText = Field(
        default="",
        description="A Python file with the function `score`, relative to this file. It runs on this machine.",
    )
    verifier: Line = Field(
        default="", description="A recipe that judges the thread with a number from 0 to 1: a name, or a path."
    )
    pass_at: Annotated[float, number(-1e9, 1e9)] = Field(
        default=1.0, description="The lowest score of the function or of the verifier with which a sample passes."
    )
    seconds: Annotated[float, number(0, above=True)] = Field(
        default=DEFAULT_SECONDS, description="Maximum seconds of the cast of one sample."
    )
    checks: list[Check] = Field(default_factory=list, description="What must be true of the answer and of the files.")


class TaskModel(_Settings):
    """One task."""

    noun = "task"
    name: Line = Field(default="", description="The name of the task. In a file of its own: the name of the file.")
    kind: Text = Field(default="", description="A word for the report, such as bug or question.")
    intent: Line = Field(description="What the entity is asked.")
    reference: Any = Field(
        default=None, description="The expected answer. The model never sees it; checks, score and verifier do."
    )
    files: dict[Inside, Text] = Field(
        default_factory=dict, description="The files of the folder that the entity works in: path to text."
    )
    hidden: dict[Inside, Text] = Field(
        default_factory=dict, description="Tests that the entity does not see. They run in the sandbox, on a copy."
    )
    runner: Text = Field(
        default="", description="What runs the hidden tests: pytest, unittest, npm, cargo, go or make."
    )
    needs: list[Line] = Field(default_factory=list, description="Programs without which the task is left out.")
    recorded: list[ScriptedResponse] = Field(
        default_factory=list, description="A session that does the task, for `--crystal recorded`."
    )
    children: list[Script] = Field(default_factory=list, description="Recorded sessions of child entities.")


def _kind_of_task(value: Any) -> str:
    return "<files>" if isinstance(value, str) else "<task>"


class SuiteModel(_Settings):
    """A suite: tasks and what they share."""

    noun = "suite"
    name: Line = Field(
        default="", description="The name of the suite. Without this key, the name of the file or folder."
    )
    description: Text = Field(default="", description="One sentence that says what the suite measures.")
    samples: Annotated[int, whole(1, 10_000)] = Field(default=1, description="Samples of each task, without --samples.")
    tasks: list[
        Annotated[
            Annotated[PathText, Tag("<files>")] | Annotated[TaskModel, Tag("<task>")], Discriminator(_kind_of_task)
        ]
    ] = Field(default_factory=list, description="Tasks, or patterns of task files such as tasks/*.yaml.")
    dataset: PathText = Field(
        default="", description="A file of JSON lines, each with intent, reference and id, relative to this file."
    )
    inspect: PathText = Field(
        default="", description="An Inspect task: FILE.py or FILE.py@NAME. The file runs on this machine."
    )
    verifiers: Line = Field(
        default="", description="The id of an installed taskset of verifiers. It runs on this machine."
    )


@dataclass(frozen=True, slots=True)
class Task:
    """A task with everything that it needs. ``digest`` changes with what is asked and how it is judged, ``recipe_digest`` with
    the recipe and the files that it names.

    ``checks`` is a list of pairs of a check's name and its value. ``foreign`` is a sample of Inspect or a task of
    verifiers, which bring their own solvers and scorers. ``needs`` names programs without which the task is left out.
    """

    name: str
    intent: str
    recipe: Recipe = field(repr=False)
    recipe_digest: str
    digest: str
    kind: str = ""
    reference: Any = None
    files: Mapping[str, str] = field(default_factory=dict)
    hidden: Mapping[str, str] = field(default_factory=dict)
    runner: str | None = None
    needs: Sequence[str] = ()
    checks: Sequence[tuple[str, Any]] = ()
    recorded: Sequence[Mapping[str, Any]] = ()
    children: Sequence[Any] = ()
    score: Callable[..., Any] | None = None
    verifier: Recipe | None = field(default=None, repr=False)
    pass_at: float = 1.0
    seconds: float = DEFAULT_SECONDS
    foreign: InspectSample | VerifiersSample | None = None


@dataclass(frozen=True, slots=True)
class Suite:
    """``runs`` names the Python files that run on this machine, outside of the sandbox."""

    name: str
    tasks: Sequence[Task]
    samples: int = 1
    description: str = ""
    runs: Sequence[str] = ()

    def chosen(self, only: Sequence[str]) -> list[Task]:
        """The tasks whose names begin with one of ``only``. Raises `DefinitionError` if there is none."""
        found = [t for t in self.tasks if not only or any(t.name.startswith(word) for word in only)]
        if not found:
            names = ", ".join(task.name for task in self.tasks[:20])
            raise DefinitionError(f"no task has a name that begins with {' or '.join(only)} (tasks: {names})")
        return found


def load_suite(name: str, *, workspace: Path, state_dir: Path, recipe: str | None = None) -> Suite:
    """Load the suite with this path, or the built-in one with this name. ``recipe`` replaces the recipe of every task.

    A suite that is named by its path is trusted, with the Python files and recipes that it names by path. A recipe that it names
    without a path is found in ``workspace`` as on the command line, and must be trusted there. Raises `RecipeError` with the
    place of each problem, and `DefinitionError`.
    """
    path = Path(name).expanduser()
    if re.search(r"\.py(@[^/]*)?$", name):
        data: dict[str, Any] = {"inspect": str(Path.cwd() / path)}
        return _Loader(Document(name, Path.cwd() / "suite", data, Places()), workspace, state_dir, recipe).suite(data)
    if name.startswith("verifiers:"):
        data = {"verifiers": name.removeprefix("verifiers:")}
        return _Loader(Document(name, Path.cwd() / "suite", data, Places()), workspace, state_dir, recipe).suite(data)
    if not is_path(name) and not name.startswith((".", "~")) and (BUILT_IN / name).is_dir():
        path = BUILT_IN / name
    if path.is_dir():
        if not (path / SUITE_FILE).is_file():
            patterns = [each.name for each in _task_files(path, "*.yaml")]
            if not patterns:
                raise DefinitionError(
                    f"this folder has neither {SUITE_FILE} nor task files (*.yaml); `cantrip eval --new {name}` writes a suite",
                    where=name,
                )
            data = {"name": path.resolve().name, "tasks": patterns}
            return _Loader(parse(b"{}", path / SUITE_FILE, file=name), workspace, state_dir, recipe).suite(data)
        path /= SUITE_FILE
    elif not path.exists():
        known = ", ".join(sorted(p.name for p in BUILT_IN.iterdir() if p.is_dir()))
        raise DefinitionError(f"there is no such file or folder (built-in suites: {known})", where=name)
    shown = str(path) if path.name == SUITE_FILE else name
    document = parse(Files().read(path, shown), path, file=shown)
    return _Loader(document, workspace, state_dir, recipe).suite(validation.data_of(document, SuiteModel))


def _task_files(folder: Path, pattern: str) -> list[Path]:
    return sorted(
        p for p in folder.glob(pattern) if p.is_file() and not p.name.endswith(SUFFIXES) and p.name != SUITE_FILE
    )


class _Loader:
    """Makes tasks from the checked data of one suite. Each file is read once."""

    def __init__(self, document: Document, workspace: Path, state_dir: Path, recipe: str | None) -> None:
        self._document = document
        self._folder = document.path.parent
        self._workspace = workspace
        self._state = state_dir
        self._recipe = recipe
        self._files = Files()
        self._recipes: dict[str, tuple[Recipe, str]] = {}
        self._scores: dict[Path, Callable[..., Any]] = {}
        self._runs: list[str] = []

    def suite(self, data: Mapping[str, Any]) -> Suite:
        shared = {key: data[key] for key in _SHARED if key in data}
        tasks = list(self._tasks(data, shared))
        if not tasks:
            raise self._error(
                self._document, (), "a suite needs tasks: add the key tasks, dataset, inspect or verifiers"
            )
        twice = [name for name, count in Counter(task.name for task in tasks).items() if count > 1]
        if twice:
            raise self._error(self._document, ("tasks",), f"two tasks have the name {twice[0]!r}")
        path = self._document.path
        name = data.get("name") or (
            path.resolve().parent.name if path.name == SUITE_FILE else path.name.partition(".")[0]
        )
        if "inspect" in data and not data.get("name"):
            name = Path(data["inspect"].partition("@")[0]).stem
        if "verifiers" in data and not data.get("name"):
            name = data["verifiers"].rpartition("/")[2]
        return Suite(name, tasks, data.get("samples", 1), data.get("description", ""), tuple(dict.fromkeys(self._runs)))

    def _tasks(self, data: Mapping[str, Any], shared: Mapping[str, Any]) -> Iterator[Task]:
        for index, item in enumerate(data.get("tasks", ())):
            at: KeyPath = ("tasks", index)
            if isinstance(item, str):
                try:
                    found = _task_files(self._folder, item)
                except (ValueError, NotImplementedError) as error:
                    raise self._error(self._document, at, str(error)) from None
                if not found:
                    raise self._error(self._document, at, f"no task file matches {item!r} in {self._folder}")
                for path in found:
                    inner = parse(self._files.read(path), path)
                    own = validation.data_of(inner, TaskModel)
                    yield self._task({"name": path.stem, **own}, shared, inner, ())
            else:
                yield self._task({"name": f"task-{index + 1}", **item}, shared, self._document, at)
        if "dataset" in data:
            for line in self._dataset(self._folder / data["dataset"]):
                yield self._task(line, shared, self._document, ("dataset",))
        if "inspect" in data:
            yield from self._inspect(data["inspect"], shared)
        if "verifiers" in data:
            yield from self._verifiers(data["verifiers"], shared)

    def _dataset(self, path: Path) -> Iterator[dict[str, Any]]:
        try:
            raw = self._files.read(path)
        except DefinitionError as error:
            raise self._error(self._document, ("dataset",), str(error)) from None
        for index, row in enumerate(read_intents(raw, str(path)), 1):
            yield {"name": row.id or f"{path.stem}-{index}", "intent": row.intent, "reference": row.reference}

    def _inspect(self, named: str, shared: Mapping[str, Any]) -> Iterator[Task]:
        from cantrip_acp.evaluation import inspect_tasks

        file, _, name = named.partition("@")
        path = self._folder / Path(file).expanduser()
        code = self._code(path)
        self._runs.append(str(path))
        yield from self._foreign(inspect_tasks.samples(path, name), "inspect", code, shared)

    def _verifiers(self, taskset_id: str, shared: Mapping[str, Any]) -> Iterator[Task]:
        from cantrip_acp.evaluation import verifiers_tasks

        self._runs.append(f"the taskset {taskset_id} of verifiers")
        yield from self._foreign(verifiers_tasks.samples(taskset_id), "verifiers", taskset_id, shared)

    def _foreign(
        self, samples: Sequence[InspectSample | VerifiersSample], kind: str, origin: str, shared: Mapping[str, Any]
    ) -> Iterator[Task]:
        recipe, digest = self._recipe_of(
            shared.get("recipe", str(BUILT_IN / "answer.cantrip.yaml")), self._document, ("recipe",)
        )
        for sample in samples:
            yield Task(
                sample.name,
                sample.intent,
                recipe,
                digest,
                _digest([sample.name, sample.content, origin]),
                kind=kind,
                reference=sample.reference,
                files=sample.files,
                seconds=shared.get("seconds", DEFAULT_SECONDS),
                pass_at=shared.get("pass_at", 1.0),
                foreign=sample,
            )

    def _task(self, own: Mapping[str, Any], shared: Mapping[str, Any], document: Document, at: KeyPath) -> Task:
        def place(key: str) -> tuple[Document, KeyPath]:
            return (document, (*at, key)) if key in own else (self._document, (key,))

        data = {**shared, **own}
        recipe, digest = self._recipe_of(data.get("recipe", "familiar"), *place("recipe"))
        judged = ("intent", "reference", "files", "hidden", "runner", "checks", "pass_at", "seconds")
        parts: list[Any] = [{key: data[key] for key in judged if key in data}]
        score = verifier = None
        if "score" in data:
            score, code = self._score(data["score"], *place("score"))
            parts.append(code)
        if "verifier" in data:
            verifier, judge = self._recipe_of(data["verifier"], *place("verifier"), replaceable=False)
            parts.append(judge)
        checks = [pair for each in data.get("checks", ()) for pair in each.items()]
        files = data.get("files", {})
        for check_name, value in checks:
            if check_name == "unchanged" and (unknown := [n for n in value if n != "all" and n not in files]):
                raise self._error(*place("checks"), f"unchanged names {unknown[0]!r}, which is not a file of the task")
            if check_name == "reference" and data.get("reference") is None:
                raise self._error(*place("checks"), f"the task {own['name']!r} has no reference to check")
        if not (checks or score or verifier or data.get("hidden")):
            raise self._error(
                document,
                at,
                f"nothing judges the task {own['name']!r}: add checks, hidden tests, a score or a verifier",
            )
        return Task(
            str(own["name"]),
            own["intent"].strip(),
            recipe,
            digest,
            _digest(parts),
            kind=data.get("kind", ""),
            reference=data.get("reference"),
            files=files,
            hidden=data.get("hidden", {}),
            runner=data.get("runner"),
            needs=data.get("needs", ()),
            checks=checks,
            recorded=data.get("recorded", ()),
            children=data.get("children", ()),
            score=score,
            verifier=verifier,
            pass_at=data.get("pass_at", 1.0),
            seconds=data.get("seconds", DEFAULT_SECONDS),
        )

    def _recipe_of(
        self, named: str, document: Document, at: KeyPath, *, replaceable: bool = True
    ) -> tuple[Recipe, str]:
        """The recipe in a file, with a hash of it and of the files that it names."""
        given = self._recipe if replaceable and self._recipe is not None else None
        path = is_path(given or named)
        key = given or (str(document.path.parent / Path(named).expanduser()) if path else named)
        if key not in self._recipes:
            try:
                found = load_recipe(key, self._workspace, state_dir=self._state, files=self._files)
                if not path:
                    trust.require(found, self._workspace, self._state)
            except RecipeError:
                raise
            except DefinitionError as error:
                if given:
                    raise
                raise self._error(document, at, str(error)) from None
            hashes = [hashlib.sha256(found.raw).hexdigest()]
            for file in trust.named_by(found):
                try:
                    hashes.append(hashlib.sha256(self._files.read(file)).hexdigest())
                except DefinitionError as error:
                    raise self._error(document, at, str(error)) from None
                if file.suffix == ".py":
                    self._runs.append(str(file))
            self._recipes[key] = (found, _digest(hashes))
        return self._recipes[key]

    def _score(self, named: str, document: Document, at: KeyPath) -> tuple[Callable[..., Any], str]:
        path = document.path.parent / Path(named).expanduser()
        try:
            code = self._code(path)
            if path not in self._scores:
                self._scores[path] = load_score(path, self._files, "cast").function
        except DefinitionError as error:
            raise self._error(document, at, str(error)) from None
        self._runs.append(str(path))
        return self._scores[path], code

    def _code(self, path: Path) -> str:
        """A hash of a Python file and of the files beside it that it imports."""
        files = [path, *sorted(source for _, source in imported(path, self._files))]
        hashes = [hashlib.sha256(self._files.read(file)).hexdigest() for file in files]
        return hashes[0] if len(hashes) == 1 else _digest(hashes)

    @staticmethod
    def _error(document: Document, at: KeyPath, message: str) -> RecipeError:
        return RecipeError(problems=[document.problem(at, message)])


def _digest(data: Any) -> str:
    text = json.dumps(data, sort_keys=True, ensure_ascii=False, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
