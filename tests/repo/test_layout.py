"""The house's own rules that a program can check: file sizes, names, docstrings, what start-up may import."""

import ast
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cantrip_acp"
SAMPLES = (PACKAGE / "demo" / "project", PACKAGE / "evaluation" / "template", PACKAGE / "training" / "examples")
"""Folders as users have them, with a recipe and its Python file."""
SOURCES = sorted(p for p in [*PACKAGE.rglob("*.py"), *(ROOT / "bench").rglob("*.py")] if ".venvs" not in p.parts)
OURS = [p for p in SOURCES if not set(SAMPLES) & set(p.parents)]
NAMELESS = {"utils", "util", "helpers", "helper", "manager", "managers", "common", "misc"}
LINES = 800


def ids(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", OURS, ids=ids)
def test_a_file_is_one_noun(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= LINES, f"{ids(path)} has grown past {LINES} lines: it is two things"
    assert path.stem not in NAMELESS, f"{path.stem} says nothing of what is in {ids(path)}"
    assert path.parent.name not in NAMELESS
    if text.strip():
        assert ast.get_docstring(ast.parse(text)), f"{ids(path)} does not say what it is"


@pytest.mark.parametrize("folder", sorted({p.parent for p in OURS if PACKAGE in p.parents}), ids=ids)
def test_a_folder_says_what_lives_there(folder: Path) -> None:
    if any(folder.glob("*.py")):
        assert (folder / "__init__.py").is_file(), (
            f"{ids(folder)} has no __init__.py, so it is not in the wheel's package"
        )


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
