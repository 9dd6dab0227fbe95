"""Helix, in a terminal, with ``editors/helix`` as its README has it laid, and the real language server."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.editors import debian_packages as debian
from tests.e2e.editors.conftest import RECIPE
from tests.e2e.editors.editor_processes import FILES, Home
from tests.e2e.editors.terminal import Terminal

# The first one may have to load the editors.
pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def helix(editors: debian.Root, home: Home, workspace: Path) -> Iterator[Callable[[str], Terminal]]:
    """Starts it on a file."""
    place = home.path / "config/helix"
    place.mkdir()
    shutil.copy(FILES / "helix/languages.toml", place)
    shutil.copy(FILES / "helix/config.toml", place)
    shutil.copytree(FILES / "helix/runtime", place / "runtime")
    command, needs = editors.helix()
    began: list[Terminal] = []

    def start(file: str) -> Terminal:
        began.append(Terminal([*command, file], home.environment(needs), workspace))
        return began[-1]

    yield start
    for each in began:
        each.close()


def test_what_is_wrong_is_said(helix: Callable[[str], Terminal]) -> None:
    screen = helix("broken.cantrip.yaml")
    screen.wait("●")
    screen.type("7G")
    assert "did you mean 'conversation'?" in screen.wait("unknown medium")


def test_a_fix_is_applied(helix: Callable[[str], Terminal]) -> None:
    screen = helix("broken.cantrip.yaml")
    screen.wait("●")
    screen.type("7Ggl")
    screen.type(" a")
    # The menu; the finding itself names the word too.
    screen.wait("Make it", "Rename to")
    screen.type("\r\r")
    screen.wait("medium: conversation\n", "medium: conversation ")


def test_completing_and_hovering(helix: Callable[[str], Terminal]) -> None:
    screen = helix("count.cantrip.yaml")
    screen.wait("max_turns")
    screen.type("10Gglhh")
    screen.type(" k")
    screen.wait("Queries in one cast", again="\x1b k")
    screen.type("\x1b")
    screen.type("o- max_to")
    screen.wait("max_total_tokens", again="\x18")


def test_casting(helix: Callable[[str], Terminal], workspace: Path) -> None:
    (workspace / "count.cantrip.yaml").write_text(f"# intent: Count the words.\n{RECIPE}")
    screen = helix("count.cantrip.yaml")
    screen.wait("max_turns")
    screen.type(":lsp-workspace-command\r")
    assert "cantrip.openLoom" in screen.wait("cantrip.cast", again="\x1b:lsp-workspace-command\r")
    screen.type("\x1b")
    # The key of config.toml.
    screen.type(" R")
    screen.wait("three words")


def test_every_kind_of_file_is_known(helix: Callable[[str], Terminal], workspace: Path) -> None:
    screen = helix("broken.cantrip.yaml")
    screen.wait("●")
    (workspace / "one.loom.jsonl").write_text('{"type": "loom", "version": 1}\n')
    screen.type(":open one.loom.jsonl\r")
    screen.type(":set-language\r")
    screen.wait("cantrip-loom", "one.loom.jsonl")
    screen.type(":lang\r")
    screen.wait("cantrip-loom")
