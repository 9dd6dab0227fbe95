"""Gates from a recipe's Python file: what it exports, what goes wrong, and that only a trusted recipe runs one."""

import sys
from pathlib import Path

import pytest

from cantrip_acp.cli.errors import run as command_line
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.recipes import inspect, load, load_for_session
from cantrip_acp.recipes.build.build import build
from cantrip_acp.recipes.build.python_files import Files
from cantrip_acp.recipes.trust import Ledger, named_by
from cantrip_acp.types.errors import DefinitionError, RecipeError, UntrustedRecipe
from tests.support.recipe_writer import write

RECIPE = """\
crystal:
  provider: scripted
  responses:
    - tool_calls: [{gate: count_words, args: {text: a b c}}]
    - tool_calls: [{gate: done, args: {answer: fine}}]
circle:
  gates: [done, {python: gates.py}]
  wards: [{max_turns: 5}]
"""
GATES = """\
from __future__ import annotations
from cantrip_acp import Gate

@Gate.of
def count_words(text: str) -> int:
    "Count the words of a text."
    return len(text.split())

def helper():
    return 1
"""


def made(folder: Path, gates: str | bytes, recipe: str = RECIPE) -> Cantrip:
    path = write(folder, recipe)
    write(folder, gates, "gates.py")
    return build(load(path), workspace=folder)


def added(cantrip: Cantrip) -> list[str]:
    return [name for name in cantrip.circle.gates if name != "done"]


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.anyio
async def test_a_gate_of_the_file_is_called(tmp_path: Path) -> None:
    cantrip = made(tmp_path, GATES)
    assert added(cantrip) == ["count_words"]
    assert cantrip.circle.gates["count_words"].description == "Count the words of a text."
    entity = cantrip.invoke()
    result = await entity.cast("count")
    assert result.result == "fine"
    records = [g for turn in entity.loom.turns() for g in turn.observation.results]
    assert [(r.gate, r.result, r.is_error) for r in records if r.gate == "count_words"] == [("count_words", 3, False)]
    await entity.close()


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", ["count_words"]),
        ("__all__ = ['helper']", ["helper"]),
        ("__all__ = ['helper']\nGATES = [count_words, helper]", ["count_words", "helper"]),
        ("def a(): 'x'\nGATES = (Gate.of(a, name='server.a'),)", ["server.a"]),
        ("_hidden = Gate.of(helper)", ["count_words"]),
    ],
)
def test_what_is_exported(tmp_path: Path, more: str, names: list[str]) -> None:
    assert added(made(tmp_path, f"{GATES}\n{more}\n")) == names


def test_a_plain_function_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    gates = made(tmp_path, "def slow(n: int): 'x'\nasync def quick(n: int): 'x'\nGATES = [slow, quick]").circle.gates
    assert (gates["slow"].blocking, gates["quick"].blocking) == (True, False)


