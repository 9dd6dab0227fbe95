"""ARCHITECTURE.md is short and true: it names every folder, and every path in it and in the pages about the code exists."""

from __future__ import annotations

import importlib
import re
import tomllib
from pathlib import Path

import grimp
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
    "CONTRIBUTING.md": ("tests/acp/integration", "tests/e2e/editors", "tools/models"),
    "docs/processes.md": (),
    "docs/delegation.md": ("cantrip_acp/core/delegation",),
    "docs/loaded-modules.md": (),
    "docs/sessions.md": (),
    "docs/vscode-extension.md": tuple(
        f"vscode-extension/{each}".rstrip("/") for each in ("", "src/acp", "src/chat", "src/loom", "media/chat")
    ),
}
# Names in a protocol or in a folder of the user.
FOREIGN = {"AGENTS.md", "fs/", "terminal/", "team.cantrip.yaml"}


def section(title: str) -> str:
    found = TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    assert found, f"no section {title!r}"
    return found


def test_it_is_read_in_ten_minutes() -> None:
    assert len(TEXT.splitlines()) <= LINES


RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
ROWS = re.findall(
    r"^\| ((?:`[^`]+`(?:, )?)+) \| ([^|]+) \| ([^|]*)\|$", section("Folders and their faces"), re.MULTILINE
)
"""Of each row of the table: the folders, what is in them, and the modules of their face."""


def test_the_table_has_every_folder() -> None:
    named = {name.rstrip("/") for names, _, _ in ROWS for name in re.findall(r"`([^`]+)`", names)}
    there = {f"cantrip_acp/{p.parent.name}" for p in PACKAGE.glob("*/__init__.py")}
    assert there - named == set()
    assert {name for name in named if not (ROOT / name).exists()} == set()


def test_a_row_names_only_folders_that_exist() -> None:
    """Inside the row of `cantrip_acp/gates/`, `web/` is `cantrip_acp/gates/web/`."""
    missing = []
    for names, text, _ in ROWS:
        homes = [ROOT / name for name in re.findall(r"`(cantrip_acp/[^`]+)`", names)]
        for name in re.findall(r"`([a-z_]+(?:/|\.py))`", text) if homes else ():
            if not any((home / name).exists() for home in homes):
                missing.append(f"{names}: {name}")
    assert missing == []


def test_the_table_has_the_order_of_the_layers() -> None:
    layers = [name for row in RULES["contracts"][0]["layers"] for name in row.split(" | ")]
    folders = [names.strip("`/").removeprefix("cantrip_acp/") for names, _, _ in ROWS if "cantrip_acp/" in names]
    assert [name for name in folders if "/" not in name] == [
        each for each in layers if each not in ("__main__", "version")
    ]


def test_the_table_has_the_faces() -> None:
    for names, _, shown in ROWS:
        folder = PACKAGE / names.strip("`/").removeprefix("cantrip_acp/")
        if "cantrip_acp/" not in names or folder.parent != PACKAGE or folder.name == "sandbox":
            continue
        names_of_face = importlib.import_module(f"cantrip_acp.{folder.name}").__all__
        modules = [n for n in names_of_face if (folder / n).is_dir() or (folder / f"{n}.py").is_file()]
        assert shown.strip().split(", ") == sorted(modules), f"of {folder.name}: {', '.join(sorted(modules))}"


@pytest.mark.parametrize("page", PAGES)
def test_paths_exist(page: str) -> None:
    bases = [ROOT, PACKAGE, *(ROOT / base for base in PAGES[page])]
    text = (ROOT / page).read_text()
    if page == "ARCHITECTURE.md":
        # Its rows name folders below their own: the test above looks at those.
        text = text.replace(section("Folders and their faces"), "")
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


NAMED = re.compile(r"(?<!`)`([a-z_]+(?:\.\w+)+)`(?!`)")
FOLDERS = [PACKAGE, *(path.parent for path in PACKAGE.rglob("__init__.py"))]


def test_dotted_names_in_docstrings_exist() -> None:
    """`core.casting.loop` and `casting.loop.CastRun` name what is there. Words with dots that begin with no folder's name, such
    as attributes, are not looked at."""
    folders = {folder.name for folder in FOLDERS}
    missing = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for name in NAMED.findall(path.read_text()):
            if name.split(".")[0] not in folders | {"cantrip_acp"} or name.endswith((".db", ".py")):
                continue
            whole = name.removeprefix("cantrip_acp.")
            if not any(
                names_something(f"{folder.relative_to(ROOT).as_posix().replace('/', '.')}.{whole}")
                for folder in FOLDERS
            ):
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []


def test_the_rules_of_imports_see_all() -> None:
    """Imports for types count, and a new folder needs a layer."""
    assert RULES["exclude_type_checking_imports"] is False
    assert RULES["contracts"][0]["exhaustive"] is True


def test_there_are_no_import_cycles() -> None:
    graph = grimp.build_graph("cantrip_acp", exclude_type_checking_imports=False, cache_dir=None)
    imports = {m: graph.find_modules_directly_imported_by(m) for m in graph.modules}
    # Remove modules that import nothing of what is left, again and again: what remains is in a cycle, or imports one.
    left = set(imports)
    while leaves := {m for m in left if not imports[m] & left}:
        left -= leaves
    while unused := {m for m in left if not any(m in imports[other] for other in left)}:
        left -= unused
    assert left == set()


def test_the_invariants_that_the_contracts_name_are_there() -> None:
    numbers = {int(n) for n in re.findall(r"^(\d+)\. ", section("Invariants"), re.MULTILINE)}
    assert numbers == set(range(1, len(numbers) + 1))
    contracts = re.findall(
        r"^\[\[tool.importlinter.contracts\]\] # Invariants? ([\d, and]+)",
        (ROOT / "pyproject.toml").read_text(),
        re.MULTILINE,
    )
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
