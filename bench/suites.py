"""How many tests of other packages pass on the host and not in the sandbox?

Each suite is the source of a release on PyPI or npm, with an environment of its own in its folder. Its tests run in a copy on the
host (by root without capabilities, as in `bench.workloads`), then in another copy in ``cantrip sandbox run --writable .``.
``python -m bench suites --only anyio`` runs one of them. It fetches from PyPI and npm.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from bench.measure import Row, Table, row
from bench.options import Options
from bench.workloads import WITHOUT_CAPABILITIES, run_command

MOST_LOST = 0.5
"""Per cent of the tests that pass on the host."""
TIMEOUT = 300
"""Seconds of one run of a suite."""


@dataclass(frozen=True)
class Suite:
    """A release: ``name==version`` of PyPI, or ``name@version`` of npm, what its tests need, and which of them run."""

    release: str
    needs: str = ""
    tests: str = "tests"

    @property
    def name(self) -> str:
        return re.split("==|@", self.release)[0]


SUITES = (
    Suite("anyio==4.9.0", "pytest<9 pytest-mock trustme psutil trio hypothesis blockbuster uvloop", "tests/test_sockets.py"),
    Suite("filelock==3.18.0", "pytest<9 pytest-mock pytest-asyncio pytest-timeout virtualenv"),
    Suite("click==8.1.8"),
    Suite("itsdangerous==2.2.0", "freezegun"),
    Suite("attrs==25.3.0", "hypothesis cloudpickle"),
    Suite("markupsafe==3.0.2"),
    Suite("jinja2==3.1.6", "trio"),
    Suite("werkzeug==3.1.3", "pytest-timeout cryptography watchdog", "tests --ignore=tests/test_serving.py"),
    Suite("flask==3.1.1", "asgiref python-dotenv"),
    Suite("blinker==1.9.0", "pytest-asyncio"),
    Suite("pluggy==1.6.0", "", "testing"),
    Suite("platformdirs==4.3.8", "pytest-mock appdirs covdefaults"),
    Suite("cachetools==6.0.0"),
    Suite("more-itertools==10.7.0"),
    Suite("toolz==1.0.0", "", "toolz"),
    Suite("h11==0.16.0", "", "h11"),
    Suite("aiofiles==24.1.0", "pytest-asyncio"),
    Suite("python-dotenv==1.1.0", "sh click"),
    Suite("pexpect==4.9.0", "ptyprocess"),
    Suite("portalocker==3.1.1", "pytest-cov redis pygments pytest-rerunfailures pytest-timeout", "portalocker_tests"),
    Suite("gunicorn==23.0.0", "pytest-cov eventlet gevent"),
    Suite("wrapt==1.17.2"),
    Suite("tenacity==9.1.2", "tornado typeguard pytest-asyncio"),
    Suite("tornado==6.5.1", "", "tornado/test"),
    Suite("psutil==7.0.0", "", "psutil/tests/test_process.py psutil/tests/test_connections.py"),
    Suite("minimist@1.2.8", "tape@5"),
    Suite(
        "qs@6.14.0",
        "tape@5 es-value-fixtures has-override-mistake has-property-descriptors has-proto has-symbols iconv-lite mock-property "
        "qs-iconv safer-buffer object-inspect for-each",
    ),
    Suite("deep-equal@2.2.3", "tape@5 has-proto has-typed-arrays semver safe-publish-latest"),
    Suite(
        "object-inspect@1.13.4",
        "tape@5 functions-have-names has-symbols has-tostringtag make-arrow-function mock-property string.prototype.repeat "
        "globalthis glob error-cause es-value-fixtures for-each",
    ),
)  # fmt: skip


def _fetch(suite: Suite, folder: Path) -> None:
    """The source of a release, and its environment: ``.venv`` or ``node_modules``."""
    name, version = re.split("==|@", suite.release)
    if "@" in suite.release:
        url = f"https://registry.npmjs.org/{name}/-/{name}-{version}.tgz"
    else:
        asked = urllib.request.Request(
            f"https://pypi.org/simple/{name}/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
        )
        with urllib.request.urlopen(asked, timeout=60) as answer:
            files = json.load(answer)["files"]
        ending = f"-{version}.tar.gz"
        url = next(each["url"] for each in files if each["filename"].endswith(ending))
    archive, _ = urllib.request.urlretrieve(url)
    with tarfile.open(archive) as packed:
        packed.extractall(folder.with_suffix(".source"), filter="data")
    os.remove(archive)
    (top,) = folder.with_suffix(".source").iterdir()
    top.rename(folder)
    if "@" in suite.release:
        _must(
            "npm",
            "install",
            "--silent",
            "--no-audit",
            "--no-fund",
            "--ignore-scripts",
            "--no-save",
            *suite.needs.split(),
            cwd=folder,
        )
        return
    _must(sys.executable, "-m", "venv", ".venv", cwd=folder)
    _must(".venv/bin/pip", "install", "-q", ".", *(suite.needs or "pytest<9").split(), "pytest<9", cwd=folder)


def _must(*command: str, cwd: Path) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr[-1000:]}")


def _passed(suite: Suite, folder: Path, *, sandboxed: bool) -> set[str]:
    """The names of the tests that pass in a copy of ``folder`` with the same path."""
    kept = folder.with_suffix(".kept")
    shutil.move(folder, kept)
    shutil.copytree(kept, folder, symlinks=True)
    tests = suite.tests.replace("tests", "test/*.js") if "@" in suite.release else suite.tests
    options = "-q -p no:cacheprovider -o addopts= --junitxml=outcome.xml"
    line = (
        f"node_modules/.bin/tape '{tests}'" if "@" in suite.release else f".venv/bin/python -m pytest {options} {tests}"
    )
    home = folder.with_suffix(".home")
    home.mkdir()
    environment = {**os.environ, "HOME": str(home), "TMPDIR": str(home)}
    command = [*WITHOUT_CAPABILITIES, "bash", "-c", line]
    if sandboxed:
        cantrip = [sys.executable, "-m", "cantrip_acp.cli.main", "sandbox", "run", "--writable", "."]
        command = [*cantrip, "--timeout-ms", str(TIMEOUT * 1000), "--", line]
    done = run_command(command, folder, environment, TIMEOUT + 30)
    found = set(re.findall(r"^ok \d+ (.*)$", done.output, flags=re.MULTILINE))
    if (folder / "outcome.xml").is_file():
        cases = ElementTree.parse(folder / "outcome.xml").iter("testcase")
        found |= {f"{case.get('classname')}::{case.get('name')}" for case in cases if len(case) == 0}
    if not found:
        print(f"{suite.name}: no test passes: {(done.output + done.errors)[-600:]}", file=sys.stderr)
    for each in (folder, home):
        shutil.rmtree(each)
    shutil.move(kept, folder)
    return found


def run(options: Options) -> Table:
    rows: list[Row] = []
    total = lost = 0
    wanted = [each for each in SUITES if options.only in ("", each.name)]
    for suite in wanted[::10] if options.quick else wanted:
        with tempfile.TemporaryDirectory(prefix="suite-") as place:
            folder = Path(place, "work")
            _fetch(suite, folder)
            # A test that fails on one of two runs of the host shows nothing about the sandbox.
            host = _passed(suite, folder, sandboxed=False)
            gone = host - _passed(suite, folder, sandboxed=True)
            if gone:
                gone &= _passed(suite, folder, sandboxed=False)
        total, lost = total + len(host), lost + len(gone)
        print(f"{suite.release}: {len(gone)} of {len(host)} lost", file=sys.stderr, flush=True)
        for name in sorted(gone)[:20]:
            print(f"    {name}", file=sys.stderr, flush=True)
        rows.append(row(f"{suite.release}: of {len(host)} lost", [len(gone)], "tests"))
    share = row(f"lost of {total}", [lost / max(1, total) * 100], "%", goal=f"<= {MOST_LOST:g}")
    return Table("suites", (__doc__ or "").splitlines()[0].rstrip("?"), (share, *rows))
