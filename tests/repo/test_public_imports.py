"""Everything that the documents and the examples import from this package is public: it is in the reference of the Python API."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import cantrip_acp
from tools.reference import OF_TRAINERS, PUBLIC

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for path in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "editors").rglob("*.md"))
    if "reference" not in path.parts
)
PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
BLOCK = re.compile(r"^(?P<fence>```+)python\n(?P<body>.*?)^(?P=fence)$", re.MULTILINE | re.DOTALL)
HERE_PYTHON = re.compile(
    r"^[^\S\n]*(?:from cantrip_acp[\w.]* import [^\n;'\"]+|import cantrip_acp[\w.]*)", re.MULTILINE
)
NAMED = re.compile(r"`(cantrip_acp\.[\w.]+)`")
GROUPS = {"cantrip_acp.gates", "cantrip_acp.mediums", "cantrip_acp.crystals", "cantrip_acp.exports", "cantrip_acp.hot"}
"""Entry points of other packages, and the name under which an entity's own modules live."""
FOR_DEVELOPERS = {"vscode-extension.md", "releasing.md", "processes.md", "rules.md", "acp.md"}


def public_names(module: str) -> set[str]:
    """The names of ``__all__`` without modules, read from the text: a module for a trainer cannot be imported without it."""
    if module == "cantrip_acp":
        return set(cantrip_acp.__all__)
    path = ROOT / module.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    values: dict[str, object] = {}
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name == "_HOMES":
                values[name] = ast.literal_eval(node.value)
            elif name == "__all__":
                made = isinstance(node.value, ast.Call)
                values[name] = list(values["_HOMES"]) if made else ast.literal_eval(node.value)  # type: ignore[call-overload]
    names = set(values["__all__"])  # type: ignore[call-overload]
    return {name for name in names if not (path / name).is_dir() and not (path / f"{name}.py").is_file()}


MODULES = {name: public_names(name) for name in ("cantrip_acp", *PUBLIC, *OF_TRAINERS)}


def imports(text: str) -> Iterator[tuple[str, str | None]]:
    """Module and name of each import of this package. Of a session with prompts only the lines with a prompt count."""
    if text.lstrip().startswith(">>> "):
        text = "\n".join(line[4:] for line in text.splitlines() if line.startswith((">>> ", "... ")))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "cantrip_acp":
            yield from ((str(node.module), each.name) for each in node.names)
        elif isinstance(node, ast.Import):
            yield from ((each.name, None) for each in node.names if each.name.split(".")[0] == "cantrip_acp")


def is_public(module: str, name: str | None) -> bool:
    if name is None or f"{module}.{name}" in MODULES:
        return module in MODULES or f"{module}.{name}" in MODULES
    return name in MODULES.get(module, ())


@pytest.mark.parametrize("path", [*PAGES, *PROGRAMS], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_import_is_public(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".py":
        pieces = [text]
    else:
        bodies = [found["body"] for found in BLOCK.finditer(text)]
        # Programs within commands of a shell, such as `python -c`.
        others = [line.strip() for line in HERE_PYTHON.findall(BLOCK.sub("", text))]
        pieces = [*bodies, *others]
    wrong = [f"{module}: {name}" for piece in pieces for module, name in imports(piece) if not is_public(module, name)]
    assert not wrong, "import these from a public module, or make them public (tools/reference.py)"


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_module_that_a_page_names_is_public(path: Path) -> None:
    if path.name in FOR_DEVELOPERS:
        return
    for named in NAMED.findall(path.read_text()):
        module, _, name = named.rpartition(".")
        if named not in MODULES and name not in MODULES.get(module, ()):
            assert any(named == group or named.startswith(f"{group}.") for group in GROUPS), named


def test_what_is_public_can_be_imported() -> None:
    import importlib

    for module in ("cantrip_acp", *PUBLIC):
        made = importlib.import_module(module)
        for name in MODULES[module]:
            assert getattr(made, name).__doc__, (module, name)
