"""`docs/rules.md` explains every rule id that the package, the docs and the conformance suite name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "cantrip_acp"
PAGE = ROOT / "docs/rules.md"
# Shaped like an id of a rule: any capital letters, so that a new family is found too.
ID = re.compile(r"(?<![\w.-])(?!(?:CVE|GPT|ISO|KEY|RFC|SHA|UTF)-)(?:[A-Z]+-\d+|§\d+(?:\.\d+)*)(?![\w-])")
ROW = re.compile(r"^\| (\S+) \| (.+) \|$", re.MULTILINE)


def entries() -> dict[str, str]:
    return {name: meaning for name, meaning in ROW.findall(PAGE.read_text()) if ID.fullmatch(name)}


def sources() -> list[Path]:
    code = [p for p in PACKAGE.rglob("*.py") if PACKAGE / "demo/project" not in p.parents]
    pages = [p for p in (*PACKAGE.rglob("*.md"), *(ROOT / "docs").glob("*.md")) if p != PAGE]
    more = ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tests.yaml", "pyproject.toml")
    return [*code, *pages, *(ROOT / name for name in more)]


def test_each_id_has_an_entry() -> None:
    used: dict[str, str] = {}
    for path in sources():
        for name in ID.findall(path.read_text()):
            used.setdefault(name, str(path.relative_to(ROOT)))
    assert {"LOOP-3", "CIRCLE-9", "D-009", "§6.4"} <= used.keys(), "the search finds what it is to find"
    known = entries()
    assert {name: where for name, where in used.items() if name not in known} == {}


def test_each_entry_stands_once_and_says_something() -> None:
    rows = [name for name, _ in ROW.findall(PAGE.read_text()) if ID.fullmatch(name)]
    assert len(rows) == len(set(rows))
    assert all(len(meaning) > 20 and meaning.endswith(".") for meaning in entries().values())


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/README.md"])
def test_the_page_is_easy_to_find(page: str) -> None:
    assert re.search(r"\]\((?:docs/)?rules\.md\)", (ROOT / page).read_text())
