"""The examples of a page of the documentation, which tests take and run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support import processes

EXAMPLE = re.compile(
    r"^<!-- setup: (?P<setup>.+?) -->$"
    r"|(?:^<!-- (?P<word>run|file|prints|not run)(?:: (?P<value>.+?))? -->\n)?"
    r"^(?P<fence>```+)(?P<language>\w*)\n(?P<body>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
"""A block of a page, with the comment above it that says what a test does with it. Readers do not see the comment.

All examples of a page share a folder, which is empty at first, and are done in order:

- ``<!-- run -->``: a program of bash or Python. It must succeed; ``<!-- run: exits 1 -->``: with this status.
- ``<!-- file: NAME -->``: the block is written to this file.
- ``<!-- prints -->``: what the last program printed has these lines, in this order; ``…`` stands for any text.
- ``<!-- setup: COMMAND -->``: something that the reader has already, such as a folder. It stands alone.
- ``<!-- not run: REASON -->``
"""


def output_of(found: re.Match[str], folder: Path, environment: dict[str, str]) -> str:
    """Run one example in the folder of its page."""
    if found["language"] == "python":
        (folder / "example.py").write_text(found["body"])
        program = [sys.executable, "example.py"]
    else:
        program = ["bash", "-euo", "pipefail", "-c", found["setup"] or found["body"]]
    done = processes.run(
        program, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=500,
    )  # fmt: skip
    expected = int((found["value"] or "exits 0").removeprefix("exits "))
    assert done.returncode == expected, f"{found[0]}\n\nstatus {done.returncode}:\n{done.stdout}"
    return done.stdout


def run_page(text: str, folder: Path, environment: dict[str, str]) -> None:
    """Do all examples of a page in a folder, in order, and compare what they print with what the page shows."""
    printed = ""
    for found in EXAMPLE.finditer(text):
        if found["setup"] or found["word"] == "run":
            printed = output_of(found, folder, environment)
        elif found["word"] == "file":
            (folder / found["value"]).parent.mkdir(parents=True, exist_ok=True)
            (folder / found["value"]).write_text(found["body"])
        elif found["word"] == "prints":
            lines = [re.escape(line.strip()).replace("…", ".*?") for line in found["body"].splitlines() if line.strip()]
            assert re.search(".*?".join(lines), printed, re.DOTALL), f"{found['body']}\n\nis not what came:\n{printed}"
