"""Each example is no longer than the same task with pydantic-ai or smolagents, and the page says how long they are."""

import ast
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))
OTHERS = ROOT / "examples" / "compared"
PACKAGES = {"pydantic_ai": "pydantic-ai", "smolagents": "smolagents"}
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def lines_of_code(path: Path) -> int:
    """The lines of a script that are not blank, no comment and not the text at its top."""
    source = path.read_text()
    top = ast.parse(source).body[0].end_lineno or 0
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    code = [t for t in tokens if t.type not in _NO_CODE and t.start[0] > top]
    return len({line for token in code for line in range(token.start[0], token.end[0] + 1)})


def others_of(path: Path) -> dict[str, Path]:
    """The same task with other packages, by their names."""
    return {name: each for key, name in PACKAGES.items() if (each := OTHERS / f"{path.stem}_{key}.py").exists()}


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_no_longer_than_the_same_task_elsewhere(path: Path) -> None:
    others = others_of(path)
    assert others, f"write examples/compared/{path.stem}_pydantic_ai.py"
    for other in others.values():
        assert ast.get_docstring(ast.parse(other.read_text()))
        assert lines_of_code(path) <= lines_of_code(other)


def test_the_page_says_how_long_they_are() -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    for path in EXAMPLES:
        for name, other in others_of(path).items():
            own = f"[{path.stem}](../examples/{path.name})"
            theirs = f"[{name}](../examples/compared/{other.name})"
            row = f"| {own} | {lines_of_code(path)} | {theirs} | {lines_of_code(other)} |"
            assert any(line.startswith(row) for line in page.splitlines()), f"docs/python.md needs the row {row} …"


def test_every_comparison_has_its_example() -> None:
    known = {other for path in EXAMPLES for other in others_of(path).values()}
    assert set(OTHERS.glob("*.py")) == known