@pytest.mark.parametrize(
    ("gates", "line", "says"),
    [
        ("x = 1\n1/0\n", 2, "ZeroDivisionError"),
        ("x = (\n", 1, "SyntaxError"),
        ("\n\nimport no_such_module_here\n", 3, "ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", 2, "SystemExit"),
        ("import importlib\nimportlib.import_module('beside')\n", 2, "ModuleNotFoundError"),
        ("from . import nothing\n", 1, "ImportError"),
        ("import broken\n", 1, "ZeroDivisionError"),
        ("def f(*args): 'x'\nGATES = [f]", 1, r"\*args"),
        ("\ndef f(a: Nowhere): 'x'\nGATES = [f]".replace("Nowhere", "'Nowhere'"), 2, "Nowhere"),
        ("def f(x): 'x'\n", None, "exports no gate"),
        ("GATES = 5", None, "must be a list, not int"),
        ("GATES = [5]", None, r"GATES\[0\] is neither a Gate nor a function but a int"),
        ("__all__ = ['gone']", None, "'gone', which the file does not define"),
        ("def f(): 'x'\nGATES = [f, f]", None, "two gates with the name 'f'"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(tmp_path: Path, gates: str, line: int | None, says: str) -> None:
    write(tmp_path, "x = 1", "beside.py")
    write(tmp_path, "1/0", "broken.py")
    before = set(sys.modules)
    with pytest.raises(DefinitionError, match=says) as caught:
        made(tmp_path, gates)
    place = f"{tmp_path / 'gates.py'}:{line}: " if line is not None else f"{tmp_path / 'gates.py'}: "
    assert str(caught.value).startswith(place)
    assert not {"gates", "beside"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    ("listed", "gates", "name"),
    [
        ("[done, {python: gates.py}]", "def done(): 'x'\nGATES = [done]", "done"),
        ("[done, {python: gates.py}, {name: read_file}]", "def read_file(): 'x'\nGATES = [read_file]", "read_file"),
        ("[done, {python: gates.py}, {python: gates.py}]", GATES, "count_words"),
    ],
)
def test_a_name_that_is_taken_is_refused(tmp_path: Path, listed: str, gates: str, name: str) -> None:
    recipe = RECIPE.replace("[done, {python: gates.py}]", listed)
    with pytest.raises(RecipeError, match=f"r.cantrip.yaml:7:.*a gate '{name}', but the circle already has"):
        made(tmp_path, gates, recipe)


def test_the_module_stands_alone(tmp_path: Path) -> None:
    text = (
        "from dataclasses import dataclass\nfrom cantrip_acp import Gate\nmade = []\n\n@dataclass\nclass Row:\n    n: 'int'\n\n"
        "@Gate.of\ndef which() -> str:\n    'x'\n    made.append(Row(1))\n    return __name__ + str(len(made))\n"
    )
    before = set(sys.modules)
    one, two = (made(tmp_path, text).circle.gates["which"] for _ in range(2))
    assert "gates" not in set(sys.modules) - before
    assert str(tmp_path) not in sys.path
    call = [gate.handler({}, None) for gate in (one, one, two)]  # type: ignore[arg-type]
    assert [c[-1] for c in call] == ["1", "2", "1"]
    assert all(c.startswith("_cantrip_gates_") for c in call)


def test_a_function_with_the_decorator_is_exported(tmp_path: Path) -> None:
    text = (
        "from cantrip_acp import gate\n\n@gate\ndef plain() -> int:\n    'x'\n    return 1\n\n"
        "@gate(name='notes.save', pure=True, writes=True)\nasync def save(text: str) -> str:\n    'y'\n    return text\n\n"
        "def helper() -> int:\n    return 2\n"
    )
    gates = made(tmp_path, text).circle.gates
    assert [name for name in gates if name != "done"] == ["plain", "notes.save"]
    assert (gates["notes.save"].pure, gates["notes.save"].writes, gates["notes.save"].blocking) == (True, True, False)
    assert (gates["plain"].pure, gates["plain"].writes, gates["plain"].blocking) == (False, False, True)


BESIDE = {
    "gates.py": (
        "from __future__ import annotations\nimport shop.prices\nfrom cantrip_acp import gate\nfrom counting import count\n"
        "from . import counting as again\n\n@gate\ndef total(text: str) -> list:\n    'x'\n    import late\n"
        "    return [count(text), again.count is count, shop.prices.price(), late.NAME, count.__module__]\n"
    ),
    "counting.py": "def count(text): return len(text.split())\n",
    "shop/__init__.py": "",
    "shop/prices.py": "from . import data\nfrom .data import PRICE\ndef price(): return PRICE + data.PRICE\n",
    "shop/data.py": "PRICE = 2\n",
    "late.py": "NAME = 'late'\n",
}


def with_modules(folder: Path, **changed: str) -> Path:
    for name, text in {**BESIDE, **changed}.items():
        write(folder, text, name)
    return write(folder, RECIPE)


def test_a_file_of_gates_imports_the_modules_beside_it(tmp_path: Path) -> None:
    one = build(load(with_modules(tmp_path / "one")), workspace=tmp_path).circle.gates["total"]
    other = with_modules(tmp_path / "other", **{"counting.py": "def count(text): return -1\n"})
    two = build(load(other), workspace=tmp_path).circle.gates["total"]
    first, second = (gate.handler({"text": "a b c"}, None) for gate in (one, two))  # type: ignore[arg-type]
    assert first[:4] == [3, True, 4, "late"]
    assert second[:4] == [-1, True, 4, "late"], "each recipe has its own modules, also of the same name"
    assert first[4] != second[4]
    assert not {"counting", "shop", "late"} & set(sys.modules)
    assert not {str(tmp_path / "one"), str(tmp_path / "other")} & set(sys.path)


def test_trust_is_for_the_content_of_the_modules_beside_a_file(tmp_path: Path) -> None:
    folder, state = tmp_path / "ws", tmp_path / "state"
    with_modules(folder / ".cantrip")
    what = Ledger(state).grant(folder)
    assert {"gates.py", "counting.py", "shop/data.py", "late.py"} <= set(what.files)
    assert "total" in load_for_session("r", folder, state, trusted=False).circle.gates
    for name in ("shop/data.py", "late.py"):
        write(folder, BESIDE[name] + "# changed\n", f".cantrip/{name}")
        with pytest.raises(UntrustedRecipe):
            load_for_session("r", folder, state, trusted=False)
        Ledger(state).grant(folder)


def test_the_modules_that_were_judged_are_those_that_run(tmp_path: Path) -> None:
    recipe = load(with_modules(tmp_path))
    list(named_by(recipe))
    for name in BESIDE:
        if name != "gates.py":
            recipe.files.read(tmp_path / name)
            write(tmp_path, "raise SystemExit", name)
    gate = build(recipe, workspace=tmp_path).circle.gates["total"]
    assert gate.handler({"text": "a b"}, None)[:4] == [2, True, 4, "late"]  # type: ignore[arg-type]


def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    write(folder, RECIPE, ".cantrip/theirs.cantrip.yaml")
    write(folder, f"import pathlib\npathlib.Path({str(tmp_path / 'ran')!r}).touch()\n{GATES[35:]}", ".cantrip/gates.py")
    return folder


def test_nothing_of_an_untrusted_recipe_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, state = workspace(tmp_path), tmp_path / "state"
    with pytest.raises(UntrustedRecipe, match=r"circle.gates\[1\].python"):
        load_for_session("theirs", folder, state, trusted=False)
    assert inspect.circle_of(load("theirs", folder), folder).gates.keys() == {"done"}
    assert inspect.check(folder / ".cantrip/theirs.cantrip.yaml").ok
    assert command_line(["recipe", "show", str(folder / ".cantrip/theirs.cantrip.yaml")]) == 0
    assert "gates.py" in capsys.readouterr().out
    assert not (tmp_path / "ran").exists()


def test_trust_is_for_the_content_of_the_file(tmp_path: Path) -> None:
    folder, state = workspace(tmp_path), tmp_path / "state"
    what = Ledger(state).grant(folder)
    assert "gates.py" in what.files
    assert "count_words" in load_for_session("theirs", folder, state, trusted=False).circle.gates
    assert (tmp_path / "ran").exists()
    write(folder, GATES + "\n# changed\n", ".cantrip/gates.py")
    assert Ledger(state).state(folder, Files()) == "changed"
    with pytest.raises(UntrustedRecipe):
        load_for_session("theirs", folder, state, trusted=False)


def test_what_was_judged_is_what_runs(tmp_path: Path) -> None:
    """The file is read once: what is written meanwhile is for the next time."""
    path = write(tmp_path, RECIPE)
    write(tmp_path, GATES, "gates.py")
    recipe = load(path)
    recipe.files.read(recipe.path_of("gates.py"))
    write(tmp_path, "raise SystemExit", "gates.py")
    assert "count_words" in build(recipe, workspace=tmp_path).circle.gates


@pytest.mark.parametrize(("text", "says"), [(None, "no such file"), ("x = (", "gates.py:1: SyntaxError")])
def test_check_looks_at_the_file(tmp_path: Path, text: str | None, says: str) -> None:
    path = write(tmp_path, RECIPE)
    if text is not None:
        write(tmp_path, text, "gates.py")
    report = inspect.check(path)
    assert len(report.problems) == 1
    assert says in report.problems[0]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = write(tmp_path, RECIPE)
    with pytest.raises(
        RecipeError, match=r"r.cantrip.yaml:7:\d+: circle.gates\[1\].python: the file of gates: .*no such"
    ):
        build(load(path), workspace=tmp_path)
