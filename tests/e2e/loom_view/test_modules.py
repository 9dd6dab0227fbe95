"""The page's modules are sound JavaScript, apart and as one; and are in what is installed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cantrip_acp.loom.view import assets
from cantrip_acp.loom.view.html_export import escaped

MODULES = sorted(name for name in assets.names() if name.endswith(".js"))


def checked(path: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("no node here")
    done = subprocess.run([node, "--check", path], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_each_module_parses(tmp_path: Path) -> None:
    for name in MODULES:
        path = tmp_path / name.replace(".js", ".mjs")
        path.write_text(assets.text(name))
        checked(path)


def test_all_of_them_parse_as_one(tmp_path: Path) -> None:
    """A name that two modules give would be caught here."""
    script = assets.script()
    assert not re.search(r"^(import|export) ", script, re.MULTILINE)
    assert "</script" not in script
    assert "<!--" not in script
    path = tmp_path / "all.mjs"
    path.write_text(script)
    checked(path)


def test_every_module_is_used_and_what_is_imported_is_there() -> None:
    imported = {name for module in MODULES for name in re.findall(r'from "\./([a-z]+\.js)"', assets.text(module))}
    assert imported | {"main.js"} == set(MODULES)
    for module in MODULES:
        for names, source in re.findall(
            r'^import \{([^}]*)\} from "\./([a-z]+\.js)";$', assets.text(module), re.MULTILINE
        ):
            text, own = assets.text(source), assets.text(module)
            for name in (part.strip() for part in names.split(",")):
                assert re.search(
                    rf"^export (?:async )?(?:function|class|const|let) .*\b{name}\b", text, re.MULTILINE
                ), f"{module}: {name}"
                assert len(re.findall(rf"\b{name}\b", own)) > 1, f"{module} imports {name} and does not use it"


def test_modules_are_small() -> None:
    for name in assets.names():
        assert len(assets.text(name).splitlines()) <= 500, name


def test_what_is_no_part_of_the_page() -> None:
    for name in ("serving.py", "../serving.py", "", ".", "page", "main.js/", "MAIN.JS"):
        assert assets.read(name) is None


def test_escaping() -> None:
    assert (
        escaped('{"a":"</script><!-- & \u2028\u2029"}')
        == '{"a":"\\u003c/script\\u003e\\u003c!-- \\u0026 \\u2028\\u2029"}'
    )
