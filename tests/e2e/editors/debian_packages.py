"""Current editors on a machine that has older ones, or none: packages of a newer Debian, unpacked in a folder of their own.

Nothing is installed and nobody need be root. apt reads the newer suite's list into folders of ours and checks signatures and
sums as always; the packages are unpacked beside each other; and the programs are started by the C library that came with
them. What an editor starts in turn (a language server, an agent) is this machine's own, with this machine's libraries: an
editor in a chroot could start neither.

About 63 MB (for Toad another 45) are loaded once, and kept in ``~/.cache/cantrip-tests``.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUITE = "forky"
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
PYTHON = "python3.14"
WANTED = ("neovim", "hx", "emacs-nox", "elpa-package-lint", "kakoune")
# Depended on, and not needed to run them: sources, perl scripts, what compiles Lisp to machine code.
SPARED = (
    "emacs-el", "perl", "libperl", "libdb5", "libgdbm", "binutils", "libbinutils", "libctf", "libgprofng", "libsframe",
    "libasan", "liblsan", "libtsan", "libubsan", "libhwasan", "libitm", "libatomic", "libquadmath", "libgcc-15-dev",
    "libc-dev-bin", "linux-libc-dev", "libc6-dev", "install-info", "libgomp", "libc-gconv", "dh-elpa",
)  # fmt: skip
SPACE = 1 << 30
"""Bytes that must be free; the folder takes a third of them."""
PATIENCE_S = 240.0
"""For loading everything; a slower network has no editors."""

AGAIN_S = 600.0
"""After a failure."""


class Unavailable(Exception):
    """The editors cannot be had here; says why."""


class Root:
    """An unpacked set of packages, and how its programs are started."""

    def __init__(self, path: Path) -> None:
        self.path = path
        library = next(path.glob("usr/lib/*/libc.so.6"))
        self._loader = next(library.parent.glob("ld-linux*.so*"))
        self._libraries = library.parent

    def python(self) -> list[str]:
        """Newer than this machine's; it has what was installed into its ``dist-packages``."""
        return [*self._start(f"usr/bin/{PYTHON}"), "-P"]

    def _start(self, program: str) -> list[str]:
        return [str(self._loader), "--library-path", str(self._libraries), str(self.path / program)]

    def neovim(self) -> tuple[list[str], dict[str, str]]:
        """The command and what its environment needs. ``nvim`` alone would start itself again for a terminal: use --headless."""
        parsers = self.path / "usr/lib/nvim"
        return [*self._start("usr/bin/nvim"), "--cmd", f"set runtimepath+={parsers}"], {
            "VIMRUNTIME": str(self.path / "usr/share/nvim/runtime")
        }

    def helix(self) -> tuple[list[str], dict[str, str]]:
        return self._start("usr/lib/hx/hx"), {"HELIX_RUNTIME": str(self.path / "usr/lib/hx/runtime")}

    def kakoune(self) -> tuple[list[str], dict[str, str]]:
        return self._start("usr/bin/kak"), {"KAKOUNE_RUNTIME": str(self.path / "usr/share/kak")}

    def emacs(self) -> tuple[list[str], dict[str, str]]:
        share = next(self.path.glob("usr/share/emacs/[0-9]*"))
        inside = next(self.path.glob("usr/libexec/emacs/*/*"))
        lisp = [str(folder) for folder in [share / "lisp", *sorted((share / "lisp").rglob("*/"))] if folder.is_dir()]
        command = [*self._start("usr/bin/emacs-nox"), f"--dump-file={next(inside.glob('*.pdmp'))}"]
        return command, {
            "EMACSDATA": str(share / "etc"),
            "EMACSDOC": str(share / "etc"),
            "EMACSLOADPATH": ":".join(lisp),
            "EMACSPATH": str(inside),
        }


def root() -> Root:
    """The editors. Raises `Unavailable`."""
    return _kept(f"editors-{SUITE}-2", WANTED)


def toad(version: str) -> Root:
    """A newer Python with Toad from PyPI, which wants it. Raises `Unavailable`."""

    def install(unpacked: Path) -> None:
        # The newer Python runs this one's pip, so that the wheels are its own.
        pip = Path(importlib.util.find_spec("pip").origin).parent  # type: ignore[union-attr, arg-type]
        command = [*Root(unpacked).python(), str(pip), "install", "--quiet", "--only-binary", ":all:", "--target"]
        command += [str(unpacked / "usr/lib/python3/dist-packages"), f"batrachian-toad=={version}"]
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Toad did not come within {PATIENCE_S:g} s from PyPI") from None
        if done.returncode != 0:
            raise Unavailable(f"Toad cannot be had from PyPI: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}")

    return _kept(f"toad-{SUITE}-{version}", (PYTHON,), install)


