"""A parallel run ends, whichever test its worker crashes in, and every other test runs once."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

ROOT = Path(__file__).parents[2]

TESTS = """
import os, pathlib, pytest

def ran(name):
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{name}\\n")
    if name == os.environ["CRASHES"]:
        os._exit(3)

@pytest.mark.parametrize("number", range(12))
def test_alone(number):
    ran(f"alone {number}")

@pytest.mark.xdist_group("together")
@pytest.mark.parametrize("number", range(4))
def test_together(number):
    ran(f"together {number}")
"""


@pytest.mark.parametrize("crashes", ["together 0", "alone 5", "alone 11"])
def test_a_run_ends_after_a_worker_has_crashed(crashes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_some.py").write_text(TESTS)
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("CRASHES", crashes)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each of three processes would import them all
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider",
         "-p", "xdist", "-n", "2", "-p", "tests.support.scheduling", "--dist", "loadgroup", "--junitxml=report.xml", "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert (tmp_path / "report.xml").exists(), done.stdout + done.stderr
    (suite,) = ElementTree.parse(tmp_path / "report.xml").getroot().iter("testsuite")
    assert (suite.get("failures"), suite.get("errors"), suite.get("tests")) == ("0", "1", "16"), done.stdout
    names = (tmp_path / "ran").read_text().splitlines()
    assert sorted(names) == sorted([*(f"alone {n}" for n in range(12)), *(f"together {n}" for n in range(4))])


SLOW = """
import os, pytest

@pytest.fixture(autouse=True)
def note(request):
    with open(os.environ["RAN"], "a") as file:
        file.write(f"{request.node.name}\\n")

@pytest.mark.xdist_group("one")
@pytest.mark.parametrize("number", range(5))
def test_one(number): pass

@pytest.mark.xdist_group("two")
@pytest.mark.parametrize("number", range(4))
def test_two(number): pass

@pytest.mark.slow
def test_slow(): pass
"""


def test_a_slow_test_begins_before_larger_groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_some.py").write_text(SLOW)
    monkeypatch.setenv("RAN", str(tmp_path / "ran"))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # each of three processes would import them all
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-c", "/dev/null", "--rootdir", ".", "-p", "no:cacheprovider",
         "-p", "xdist", "-n", "1", "-p", "tests.support.scheduling", "--dist", "loadgroup", "."],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    names = (tmp_path / "ran").read_text().splitlines()
    assert len(names) == 10
    assert names[0].startswith("test_slow")
