"""The house's own rules that a program can check: file sizes, names, docstrings, what start-up may import."""

import ast
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cantrip_acp"
SAMPLES = (PACKAGE / "demo" / "project", PACKAGE / "evaluation" / "template", PACKAGE / "training" / "examples")
"""Folders as users have them, with a recipe and its Python file."""
SOURCES = sorted(p for p in [*PACKAGE.rglob("*.py"), *(ROOT / "bench").rglob("*.py")] if ".venvs" not in p.parts)
OURS = [p for p in SOURCES if not set(SAMPLES) & set(p.parents)]
NAMELESS = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
MOST_BY_NAME = {"getattr": 59, "hasattr": 27}
"""Calls with the name of an attribute written out. What may be missing of ours is in a base class with defaults
(`text.defaults`); these ask objects of other packages and of entities. The numbers only shrink."""
CLASS_LINES, CLASS_STATE, CLASS_FIELDS = 400, 12, 24
EMPTY = {"set", "dict", "list", "deque", "bytearray", "Counter", "OrderedDict"}
LARGER = {
    "loom.Index": (400, 18, 24),
    "loom.Tree": (400, 15, 24),
    "sandbox.Collector": (400, 18, 24),
    "sandbox.Running": (400, 15, 28),
    "sandbox.Worker": (450, 16, 24),
}
"""Classes that are larger, by top folder and name, with the lines, fields that are state, and fields that they may have. No number
here grows."""


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


def asked_by_name(tree: ast.AST) -> Counter[str]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call) and len(node.args) > 1)
    return Counter(ast.unparse(call.func) for call in calls if isinstance(call.args[1], ast.Constant))


def test_what_may_be_missing_is_in_a_base_class() -> None:
    found = sum((asked_by_name(ast.parse(path.read_text())) for path in PACKAGE.rglob("*.py")), Counter())
    assert {name: found[name] for name in MOST_BY_NAME if found[name] > MOST_BY_NAME[name]} == {}
    assert asked_by_name(ast.parse("getattr(a, 'b', None); getattr(a, b); hasattr(c, 'd')")) == {
        "getattr": 1,
        "hasattr": 1,
    }


def test_a_file_is_one_noun() -> None:
    nameless = [ids(path) for path in OURS if {path.stem, path.parent.name} & NAMELESS]
    assert nameless == [], "these names say nothing of what is in them"
    silent = [
        ids(path) for path in OURS if (text := path.read_text()).strip() and not ast.get_docstring(ast.parse(text))
    ]
    assert silent == [], "these do not say what they are"


def fields_of(node: ast.ClassDef) -> tuple[set[str], set[str]]:
    """All fields of an instance, and those that are its state.

    What ``__init__`` takes over from its arguments, or computes from them, is no state if no method sets it again and it is
    no collection that begins empty: the class works with it. A frozen class has no state: it is a value, whose fields are
    often a written format or a set of options. Of another dataclass or struct everything is state, since everybody may set it.
    """
    header = " ".join(map(ast.unparse, (*node.decorator_list, *node.bases, *node.keywords)))
    made = (each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name))
    fields = {ast.unparse(each.target) for each in made if "ClassVar" not in ast.unparse(each.annotation)}
    if "frozen=True" in header:
        return set(), set()
    state = set(fields) if "dataclass" in header or "Struct" in header else set()
    for method in (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)):
        given = set()
        if method.name == "__init__":
            given = {id(at) for each in ast.walk(method) if is_given(each) for at in ast.walk(each)}
        for each in ast.walk(method):
            if (
                isinstance(each, ast.Attribute)
                and isinstance(each.ctx, ast.Store)
                and ast.unparse(each.value) == "self"
            ):
                fields.add(each.attr)
                state |= set() if id(each) in given else {each.attr}
    return fields, state


def is_given(node: ast.AST) -> bool:
    """Whether a statement of ``__init__`` sets something that is not empty: it comes from outside."""
    value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
    if isinstance(value, ast.Call):
        return bool(value.args or value.keywords) or ast.unparse(value.func) not in EMPTY
    return value is not None and not isinstance(value, ast.Constant | ast.List | ast.Dict | ast.Set)


def acts(node: ast.ClassDef) -> bool:
    """Whether a class is more than a record: it has a method beside its ways to be made and read. A protocol holds nothing."""
    if any(ast.unparse(base) == "Protocol" for base in node.bases):
        return False
    reads = {"property", "classmethod", "staticmethod", "cached_property"}
    methods = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return any(
        not each.name.startswith("__") and not reads & {ast.unparse(d).partition("(")[0] for d in each.decorator_list}
        for each in methods
    )


def test_a_class_is_one_thing() -> None:
    two = []
    for path in (each for each in OURS if PACKAGE in each.parents):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            name = f"{path.relative_to(PACKAGE).parts[0]}.{node.name}"
            fields, state = fields_of(node) if acts(node) else ((), ())
            sizes = ((node.end_lineno or 0) - node.lineno + 1, len(state), len(fields))
            most = LARGER.get(name, (CLASS_LINES, CLASS_STATE, CLASS_FIELDS))
            if any(size > limit for size, limit in zip(sizes, most, strict=True)):
                two.append(f"{name} has {sizes} lines, fields of its state, and fields; {most} are allowed")
    assert two == [], "these are two things"


def test_a_folder_says_what_lives_there() -> None:
    folders = sorted({path.parent for path in OURS if PACKAGE in path.parents})
    without = [ids(folder) for folder in folders if not (folder / "__init__.py").is_file()]
    assert without == [], "these have no __init__.py, so they are not in the wheel's package"


def imported_by(statement: str) -> set[str]:
    """Modules that a fresh interpreter has after a statement and did not have before."""
    script = f"import sys; before = set(sys.modules); {statement}; print(*sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else() -> None:
    loaded = {name for name in imported_by("import cantrip_acp") if not name.startswith("__editable__")}
    assert loaded <= {"cantrip_acp", "cantrip_acp.version", "__future__"}


def test_the_agent_loads_nothing_heavy_before_it_answers() -> None:
    loaded = {name.partition(".")[0] for name in imported_by("import cantrip_acp.acp.start")}
    assert not loaded & {
        "anyio",
        "asyncio",
        "click",
        "msgspec",
        "opentelemetry",
        "pydantic",
        "rich",
        "ruamel",
        "typing",
    }


def test_nothing_heavy_is_loaded_by_the_core() -> None:
    statement = "from cantrip_acp import Cantrip, Call, Circle, Gate, Loom, ScriptedCrystal"
    loaded = {name.partition(".")[0] for name in imported_by(statement)}
    assert not loaded & {"click", "pydantic", "rich", "ruamel", "jsonschema", "acp", "anthropic", "openai"}


def test_the_console_scripts_exist() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert set(scripts) == {"cantrip", "cantrip-acp"}
    for target in scripts.values():
        module, _, function = target.partition(":")
        subprocess.run([sys.executable, "-c", f"from {module} import {function}"], check=True)
