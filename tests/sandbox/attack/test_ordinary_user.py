"""Attacks as an ordinary user: if the tests run as root, these start them again as nobody.

Only attacks whose outcome may depend on the user: on the kernel, on files, processes, the network and resources. Whether a
recipe is trusted, what a cell of code may do and what a gate's wire accepts is the same for every user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import ordinary_user
from tests.support.ordinary_user import NOBODY, ROOT


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder that both users can reach, unlike pytest's own."""
    folder = Path(tempfile.mkdtemp(prefix="cantrip-attacks-as-nobody-", dir="/tmp"))
    os.chown(folder, NOBODY, NOBODY)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def as_nobody(home: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ordinary_user.command(*words),
        cwd=home,
        env={"HOME": str(home), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=620,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.timeout(640)
@pytest.mark.parametrize(
    "parts",
    [
        "files processes setid network",
        "unix_sockets",
        "services",
        "resources kernel",
        "planted_links named_files open_records",
        "git_writes",
    ],
)
def test_as_nobody(parts: str, home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("not root: every other test here already ran as an ordinary user")
    tried = as_nobody(home, sys.executable, "-c", "import cantrip_acp.sandbox.launch.sandbox, pytest")
    if tried.returncode != 0:
        pytest.skip(f"nothing can be run as an ordinary user here: {tried.stderr.strip()[-200:]}")
    # A few runs of pytest, because each start of it takes seconds.
    done = as_nobody(
        home,
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={home}/t", "--rootdir", str(ROOT),
        "-c", str(ROOT / "pyproject.toml"), *[str(ROOT / f"tests/sandbox/attack/test_{p}.py") for p in parts.split()],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