def _kept(name: str, wanted: tuple[str, ...], install: Callable[[Path], None] | None = None) -> Root:
    """Packages, loaded and unpacked by the first who asks, on this machine or in this run. Raises `Unavailable`."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "cantrip-tests"
    ready = base / name
    if not ready.exists():
        base.mkdir(parents=True, exist_ok=True)
        with open(base / f"{ready.name}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not ready.exists():
                _once(base, ready, wanted, install)
    return Root(ready)


def _once(base: Path, ready: Path, wanted: tuple[str, ...], install: Callable[[Path], None] | None) -> None:
    """Build it; what was in vain a moment ago (in another process of this run, say) is not tried again at once."""
    failed = base / f"{ready.name}.failed"
    if failed.exists() and time.time() - failed.stat().st_mtime < AGAIN_S:
        raise Unavailable(failed.read_text())
    try:
        _build(base, ready, wanted, install)
    except Unavailable as why:
        failed.write_text(str(why))
        raise
    failed.unlink(missing_ok=True)


def _build(base: Path, ready: Path, wanted: tuple[str, ...], install: Callable[[Path], None] | None) -> None:
    for program in ("apt-get", "dpkg-deb"):
        if shutil.which(program) is None:
            raise Unavailable(f"no {program}: current editors are taken from Debian's packages")
    if not KEYRING.exists():
        raise Unavailable(f"no {KEYRING} (package debian-archive-keyring) to check Debian's packages by")
    if (free := shutil.disk_usage(base).free) < SPACE:
        raise Unavailable(f"{free >> 20} MiB are free in {base}, and unpacking editors wants {SPACE >> 20}")
    for left in base.glob(f"{ready.name}-*.tmp"):
        shutil.rmtree(left, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f"{ready.name}-", suffix=".tmp", dir=base))
    try:
        apt = _Apt(work)
        apt.run("update")
        archives = apt.load(apt.closure(wanted))
        (work / "root").mkdir()
        with ThreadPoolExecutor(2) as threads:
            for done in [threads.submit(_unpack, archive, work / "root") for archive in archives]:
                done.result()
        if install is not None:
            install(work / "root")
        (work / "root").rename(ready)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _unpack(archive: Path, into: Path) -> None:
    subprocess.run(["dpkg-deb", "--extract", archive, into], check=True, stdin=subprocess.DEVNULL, timeout=120)


def mirror() -> str:
    """The address of Debian's archive in this machine's apt configuration. Raises `Unavailable` where it names none.

    Third parties have suites of the same name; Debian's own archive is the one that also has ``-updates``, or else the
    one whose address ends in ``debian``.
    """
    release = _os_release()
    codename = release.get("VERSION_CODENAME", "")
    command = ["apt-get", "update", "--print-uris"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    found = re.findall(r"^'(\S+?)/*/dists/(\S+)/InRelease'", done.stdout, re.MULTILINE)
    suites = {codename, "stable", "testing", "unstable", "sid"} - {""}
    likely = [uri for uri, suite in found if suite in suites]
    if release.get("ID") != "debian" or not likely:
        raise Unavailable(
            f"apt's configuration names no mirror of Debian {codename or '(no VERSION_CODENAME)'}".strip()
        )
    updated = {uri for uri, suite in found if suite.removesuffix("-updates") in suites and suite.endswith("-updates")}
    return min(likely, key=lambda uri: (uri not in updated, not uri.endswith("debian")))


def _os_release() -> dict[str, str]:
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    return {name: value.strip("\"'") for name, found, value in (line.partition("=") for line in lines) if found}


class _Apt:
    """apt with its own lists, its own sources and nothing installed."""

    def __init__(self, work: Path) -> None:
        self._work = work
        self._mirror = mirror()
        self._end = time.monotonic() + PATIENCE_S
        for folder in ("state/lists/partial", "cache/archives/partial", "debs"):
            (work / folder).mkdir(parents=True)
        (work / "status").touch()
        (work / "sources.list").write_text(f"deb [signed-by={KEYRING}] {self._mirror} {SUITE} main\n")
        settings = {
            "Dir::State": work / "state",
            "Dir::State::status": work / "status",
            "Dir::Cache": work / "cache",
            "Dir::Etc::sourcelist": work / "sources.list",
            "Dir::Etc::sourceparts": "/dev/null",
            "APT::Install-Recommends": "false",
            "APT::Sandbox::User": "",
            "APT::Update::Error-Mode": "any",
            "Acquire::Languages": "none",
            "Acquire::Retries": "2",
        }
        (work / "apt.conf").write_text("".join(f'{name} "{value}";\n' for name, value in settings.items()))

    def run(self, *arguments: str) -> str:
        """What it printed. Raises `Unavailable` where it failed, or took too long."""
        command = ["apt-get", "-q", "-y", *arguments]
        environment = os.environ | {"APT_CONFIG": str(self._work / "apt.conf"), "LC_ALL": "C"}
        try:
            done = subprocess.run(
                command, cwd=self._work / "debs", env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, text=True, timeout=max(self._end - time.monotonic(), 1),
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise Unavailable(f"Debian's packages did not come within {PATIENCE_S:g} s from {self._mirror}") from None
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["no word of why"])[-1]
            raise Unavailable(f"Debian's packages cannot be had from {self._mirror} ({SUITE}): {last[:300]}")
        return done.stdout

    def closure(self, wanted: tuple[str, ...]) -> list[str]:
        """The names of what they need, themselves included, without what is spared."""
        lines = self.run("--print-uris", "install", *wanted).splitlines()
        names = [line.split()[1].partition("_")[0] for line in lines if line.startswith("'")]
        return [name for name in names if not name.startswith(SPARED)]

    def load(self, names: list[str]) -> list[Path]:
        self.run("download", *names)
        return sorted((self._work / "debs").glob("*.deb"))
