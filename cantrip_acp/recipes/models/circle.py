"""Models of a recipe's circle: medium, gates and wards."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Discriminator, Field, Tag, create_model
from pydantic_core import PydanticCustomError

from cantrip_acp.gates.registry import ALIASES
from cantrip_acp.gates.wards import WARDS
from cantrip_acp.recipes.models.field_types import (
    FLAG_WORDS,
    Flag,
    Kind,
    Line,
    Model,
    PathText,
    flag,
    network,
    number,
    one_of,
    texts,
    unknown,
    whole,
    wrong,
)
from cantrip_acp.recipes.parse import names


def _gate_name(known: tuple[str, ...]) -> Kind:
    words = (*known, *(alias for alias, name in ALIASES.items() if name in known))

    def check(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return ALIASES.get(value, value)
        if not isinstance(value, str):
            raise wrong("a gate's name, or a mapping with a name", value)
        raise unknown(value, names.gate_names(), "gate ")

    return Kind(check, {"enum": list(words)})


_OWN = (*names.FILE_GATES, names.TEST_GATE)
_PLAIN = tuple(n for n in names.gate_names() if n not in _OWN and n not in names.added_gates())


EPHEMERAL = (
    "true: the entity sees a placeholder in place of each result. after_use: it sees a result in one query, and after "
    "that the placeholder. The loom records every result."
)


def _ephemeral(value: Any) -> bool | str:
    if isinstance(value, str) and value == "after_use":
        return value
    try:
        return flag(value)
    except PydanticCustomError:
        raise wrong("true, false or after_use", value) from None


Ephemeral = Annotated[Any, Kind(_ephemeral, {"anyOf": [{"type": "boolean"}, {"enum": [*FLAG_WORDS, "after_use"]}]})]


class FileGate(Model):
    """A gate that works in a folder and its subfolders."""

    noun = "gate"
    name: Annotated[str, _gate_name(names.FILE_GATES)]
    root: PathText = Field(
        default=".", description="The folder that the gate works in, relative to the session's folder."
    )
    ephemeral: Ephemeral = Field(default=False, description=EPHEMERAL)


class TestGate(Model):
    """The gate that runs the workspace's tests, in the sandbox."""

    noun = "gate"
    name: Annotated[str, _gate_name((names.TEST_GATE,))]
    command: Line = Field(
        default="",
        description="The shell command that runs the tests, such as `make check`. {targets} is replaced by the targets of a "
        "call. Without this key, the command is chosen from the workspace's files.",
    )
    timeout_s: Annotated[float, number(0, above=True)] = Field(
        default=0, description="Maximum seconds of a run. bash_timeout_ms limits it too."
    )
    ephemeral: Ephemeral = Field(default=False, description=EPHEMERAL)


class PlainGate(Model):
    """A gate without options of its own."""

    noun = "gate"
    name: Annotated[str, _gate_name(_PLAIN)]
    ephemeral: Ephemeral = Field(default=False, description=EPHEMERAL)


class AddedGate(Model):
    """A gate from another package. Its other keys are the options of that package."""

    model_config = ConfigDict(extra="allow")
    noun = "gate"
    name: Annotated[str, one_of(names.added_gates())]


class PythonGates(Model):
    """Gates from a Python file of the recipe's owner. The file runs on the host, outside the sandbox."""

    noun = "gate"
    python: PathText = Field(description="The path of the Python file, relative to the recipe.")


def _gate_kind(value: Any) -> str:
    if not isinstance(value, dict):
        return "<name>"
    if "python" in value:
        return "<python>"
    name = value.get("name")
    if name in names.FILE_GATES:
        return "<file>"
    if name == names.TEST_GATE:
        return "<tests>"
    return "<added>" if isinstance(name, str) and name in names.added_gates() else "<plain>"


Gate = Annotated[
    Annotated[str, _gate_name(names.gate_names()), Tag("<name>")]
    | Annotated[FileGate, Tag("<file>")]
    | Annotated[TestGate, Tag("<tests>")]
    | Annotated[PlainGate, Tag("<plain>")]
    | Annotated[PythonGates, Tag("<python>")]
    | Annotated[AddedGate, Tag("<added>")],
    Discriminator(_gate_kind),
]


class _OneWard(Model):
    """A mapping of one ward's name to its value."""

    noun = "ward"


_WARD_KINDS: dict[str, tuple[Any, Kind]] = {
    "number": (float, number(0, above=True)),
    "network": (Any, network()),
    "home": (str, one_of(("private", "persistent"))),
    "paths": (list[str], texts("a path or a list of paths")),
    "names": (list[str], texts("a name or a list of names")),
    "protected": (list[str], texts("a protected name or a list of them")),
}


def _ward_fields() -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for name, spec in WARDS.items():
        if spec["kind"] == "boolean":
            annotation: Any = Flag
        elif spec["kind"] == "integer":
            annotation = Annotated[int, whole(spec["low"])]
        else:
            type_, kind = _WARD_KINDS[spec["kind"]]
            annotation = Annotated[type_, kind]
        meaning = spec["meaning"]
        fields[name] = (annotation, Field(default=None, description=f"{meaning[:1].upper()}{meaning[1:]}."))
    fields["require_done"] = (
        Flag,
        Field(default=None, description="An older name of require_done_tool.", deprecated=True),
    )
    return fields


if TYPE_CHECKING:

    class Ward(_OneWard):
        """One field for each ward of `cantrip_acp.gates.wards`."""
else:
    Ward = create_model("Ward", __base__=_OneWard, __doc__=_OneWard.__doc__, **_ward_fields())


class Score(Model):
    """A scoring function in a Python file of the recipe's owner. The file runs on the host, outside the sandbox."""

    noun = "score"
    python: PathText = Field(
        description="The path of the Python file with the function `score`, relative to the recipe."
    )
    at: Annotated[str, one_of(("turn", "cast"))] = Field(
        default="turn",
        description="turn: the function scores each turn. cast: it scores the thread at the end of each cast.",
    )


class Circle(Model):
    """The environment of the entity: a medium, gates that give abilities, and wards that restrict."""

    noun = "circle"
    medium: Annotated[str, one_of(names.medium_names(), "medium")] = Field(
        default="conversation", description="The medium that the entity works in."
    )
    code_python: PathText = Field(
        default="",
        description="The Python that runs the cells of the code medium: venv (the workspace's virtual environment), the folder "
        "of a virtual environment, a program, or a name on PATH. Paths are relative to the session's folder. Without this key, "
        "cantrip's own Python.",
    )
    loom: Flag = Field(
        default=False, description="Show the entity its own history: `loom` in the code medium (LOOM-11)."
    )
    score: Score = Field(
        default=Score.model_construct(python=""),
        description="The function that computes rewards. They are recorded in the loom as shaped rewards.",
    )
    gates: list[Gate] = Field(description="The gates that the entity can call. done must be in the list.")
    wards: list[Ward] = Field(description="Restrictions, one in each list item. max_turns must be in the list.")
