"""`cantrip sandbox run --python`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import processes


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cantrip_acp.cli.main", "sandbox", "run", "--python", *words]
    return processes.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("words", "status", "out", "err"),
    [
        (["--", "print('hi'); 6*7"], 0, "hi\n=> 42\n", ""),
        (["--", "import sys; sys.argv"], 0, "=> ['']\n", ""),
        (["--", "1/0"], 1, "", "ZeroDivisionError"),
        (["--", "p.py"], 0, "from a file\n", ""),
        (["--", "b.py"], 2, "", "b.py: is not UTF-8: invalid start byte at byte 0"),
        (["--", f"6*7  # {'a long remark ' * 100}"], 0, "=> 42\n", ""),
        (["--timeout-ms", "300", "--", "while True: pass"], 124, "", "timed out after 300 ms"),
        (["--", "done({'a': 1})"], 0, '{"a": 1}\n', ""),
        (["--network", "--", "1"], 2, "", "no network"),
    ],
)
def test_a_program(tmp_path: Path, words: list[str], status: int, out: str, err: str) -> None:
    (tmp_path / "p.py").write_text("print('from a file')\n")
    (tmp_path / "b.py").write_bytes(b"\xff")
    done = run(tmp_path, *words)
    assert (done.returncode, done.stdout) == (status, out), done.stderr
    assert err in done.stderr


def test_files_are_where_they_are_shown(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    code = f"open('{tmp_path}/out/x', 'w').write('kept')"
    assert run(tmp_path, "--", code).returncode == 1
    assert run(tmp_path, "--writable", "out", "--", code).returncode == 0
    assert (tmp_path / "out" / "x").read_text() == "kept"
