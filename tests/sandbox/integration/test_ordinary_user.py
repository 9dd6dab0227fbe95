"""The same, for who is not root: started as root, these tests start it again as somebody else."""

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
    folder = Path(tempfile.mkdtemp(prefix="cantrip-user-", dir="/tmp"))
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
        timeout=280,
        check=False,
    )


@pytest.fixture(autouse=True)
def _root_alone(home: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("not root: every other test here already ran as an ordinary user")
    tried = as_nobody(home, sys.executable, "-c", "import cantrip_acp.sandbox.launch.sandbox")
    if tried.returncode != 0:
        pytest.skip(f"nothing can be run as an ordinary user here: {tried.stderr.strip()[-200:]}")


def test_doctor_finds_a_sandbox(home: Path) -> None:
    done = as_nobody(home, sys.executable, "-m", "cantrip_acp.cli.main", "doctor", "--all")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the kernel enforces sandbox_max_processes" in done.stdout


@pytest.mark.timeout(300)
def test_isolation_hostility_and_network(home: Path) -> None:
    """Whole suites, as nobody. What gates send and how programs work inside is the same for every user."""
    newline = "test_a_result_without_a_final_newline_has_one_where_the_command_prints_it"
    names = (
        "test_isolation.py",
        "test_hostile.py",
        "test_network.py",
        "test_names.py::test_plain_http_and_a_listed_port",
        "test_names.py::test_what_is_not_allowed_fails_at_once",
        "test_names.py::test_commands_that_share_a_network_have_names_of_their_own",
        "test_unix_sockets.py",
        f"test_gate_ipc.py::{newline}",
    )
    done = as_nobody(
        home,
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--basetemp={home}/t", "--rootdir", str(ROOT),
        "-c", str(ROOT / "pyproject.toml"),
        *[str(ROOT / "tests/sandbox/integration" / n) for n in names],
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "passed" in done.stdout
