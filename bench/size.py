"""What `pip install .` brings: packages, and megabytes of site-packages.

The baseline is an environment with the SDKs of Anthropic and OpenAI alone, which everybody gets. Each is a new environment, filled
by pip from the package index, with the bytecode that pip compiles. pip itself is not counted.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import Table, row
from bench.options import Options

ROOT = Path(__file__).resolve().parents[1]
MOST_PACKAGES = 40
MOST_MB = 120


def _installed(folder: Path, *wanted: str) -> tuple[int, float]:
    """The packages, and the MB that they take on the disk."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install", "--quiet"]
    subprocess.run([*pip, "--disable-pip-version-check", *wanted], check=True, cwd=ROOT)
    (site,) = folder.glob("lib/python*/site-packages")
    size = sum(file.lstat().st_blocks * 512 for file in site.rglob("*"))
    return len(list(site.glob("*.dist-info"))), size / 2**20


def run(options: Options) -> Table:
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        sdks, sdks_mb = _installed(folder / "sdks", "anthropic", "openai")
        ours, ours_mb = _installed(folder / "ours", ".")
        editor, editor_mb = _installed(folder / "editor", ".[editor]")
    packages = row("anthropic and openai: packages", [sdks], "")
    size = row("anthropic and openai: size", [sdks_mb], "MB")
    return Table(
        "size",
        "what `pip install .` brings",
        (
            packages,
            row(
                "cantrip-acp: packages",
                [ours],
                "",
                baseline=packages,
                goal=f"<= {MOST_PACKAGES}",
            ),
            row("cantrip-acp[editor]: packages", [editor], "", baseline=packages),
            size,
            row(
                "cantrip-acp: size",
                [ours_mb],
                "MB",
                baseline=size,
                goal=f"<= {MOST_MB} MB",
            ),
            row("cantrip-acp[editor]: size", [editor_mb], "MB", baseline=size),
        ),
    )
