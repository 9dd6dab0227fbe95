"""Editors without a screen: each is started with a script in its own language, and tells in JSON what it saw."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.e2e.editors.debian_packages import Root

FILES = Path(__file__).resolve().parents[3] / "editors"
HERE = Path(__file__).resolve().parent
PATIENCE_S = 90


class Home:
    """A user's folders. Programs are found as in a shell in which this environment of Python is active."""

    def __init__(self, path: Path) -> None:
        self.path = path
        for folder in ("config", "data", "state", "cache", "run"):
            (path / folder).mkdir(parents=True)
        (path / "run").chmod(0o700)

    def environment(self, *more: dict[str, str]) -> dict[str, str]:
        base = {
            "HOME": str(self.path),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "XDG_CONFIG_HOME": str(self.path / "config"),
            "XDG_DATA_HOME": str(self.path / "data"),
            "XDG_STATE_HOME": str(self.path / "state"),
            "XDG_CACHE_HOME": str(self.path / "cache"),
            "XDG_RUNTIME_DIR": str(self.path / "run"),
            "CANTRIP_STATE_DIR": str(self.path / "state" / "cantrip"),
            "TERM": "xterm-256color",
            "LC_ALL": "C.UTF-8",
        }
        for each in more:
            base |= each
        return base


def told(command: list[str], environment: dict[str, str], folder: Path, answer: Path) -> dict[str, Any]:
    """Run an editor to its end; what its script wrote to ``answer``. Fails with all that was said where it wrote nothing."""
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
        errors="replace", timeout=PATIENCE_S,
    )  # fmt: skip
    assert answer.exists(), f"no word from the editor (status {done.returncode}):\n{done.stdout}\n{done.stderr}"
    said: dict[str, Any] = json.loads(answer.read_text())
    assert "error" not in said, f"{said['error']}\n{done.stdout}\n{done.stderr}"
    return said


class Neovim:
    """Neovim with ``editors/neovim`` as a package of its own, which is how its README has it installed."""

    def __init__(self, root: Root, home: Home, folder: Path) -> None:
        self._program, self._needs = root.neovim()
        self.home = home
        self.folder = folder
        place = home.path / "data/nvim/site/pack/cantrip/start"
        place.mkdir(parents=True)
        (place / "cantrip").symlink_to(FILES / "neovim")

    def command(self) -> list[str]:
        return [*self._program, "--headless", "-i", "NONE"]

    def environment(self, **more: str) -> dict[str, str]:
        return self.home.environment(self._needs, more)

    def does(self, script: str, init: str = "") -> dict[str, Any]:
        """Run Lua in it; ``report(name, value)`` there becomes an entry of the answer."""
        (self.home.path / "config/nvim").mkdir(exist_ok=True)
        (self.home.path / "config/nvim/init.lua").write_text(init)
        answer = self.home.path / "neovim.json"
        answer.unlink(missing_ok=True)
        file = self.home.path / "script.lua"
        file.write_text(script)
        environment = self.environment(PROBE_SCRIPT=str(file), PROBE_ANSWER=str(answer))
        return told([*self.command(), "-c", f"luafile {HERE / 'neovim_probe.lua'}"], environment, self.folder, answer)


class Emacs:
    """Emacs with ``editors/emacs`` on its load path, as its README has it."""

    def __init__(self, root: Root, home: Home, folder: Path) -> None:
        self.root = root
        self._program, self._needs = root.emacs()
        self.home = home
        self.folder = folder

    def environment(self, **more: str) -> dict[str, str]:
        return self.home.environment(self._needs, more)

    def _batch(self) -> list[str]:
        # Without the setting it would start its compiler, which is itself, by a path that cannot be started alone.
        return [*self._program, "-Q", "--batch", "--eval", "(setq native-comp-enable-subr-trampolines nil)"]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._batch(), *arguments],
            cwd=self.folder, env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=PATIENCE_S,
        )  # fmt: skip

    def does(self, script: str) -> dict[str, Any]:
        """Run Lisp in it; ``(report "name" value)`` there becomes an entry of the answer."""
        answer = self.home.path / "emacs.json"
        answer.unlink(missing_ok=True)
        file = self.home.path / "script.el"
        file.write_text(f";; -*- lexical-binding: t; -*-\n{script}\n")
        environment = self.environment(PROBE_SCRIPT=str(file), PROBE_ANSWER=str(answer))
        command = [*self._batch(), "-L", str(FILES / "emacs"), "-l", str(HERE / "emacs_probe.el")]
        return told(command, environment, self.folder, answer)
