"""How the tests run the client: as a process of its own, in a pipe or on a terminal, against agents in `agents/`."""

import codecs
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from cantrip_acp.files.descriptors import is_ready
from tests.support import processes
from tests.support.waiting import settled

HERE = Path(__file__).parent
CLIENT = [sys.executable, "-m", "cantrip_acp.cli.main", "client"]
POLITE = [sys.executable, str(HERE / "agents" / "polite.py")]
OFFICIAL_SDK = [sys.executable, str(HERE / "agents" / "official_sdk.py")]
ROOT = Path(__file__).parents[4]


def rude(way: str) -> list[str]:
    return [sys.executable, str(HERE / "agents" / "rude.py"), way]


def environment(**more: str) -> dict[str, str]:
    base = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**base, "PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "utf-8", "TERM": "xterm-256color", **more}


def run_client(
    *arguments: str, agent: Sequence[str], stdin: str = "", timeout: float = 60, **env: str
) -> subprocess.CompletedProcess[str]:
    """The client in a pipe."""
    return processes.run(
        [*CLIENT, *arguments, "--", *agent],
        input=stdin,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=timeout,
        env=environment(**env),
    )


class Terminal:
    """A process on a pseudo-terminal of 100 columns; `seen` is all that it wrote."""

    def __init__(self, argv: Sequence[str], **env: str) -> None:
        self._process, self._fd = processes.on_terminal(argv, env=environment(COLUMNS="100", LINES="40", **env))
        self.pid = self._process.pid
        self.seen = ""
        self._at = 0
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        self.status: int | None = None

    def until(self, text: str, timeout: float = 60) -> str:
        """Reads until the text was written after what was waited for before; returns what came up to it."""
        start = self._at
        end = time.monotonic() + timeout
        while (found := self.seen.find(text, start)) < 0:
            left = end - time.monotonic()
            assert left > 0, f"{text!r} did not come; seen: {self.seen!r}"
            if not self._read(left):
                raise AssertionError(f"the process ended before {text!r}; seen: {self.seen!r}")
        self._at = found + len(text)
        return self.seen[start : self._at]

    def type(self, text: str) -> None:
        if text == "\x03":
            # CPython notices a signal that comes between readline's prompt and its wait with the next key only, and no
            # person is that quick.
            settled(self.pid, 1)
        # The Enter key.
        os.write(self._fd, text.replace("\n", "\r").encode())

    def wait(self, timeout: float = 60) -> int:
        """Reads to the end; the exit status."""
        end = time.monotonic() + timeout
        while self._read(max(0.0, end - time.monotonic())):
            assert time.monotonic() < end, f"did not end; seen: {self.seen!r}"
        self.status = self._process.wait(max(0.1, end - time.monotonic()))
        os.close(self._fd)
        return self.status

    def kill(self) -> None:
        self._process.kill()
        self.status = self._process.wait()

    def _read(self, timeout: float) -> bool:
        if not is_ready(self._fd, timeout):
            return True
        try:
            data = os.read(self._fd, 65536)
        except OSError:
            return False
        self.seen += self._decode(data)
        return bool(data)


def alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False
