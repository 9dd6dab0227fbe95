"""ARCHITECTURE.md is short and true: it names every folder, and every path in it and in the pages about the code exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cantrip_acp"
TEXT = (ROOT / "ARCHITECTURE.md").read_text()
LINES = 160
PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*/?)`")
ENDINGS = (".py", ".md", ".ts", ".sh", ".json", ".yaml", ".toml", "/")
# Where a page's paths begin, besides the repository and the package.
PAGES: dict[str, tuple[str, ...]] = {
    "ARCHITECTURE.md": (),
    "CONTRIBUTING.md": ("tests/acp", "tests/editors", "tools/models"),
    "docs/processes.md": (),
    "docs/delegation.md": ("cantrip_acp/delegation",),
    "docs/loaded-modules.md": (),
    "docs/sessions.md": (),
    "docs/vscode-extension.md": ("vscode-extension", "vscode-extension/src/acp", "vscode-extension/src/chat"),
}
# Names in a protocol or in a folder of the user.
FOREIGN = {"AGENTS.md", "fs/", "terminal/"}


def section(title: str) -> str:
    found = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"no section {title!r}"
    return found


def test_it_is_read_in_ten_minutes() -> None:
    assert len(TEXT.splitlines()) <= LINES


def test_the_table_has_every_folder() -> None:
    rows = re.findall(r"^\| ((?:`[^`]+`(?:, )?)+) \| (.+) \|$", section("Folders"), re.MULTILINE)
    named = {name.rstrip("/") for names, _ in rows for name in re.findall(r"`([^`]+)`", names)}
    there = {f"cantrip_acp/{p.parent.name}" for p in PACKAGE.glob("*/__init__.py")}
    assert there - named == set()
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_a_row_names_only_folders_that_exist() -> None:
    """Inside the row of `cantrip_acp/gates/`, `web/` is `cantrip_acp/gates/web/`."""
    missing = []
    for names, text in re.findall(r"^\| (`cantrip_acp/[^|]+) \| (.+) \|$", section("Folders"), re.MULTILINE):
        homes = [ROOT / name for name in re.findall(r"`([^`]+)`", names)]
        for name in re.findall(r"`([a-z_]+(?:/|\.py))`", text):
            if not any((home / name).exists() for home in homes):
                missing.append(f"{names}: {name}")
    assert missing == []


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    bases = [ROOT, PACKAGE, *(ROOT / base for base in PAGES[page])]
    text = (ROOT / page).read_text()
    if page == "ARCHITECTURE.md":
        # Its rows name folders below their own: the test above looks at those.
        text = text.replace(section("Folders"), "")
    named = {name for name in PATH.findall(text) if name.endswith(ENDINGS)} - FOREIGN
    assert {name for name in named if not any((base / name).exists() for base in bases)} == set()


DOTTED = re.compile(r"\bcantrip_acp((?:\.\w+)+)")
# Groups of entry points, and modules that an entity loads.
NO_MODULES = re.compile(r"cantrip_acp\.(exports|hot\b.*)")


def names_something(dotted: str) -> bool:
    """Whether it is a module, or a name that stands in one."""
    path, rest = ROOT, dotted.split(".")
    while rest and (path / rest[0]).is_dir():
        path /= rest.pop(0)
    file = path / "__init__.py"
    if rest and path.joinpath(f"{rest[0]}.py").is_file():
        file = path / f"{rest.pop(0)}.py"
    return all(re.search(rf"\b{name}\b", file.read_text()) for name in rest)


@pytest.mark.parametrize(
    "page",
    ["README.md", *PAGES, *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md") if f"docs/{p.name}" not in PAGES)],
)
def test_modules_exist(page: str) -> None:
    named = {"cantrip_acp" + rest for rest in DOTTED.findall((ROOT / page).read_text())}
    assert {name for name in named if not NO_MODULES.fullmatch(name) and not names_something(name)} == set()


# Imports that go up: from, to, and whether only inside functions.
UPWARD = {
    ("mediums/", "core/circle.py", False),
    ("loom/query/", "training/rewards.py", False),
    ("core/", "delegation/", True),
    ("mediums/", "delegation/", True),
    ("core/forking/", "training/export/", True),
    ("core/wards.py", "files/protected_paths.py", True),
    ("files/", "loom/records/record_heads.py", True),
    ("gates/testing/", "mediums/bash.py", True),
}
FRONT_ENDS = {("lsp", "conformance", False), ("lsp", "cli", True)}


def layers() -> dict[str, int]:
    """The layer of each folder and module that the first sentence of a layer names."""
    items = re.findall(r"^(\d+)\. (.+(?:\n   .+)*)", section("Layers"), re.MULTILINE)
    # The exceptions follow in further sentences.
    firsts = [(int(number), re.split(r"\.\s", text)[0]) for number, text in items]
    return {name: number for number, first in firsts for name in re.findall(r"`([\w/.]+)`", first)}


def imports(node: ast.AST, inside: bool = False) -> Iterator[tuple[str, bool]]:
    """Modules that are imported, and whether inside a function; those for types alone are left out."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.expr):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        if isinstance(child, ast.Import):
            yield from ((alias.name, inside) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
            yield from ((f"{child.module}.{alias.name}", inside) for alias in child.names)
        yield from imports(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def path_of(module: str) -> str | None:
    """The file of a module, or of the module that a name stands in, below the package."""
    if not module.startswith("cantrip_acp."):
        return None
    path = PACKAGE.joinpath(*module.split(".")[1:])
    for candidate in (path.with_suffix(".py"), path / "__init__.py", path.parent.with_suffix(".py")):
        if candidate.is_file():
            return str(candidate.relative_to(PACKAGE))
    return str((path.parent / "__init__.py").relative_to(PACKAGE))


def test_imports_go_down_the_layers() -> None:
    known = layers()
    assert {f"{p.parent.name}/" for p in PACKAGE.glob("*/__init__.py")} <= known.keys()
    front = {name.rstrip("/") for name, number in known.items() if number == 1}
    wrong = set()
    for file in sorted(PACKAGE.glob("*/**/*.py")):
        source = str(file.relative_to(PACKAGE))
        if source.startswith("demo/project/"):
            continue
        own = known.get(source, known[source.partition("/")[0] + "/"])
        for module, inside in imports(ast.parse(file.read_text())):
            target = path_of(module)
            if target is None or "/" not in target:
                continue
            top, other = source.partition("/")[0], target.partition("/")[0]
            if known.get(target, known[other + "/"]) < own:
                allowed = any(
                    source.startswith(a) and target.startswith(b) and (inside or not lazily) for a, b, lazily in UPWARD
                )
            elif top != other and {top, other} <= front and top != "cli":
                allowed = (top, other, False) in FRONT_ENDS or (inside and (top, other, True) in FRONT_ENDS)
            else:
                continue
            if not allowed:
                wrong.add(f"{source} imports {target}{' inside a function' if inside else ''}")
    assert wrong == set()


def test_the_invariants_that_the_contracts_name_are_there() -> None:
    numbers = {int(n) for n in re.findall(r"^(\d+)\. ", section("Invariants"), re.MULTILINE)}
    assert numbers == set(range(1, len(numbers) + 1))
    contracts = re.findall(r"^; Invariants? ([\d, and]+)", (ROOT / ".importlinter").read_text(), re.MULTILINE)
    named = {int(n) for each in contracts for n in re.findall(r"\d+", each)}
    assert {1, 2, 3, 5} <= named
    assert named <= numbers


def test_every_row_of_the_processes_is_whole() -> None:
    text = (ROOT / "docs/processes.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| what ")]
    assert len(rows) > 30
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert len(cells) == 5, row
        assert all(cells), row
