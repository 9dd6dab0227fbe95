"""Test command: finds the command that runs a workspace's tests. It reads the workspace's files and runs nothing."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

from cantrip_acp.gates.confinement import Root
from cantrip_acp.types.errors import GateError

RUNNERS = ("pytest", "unittest", "npm", "cargo", "go", "make")
_LARGEST = 262_144
"""The most bytes to read of a project file."""
_NO_NPM_TEST = "no test specified"
_PYTHONS = (".venv", "venv", "env", ".env")
_TEST_FILE = re.compile(r"(?:test_.*|.*_test|tests?)\.py\Z")
_MAKE_TARGET = re.compile(r"^(test|tests|check)[ \t]*:(?![=:])", re.MULTILINE)
_MANAGERS = (("pnpm-lock.yaml", "pnpm"), ("yarn.lock", "yarn"), ("bun.lockb", "bun"), ("bun.lock", "bun"))
_FILTERS = (("vitest", "-t"), ("jest", "-t"), ("mocha", "--grep"), ("node --test", "--test-name-pattern"))


@dataclass(frozen=True, slots=True)
class TestCommand:
    """A shell command and its runner. ``also`` are other runners that the workspace probably has."""

    runner: str
    command: str
    also: tuple[str, ...] = ()


class Project:
    """The top folder of a workspace, whose files show how its tests are run."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self.names = frozenset(self._listed("."))

    def find_runners(self) -> list[str]:
        """Find the runners that fit, the most likely one first."""
        fitting = []
        if self._pytest():
            fitting.append("pytest")
        elif self._python_tests():
            fitting.append("unittest")
        if self._npm_script():
            fitting.append("npm")
        if "Cargo.toml" in self.names:
            fitting.append("cargo")
        if "go.mod" in self.names:
            fitting.append("go")
        if self._make_target():
            fitting.append("make")
        return fitting

    def command(self, runner: str, targets: Sequence[str] = (), match: str = "") -> str:
        """Build the command line. Raises `GateError` for targets or a filter that the runner does not support."""
        words = [shlex.quote(target) for target in targets]
        match runner, shlex.quote(match) if match else "":
            case "pytest", given:
                asked = [*words, *(["-k", given] if given else [])]
                run = f"-m pytest -q --tb=short --color=no -rfE -p no:cacheprovider {' '.join(asked)}".rstrip()
                return f"{self.python()} {run}"
            case "unittest", given:
                return self._unittest(words, given)
            case "npm", given:
                return self._npm(words, given)
            case "cargo", given:
                _no_targets(runner, words)
                return f"cargo test --color never {given}".rstrip()
            case "go", given:
                run = f" -run {given}" if given else ""
                return f"go test -json{run} {' '.join(words) or './...'}"
            case "make", given:
                _no_targets(runner, words)
                if given:
                    raise GateError("make runs all tests: it takes no filter", "leave match out")
                return f"make {self._make_target() or 'test'}"
            case _:
                raise GateError(f"unknown runner {runner!r}; one of {', '.join(RUNNERS)}")

    def python(self) -> str:
        """The Python of the workspace's virtual environment, else the one on PATH."""
        for folder in _PYTHONS:
            if folder in self.names and "pyvenv.cfg" in self._listed(folder):
                return f"{folder}/bin/python"
        return "python3"

    def _unittest(self, words: list[str], match: str) -> str:
        python = self.python()
        only = f" -k {match}" if match else ""
        if words:
            plain = f"-m unittest -v{only} {' '.join(words)}"
        elif "tests" in self.names and "__init__.py" not in self._listed("tests") and self._listed("tests"):
            plain = f"-m unittest discover -v -s tests{only}"
        else:
            plain = f"-m unittest discover -v{only}"
        also = self.command("pytest", [shlex.split(w)[0] for w in words], shlex.split(match)[0] if match else "")
        # Prefer pytest if it is installed: tests may use it without a project file, and it also runs unittest tests.
        return f"if {python} -c 'import pytest' 2>/dev/null; then {also}; else PYTHONPATH=. {python} {plain}; fi"

    def _pytest(self) -> bool:
        if self.names & {"pytest.ini", ".pytest.ini", "conftest.py"}:
            return True
        marks = (("pyproject.toml", "[tool.pytest"), ("setup.cfg", "[tool:pytest]"), ("tox.ini", "[pytest]"))
        if any(name in self.names and mark in self.text(name) for name, mark in marks):
            return True
        return any("conftest.py" in self._listed(folder) for folder in ("tests", "test") if folder in self.names)

    def _python_tests(self) -> bool:
        if any(map(_TEST_FILE.match, self.names)):
            return True
        return any(
            any(map(_TEST_FILE.match, self._listed(folder))) for folder in ("tests", "test") if folder in self.names
        )

    def _package(self) -> dict[str, object]:
        if "package.json" not in self.names:
            return {}
        try:
            found = json.loads(self.text("package.json"))
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def _npm_script(self) -> str:
        scripts = self._package().get("scripts")
        script = scripts.get("test") if isinstance(scripts, dict) else None
        return script if isinstance(script, str) and _NO_NPM_TEST not in script else ""

    def _npm(self, words: list[str], match: str) -> str:
        manager = next((program for lock, program in _MANAGERS if lock in self.names), "npm")
        if match:
            script = self._npm_script()
            flag = next((flag for word, flag in _FILTERS if word in script), None)
            if flag is None:
                raise GateError("the test script of this package has no known option for a filter", "leave match out")
            words = [*words, f"{flag}={match}" if flag.startswith("--") else f"{flag} {match}"]
        extra = f" -- {' '.join(words)}" if words else ""
        return f"{manager} test{extra}"

    def _make_target(self) -> str:
        for name in ("GNUmakefile", "makefile", "Makefile"):
            if name in self.names:
                found = _MAKE_TARGET.search(self.text(name))
                return found[1] if found else ""
        return ""

    def text(self, name: str) -> str:
        """Read the beginning of a file; empty if it cannot be read."""
        try:
            with self._root.find(name) as place:
                descriptor, _ = place.open_file()
        except GateError:
            return ""
        try:
            return os.read(descriptor, _LARGEST).decode("utf-8", "replace")
        finally:
            os.close(descriptor)

    def _listed(self, folder: str) -> list[str]:
        try:
            with self._root.find(folder) as place:
                descriptor = place.open_folder()
        except GateError:
            return []
        try:
            return [name for name, _ in zip(os.listdir(descriptor), range(10_000), strict=False)]
        finally:
            os.close(descriptor)


def _no_targets(runner: str, words: Sequence[str]) -> None:
    if words:
        raise GateError(
            f"{runner} takes no targets here", "leave targets out" + (", or use match" * (runner == "cargo"))
        )


def find_test_command(root: Root, runner: str | None, targets: Sequence[str], match: str) -> TestCommand:
    """Find the test command of a workspace. Raises `GateError` if no file shows how its tests are run."""
    for given in (*targets, match):
        if "\0" in given or "\n" in given:
            raise GateError("a target or filter has a line break or a NUL character")
    for target in targets:
        if target.startswith("-"):
            raise GateError(f"{target!r} is an option, not a test", "give files, folders or names")
    if match.startswith("-"):
        raise GateError(f"{match!r} is an option, not a filter")
    project = Project(root)
    found = project.find_runners()
    if runner is None:
        if not found:
            raise GateError(
                "no tests were found: no pytest or unittest files, package.json with a test script, Cargo.toml, go.mod or "
                "Makefile with a test target at the top of the workspace",
                "Name a runner, or run the tests in a shell",
            )
        runner = found[0]
    command = project.command(runner, targets, match)
    return TestCommand(runner, command, tuple(name for name in found if name != runner))
