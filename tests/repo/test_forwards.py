"""An object is asked for what it has: few properties pass on what a part of the object has under another path."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "cantrip_acp"
MOST = 10


def is_forward(method: ast.stmt) -> bool:
    """Whether it is a property that only returns ``self.part.name``."""
    if not isinstance(method, ast.FunctionDef):
        return False
    if not any(ast.unparse(each).endswith("property") for each in method.decorator_list):
        return False
    body = [each for each in method.body if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant))]
    if len(body) != 1 or not isinstance(body[0], ast.Return):
        return False
    value, depth = body[0].value, 0
    while isinstance(value, ast.Attribute):
        value, depth = value.value, depth + 1
    return depth > 1 and isinstance(value, ast.Name) and value.id == "self"


def forwards(tree: ast.AST, where: str) -> Iterator[str]:
    for owner in ast.walk(tree):
        if isinstance(owner, ast.ClassDef):
            for method in owner.body:
                if is_forward(method):
                    yield f"{where}:{method.lineno}: {ast.unparse(method.body[-1])}"  # type: ignore[attr-defined]


def test_few_properties_only_pass_on() -> None:
    found = [
        each
        for path in sorted(PACKAGE.rglob("*.py"))
        for each in forwards(ast.parse(path.read_text()), path.relative_to(PACKAGE).as_posix())
    ]
    assert len(found) <= MOST, "\n".join(found)


def test_it_counts_forwards_alone() -> None:
    source = '''
class Owner:
    @property
    def passed_on(self):
        """What it is."""
        return self.part.name
    @cached_property
    def kept(self): return self.part.other.name
    @property
    def own(self): return self._own
    @property
    def computed(self): return self.part.name + 1
    def method(self): return self.part.name
'''
    assert len(list(forwards(ast.parse(source), "x"))) == 2
