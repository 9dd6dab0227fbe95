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
CLASS_LINES, CLASS_FIELDS = 400, 12
LARGER = {
    "acp.Agent": (510, 12),
    "acp.Connection": (400, 20),
    "acp.OpenedSession": (400, 14),
    "acp.Session": (550, 34),
    "acp.Translator": (500, 14),
    "acp._Call": (400, 14),
    "checkpoints.Watcher": (450, 22),
    "cli.ClientSession": (400, 23),
    "cli.InputLine": (400, 22),
    "cli._Report": (400, 15),
    "core.Cantrip": (450, 12),
    "core.CantripDefinition": (400, 17),
    "core.CastResult": (400, 14),
    "core.CastState": (400, 21),
    "core.Checkpoints": (500, 15),
    "core.Context": (550, 26),
    "core.Entity": (450, 20),
    "core.EntityState": (400, 32),
    "core.RecordedTurn": (400, 14),
    "core.ReplayedContext": (400, 15),
    "core.SessionKeeper": (400, 14),
    "core.TurnBuilder": (400, 28),
    "gates.Wards": (400, 34),
    "crystals.AnthropicCrystal": (400, 18),
    "crystals.ChatAnswer": (400, 20),
    "crystals.ChatCrystal": (400, 21),
    "crystals.GoogleCrystal": (400, 16),
    "crystals.OpenAICrystal": (400, 17),
    "crystals.ResponseReader": (400, 21),
    "gates.Connection": (400, 18),
    "gates.Gate": (400, 23),
    "core.GateExecutor": (400, 16),
    "gates.McpServer": (400, 14),
    "gates._FileRead": (400, 17),
    "loom.BaseLoom": (550, 12),
    "loom.Index": (400, 23),
    "loom.JsonlStore": (500, 22),
    "loom.PostgresStore": (400, 16),
    "loom.SqliteStore": (500, 12),
    "loom.Statistics": (400, 20),
    "loom.ThreadLine": (400, 17),
    "loom.Tree": (400, 16),
    "lsp.LoomCache": (400, 14),
    "lsp.LoomDocument": (400, 27),
    "mediums.Cell": (400, 21),
    "mediums.CodeSession": (600, 24),
    "sandbox.Collector": (400, 20),
    "sandbox.MontyWorker": (400, 23),
    "sandbox.Policy": (400, 22),
    "sandbox.Running": (400, 28),
    "sandbox.Sandbox": (400, 20),
    "sandbox.Service": (400, 15),
    "sandbox.Tree": (400, 14),
    "sandbox.Wire": (400, 17),
    "sandbox.WireSession": (400, 16),
    "sandbox.Worker": (450, 24),
    "substrate.SessionView": (400, 21),
    "training.Episode": (400, 21),
    "training.Graph": (400, 15),
    "training.Sampler": (400, 17),
    "training._TraceImport": (500, 12),
    "tuplespace.Answers": (400, 17),
    "tuplespace.Attempt": (400, 18),
    "tuplespace.SqlTupleStore": (600, 12),
    "tuplespace.Worker": (450, 30),
    "tuplespace.WorkerMetrics": (400, 19),
}
"""Classes that are larger, by top folder and name, with the lines and the fields that they may have. No number here grows."""


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


def fields_of(node: ast.ClassDef) -> set[str]:
    """What an instance holds: the fields that the class declares, and what its methods set on ``self``."""
    set_here = (each for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store))
    own = {each.attr for each in set_here if isinstance(each.value, ast.Name) and each.value.id == "self"}
    declared = (each for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name))
    return own | {each.target.id for each in declared if "ClassVar" not in ast.unparse(each.annotation)}


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
            lines, fields = (node.end_lineno or 0) - node.lineno + 1, len(fields_of(node)) if acts(node) else 0
            most = LARGER.get(name, (CLASS_LINES, CLASS_FIELDS))
            if lines > most[0] or fields > most[1]:
                two.append(f"{name} has {lines} lines and {fields} fields; {most[0]} and {most[1]} are allowed")
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
