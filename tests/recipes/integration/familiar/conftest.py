"""The built-in Familiar over a small project of its own, played by scripts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.core.cantrip import Cantrip
from cantrip_acp.recipes import load_for_session

FILES = {
    "shop/__init__.py": "",
    "shop/basket.py": '''"""A basket of things with prices in cents."""


def total_price(items, discount=0):
    """The sum of the prices, less a discount in per cent."""
    total = sum(price for _, price in items)
    return total - discount
''',
    "shop/receipt.py": """from shop.basket import total_price


def receipt(items, discount=0):
    lines = [f"{name}: {price}" for name, price in items]
    return "\\n".join([*lines, f"total: {total_price(items, discount)}"])
""",
    "tests/test_basket.py": """from shop.basket import total_price


def test_sum():
    assert total_price([("pen", 100), ("ink", 300)]) == 400


def test_discount_is_in_per_cent():
    assert total_price([("pen", 100), ("ink", 300)], discount=10) == 360
""",
    "tests/test_receipt.py": """from shop.receipt import receipt


def test_receipt():
    assert receipt([("pen", 100)]) == "pen: 100\\ntotal: 100"
""",
    "conftest.py": "",
    "Makefile": "built.txt: shop/basket.py\n\twc -l shop/basket.py > built.txt\n",
    "AGENTS.md": "Prices are whole cents. Run the tests with pytest.\n",
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A git repository with a bug, and tests of which one fails."""
    settings = tmp_path / "gitconfig"
    settings.write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n[init]\n\tdefaultBranch = main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    folder = tmp_path / "shop"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(folder, "init", "-q")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "Open the shop")
    return folder


def git(where: Path, *args: str) -> str:
    done = subprocess.run(["git", *args], cwd=where, capture_output=True, text=True, check=True)
    return done.stdout.strip()


Script = Sequence[dict[str, Any]]


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """``scripted(responses, children=…)``: the crystal of whatever starts next, by the environment."""

    def write(responses: Script, children: Sequence[Script] = ()) -> Path:
        path = tmp_path / "script.yaml"
        path.write_text(json.dumps({"responses": list(responses), "children": [list(c) for c in children]}))
        monkeypatch.setenv("CANTRIP_CRYSTAL", f"scripted:{path}")
        return path

    return write


@pytest.fixture
def familiar(project: Path, scripted: Callable[..., Path], tmp_path: Path) -> Callable[..., Cantrip]:
    """``familiar(responses, children=…)``: the cantrip of a session in the project, its loom in a file."""

    def build(responses: Script, children: Sequence[Script] = (), loom: Loom | None = None) -> Cantrip:
        scripted(responses, children)
        return load_for_session(None, project, tmp_path / "state", trusted=False, loom=loom)

    return build
