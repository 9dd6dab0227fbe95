"""A folder's face is the `__all__` of its `__init__`: names, and modules that other folders may import. The rest is its own."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "cantrip_acp"
FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
MOST = 25
LARGER = {"tuplespace": 30, "sandbox": 26}


def is_module(dotted: str) -> bool:
    path = ROOT / dotted.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()


def face(package: str) -> frozenset[str]:
    return frozenset(getattr(import_module(package), "__all__", ()))


def hidden(dotted: str) -> str | None:
    """The first part of a dotted name that the package above it does not show. None if others may import it."""
    above, *rest = dotted.removeprefix("cantrip_acp.").split(".")
    above = f"cantrip_acp.{above}"
    for name in rest:
        if (ROOT / above.replace(".", "/")).is_dir() and name not in face(above):
            return f"{above} does not show {name}"
        above = f"{above}.{name}"
    return None


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """The line and the dotted name of everything of ours that a file imports."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").startswith("cantrip_acp"):
            for each in node.names:
                yield node.lineno, f"{node.module}.{each.name}"
        elif isinstance(node, ast.Import):
            for each in node.names:
                if each.name.startswith("cantrip_acp."):
                    yield node.lineno, each.name


def strangers(folder: str) -> Iterator[Path]:
    """The files of a folder of the package, and its tests."""
    yield from (PACKAGE / folder).rglob("*.py")
    yield from (ROOT / "tests" / folder).rglob("*.py")


def test_what_is_hidden_is_found() -> None:
    assert hidden("cantrip_acp.loom.loom.Loom") is None
    assert hidden("cantrip_acp.loom.stores.checksum.strip") == "cantrip_acp.loom.stores does not show checksum"
    assert hidden("cantrip_acp.sandbox.launch") == "cantrip_acp.sandbox does not show launch"
    assert ("cantrip_acp.types.errors.LoomError") in {name for _, name in imported(PACKAGE / "loom" / "loom.py")}


@pytest.mark.parametrize("folder", FOLDERS)
def test_others_are_imported_through_their_faces(folder: str) -> None:
    """By the folder, and by its tests: `tests/loom` may look into `cantrip_acp/loom` alone."""
    own = f"cantrip_acp.{folder}"
    found = [
        f"{path.relative_to(ROOT)}:{line}: {why}"
        for path in strangers(folder)
        for line, name in imported(path)
        if not f"{name}.".startswith(f"{own}.") and is_module(".".join(name.split(".")[:2])) and (why := hidden(name))
    ]
    assert found == []


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_face_is_small_and_names_what_is_there(folder: str) -> None:
    package = f"cantrip_acp.{folder}"
    module = import_module(package)
    assert module.__doc__
    assert face(package)
    assert len(face(package)) <= LARGER.get(folder, MOST)
    assert [name for name in face(package) if not is_module(f"{package}.{name}") and not hasattr(module, name)] == []
