"""How many real workloads does the sandbox change?

Each row of `workloads.txt` runs as it is on the host and in ``cantrip sandbox run --writable .``, in a new folder of the same name.
The two are the same if exit status and standard output are. Run by root, the host's side has no capabilities, as the
sandbox has none: no row may change the machine. A row that must differ names the threat; it is still counted.
``python -m bench workloads --only sockets`` runs one group or one row. Rows whose programs this machine does not have are skipped.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.measure import Row, Table, row
from bench.options import Options

FILE = Path(__file__).with_suffix(".txt")
MOST_DIFFERENT = 0.03
WITHOUT_CAPABILITIES = (
    ["setpriv", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
)
TIMEOUT = 120
"""Seconds of one workload."""


@dataclass(frozen=True)
class Workload:
    """A command line of bash. ``needs``: programs, without which it is skipped. ``threat``: why the sandbox refuses it."""

    group: str
    name: str
    run: str
    needs: tuple[str, ...]
    source: str
    threat: str


@dataclass(frozen=True)
class Outcome:
    status: int
    output: str
    errors: str

    def same(self, other: Outcome) -> bool:
        return (self.status, self.output) == (other.status, other.output)

    def __str__(self) -> str:
        said = (self.output.strip()[-200:] or self.errors.strip()[-300:]).replace("\n", " | ")
        return f"{self.status} {said}"


def workloads() -> list[Workload]:
    """The rows of the file, in its order. Raises ValueError for two of one name, or a row without a command line."""
    found: dict[tuple[str, str], Workload] = {}
    for part in re.split(r"^(?=\[\w+\]$)", FILE.read_text(), flags=re.MULTILINE)[1:]:
        head, *rows = re.split(r"^= ", part, flags=re.MULTILINE)
        group, about, _ = _settings(head)
        for each in rows:
            name, own, run = _settings(each)
            key = group[1:-1], name
            if key in found or not run:
                raise ValueError(f"{'/'.join(key)} is there twice, or has no command line")
            needs = (*about.get("needs", "").split(), *own.get("needs", "").split())
            found[key] = Workload(*key, run, needs, own.get("source") or about["source"], own.get("threat", ""))
    return list(found.values())


def _settings(text: str) -> tuple[str, dict[str, str], str]:
    """The first line, the settings in the lines after it, and what follows these."""
    title, *lines = text.strip().splitlines()
    settings: dict[str, str] = {}
    while lines and (setting := re.fullmatch(r"(needs|source|threat): (.+)", lines[0])):
        settings[setting[1]] = setting[2]
        del lines[0]
    return title, settings, "\n".join(lines)


def run_command(command: list[str], folder: Path, environment: dict[str, str], timeout: int = TIMEOUT) -> Outcome:
    """Run a command for at most ``timeout`` seconds. What it leaves running in the folder above is killed."""
    with subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, errors="replace", start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, errors = process.communicate(timeout=timeout)
            return Outcome(process.returncode, output, errors)
        except subprocess.TimeoutExpired:
            return Outcome(124, "", f"not ended after {timeout} s")
        finally:
            _kill_in(folder.parent)


def _kill_in(place: Path) -> None:
    """Kill the processes whose working folder is in ``place``: what a command left running, also in a session of its own."""
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if Path(os.readlink(process / "cwd")).is_relative_to(place):
                os.kill(int(process.name), signal.SIGKILL)


def _compare(workload: Workload) -> tuple[Workload, Outcome, Outcome]:
    """The workload on the host, then in the sandbox, with a home folder of its own."""
    found = []
    with tempfile.TemporaryDirectory(prefix="workload-") as place:
        for sandboxed in (False, True):
            folder, home = Path(place, "work"), Path(place, "home")
            folder.mkdir()
            home.mkdir()
            environment = {name: value for name, value in os.environ.items() if not name.startswith("XDG_")}
            environment.update(HOME=str(home), TMPDIR=str(home), LANG="C.UTF-8")
            environment.update(GIT_CONFIG_COUNT="1", GIT_CONFIG_KEY_0="safe.directory", GIT_CONFIG_VALUE_0="*")
            if (rustup := Path.home() / ".rustup").is_dir():
                environment.setdefault("RUSTUP_HOME", str(rustup))
            command = [*WITHOUT_CAPABILITIES, "bash", "-c", workload.run]
            if sandboxed:
                cantrip = [sys.executable, "-m", "cantrip_acp.cli.main", "sandbox", "run", "--writable", "."]
                command = [*cantrip, "--timeout-ms", str(TIMEOUT * 1000), "--", workload.run]
            found.append(run_command(command, folder, environment))
            for each in (folder, home):
                shutil.rmtree(each, ignore_errors=True)
    return workload, found[0], found[1]


def run(options: Options) -> Table:
    wanted = [each for each in workloads() if options.only in ("", each.group, each.name)]
    if options.quick:
        wanted = wanted[::10]
    absent = [each for each in wanted if not all(map(shutil.which, each.needs))]
    present = [each for each in wanted if each not in absent]
    groups: dict[str, list[int]] = {}
    different: list[Row] = []
    with ThreadPoolExecutor(2) as pool:
        for workload, host, sandbox in pool.map(_compare, present):
            same = host.same(sandbox)
            count = groups.setdefault(workload.group, [0, 0])
            count[0] += 1
            print(f"{'same' if same else 'different':9} {workload.group}/{workload.name}", file=sys.stderr, flush=True)
            if not same:
                count[1] += 1
                print(f"    host    {host}\n    sandbox {sandbox}", file=sys.stderr, flush=True)
                reason = re.sub(r"\s+", " ", workload.threat or f"host {host}; sandbox {sandbox}")
                different.append(row(f"different: {workload.group}/{workload.name}", [1], "", note=reason))
    all_of_them = row("workloads", [len(present)], "", note=f"{len(absent)} skipped: a program is not on this machine")
    share = len(different) / max(1, len(present)) * 100
    goal = row("different", [share], "%", goal=f"<= {MOST_DIFFERENT * 100:g}")
    each_group = [row(f"{name}: different of {total}", [lost], "") for name, (total, lost) in groups.items()]
    question = (__doc__ or "").splitlines()[0].rstrip(".")
    return Table("workloads", question, (all_of_them, goal, *each_group, *different))
