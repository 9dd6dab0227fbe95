"""The sandbox is a library of its own: with the three folders that it stands on, and without the package, its README holds."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import cantrip_acp.sandbox

PACKAGE = Path(cantrip_acp.sandbox.__file__).parents[1]
PARTS = ("sandbox", "types", "files", "text")


@pytest.mark.skipif(sys.platform != "linux", reason="the example says what Linux answers")
def test_the_example_runs_where_only_the_sandbox_is(tmp_path: Path) -> None:
    for part in PARTS:
        shutil.copytree(PACKAGE / part, tmp_path / "cantrip_acp" / part)
    (tmp_path / "cantrip_acp/__init__.py").touch()
    (example,) = re.findall(
        r"^```python\n(.*?)^```", (PACKAGE / "sandbox/README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert len([line for line in example.splitlines() if line.strip()]) <= 12
    shown = "import sys\nprint(sys.modules['cantrip_acp'].__file__, *(n for n in sys.modules if n.startswith('cantrip_acp.')))"
    (tmp_path / "example.py").write_text(f"{example}\n{shown}\n")
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 hello\n"), done.stdout
    assert done.stdout.count("No such file or directory") == 1, done.stdout
    assert "note: Read-only file system" in done.stdout, done.stdout
    package, *modules = done.stdout.splitlines()[-1].split()
    assert package == str(tmp_path / "cantrip_acp/__init__.py")
    assert {name.split(".")[1] for name in modules} == set(PARTS)


def test_the_face_has_what_it_names() -> None:
    assert len(cantrip_acp.sandbox.__all__) <= 26
    for name in cantrip_acp.sandbox.__all__:
        assert getattr(cantrip_acp.sandbox, name).__doc__, name
