"""A process that can write the workspace exchanges folders and files for links, as fast as it can, while gates work there.

Each race has its control: reading by path, as a gate without descriptors would, does get out in the same time.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.list_dir import LIST_DIR
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from cantrip_acp.gates.search import ripgrep
from cantrip_acp.gates.search.search import SEARCH
from cantrip_acp.types.errors import GateError
from tests.support.fixtures.gates import call_in, context_of

SECONDS = float(os.environ.get("RACE_SECONDS", "1.5"))

# Two names exchanged in one step, forever: there is always something at each of them.
EXCHANGE = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
one, two = sys.argv[1].encode(), sys.argv[2].encode()
if libc.renameat2(-100, one, -100, two, 2):
    sys.exit(f"renameat2: {ctypes.get_errno()}")
print("ready", flush=True)
while True:
    libc.renameat2(-100, one, -100, two, 2)
"""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="exchanging two names in one step is Linux's renameat2")


@contextmanager
def exchanging(one: Path, two: Path) -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", EXCHANGE, one, two], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def rounds() -> Iterator[int]:
    end, number = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        number += 1
        yield number


@pytest.fixture
def field(workspace: Path) -> Path:
    """``workspace/a`` is a folder, ``workspace/b`` a link out; both have a ``secret.txt``."""
    (workspace / "a").mkdir()
    (workspace / "a" / "secret.txt").write_text("the inside text\n")
    (workspace / "b").symlink_to("../outside")
    (workspace / "f.txt").write_text("the inside text\n")
    (workspace / "g.txt").symlink_to("../outside/secret.txt")
    return workspace


@pytest.mark.parametrize(("path", "names"), [("a/secret.txt", ("a", "b")), ("f.txt", ("f.txt", "g.txt"))])
def test_reading(field: Path, path: str, names: tuple[str, str]) -> None:
    context = context_of(field)
    seen: set[str] = set()
    control: set[str] = set()
    with exchanging(field / names[0], field / names[1]):
        for _ in rounds():
            try:
                seen.add(str(READ_FILE.handler({"path": path}, context).result))
            except GateError as error:
                seen.add(str(error)[:20])
            control.add((field / path).read_text())
    assert not [text for text in seen if "outside secret" in text]
    assert "the inside text\n" in seen
    assert "the outside secret\n" in control


@pytest.mark.parametrize(("folder", "names"), [("a", ("a", "b")), (".", ("f.txt", "g.txt"))])
@pytest.mark.parametrize("gate", [WRITE_FILE, EDIT_FILE], ids=["write_file", "edit_file"])
def test_writing(field: Path, folder: str, names: tuple[str, str], gate: object) -> None:
    outside = field.parent / "outside"
    context = context_of(field)
    written = 0
    target = "secret.txt" if folder == "a" else "f.txt"
    with exchanging(field / names[0], field / names[1]):
        for number in rounds():
            try:
                if gate is WRITE_FILE:
                    WRITE_FILE.handler({"path": f"{folder}/{target}", "content": f"inside {number}\n"}, context)
                    WRITE_FILE.handler({"path": f"{folder}/new{number % 7}/x.txt", "content": f"{number}"}, context)
                else:
                    args = {"path": f"{folder}/{target}", "old_text": "the", "new_text": "the the"}
                    if number % 50 == 0:
                        args = {
                            "path": f"{folder}/{target}",
                            "old_text": "the the",
                            "new_text": "the",
                            "replace_all": True,
                        }
                    EDIT_FILE.handler(args, context)
                written += 1
            except GateError:
                pass
            assert sorted(os.listdir(outside)) == ["secret.txt"], "a file was made outside"
    assert (outside / "secret.txt").read_text() == "the outside secret\n"
    assert written


@pytest.mark.parametrize("names", [("a", "b"), ("f.txt", "g.txt")])
@pytest.mark.parametrize("engine", ["ripgrep", "python"])
def test_searching(field: Path, names: tuple[str, str], engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    context = context_of(field)
    if engine == "python":
        monkeypatch.setattr(ripgrep, "find_ripgrep", lambda *_: None)
    elif ripgrep.find_ripgrep(()) is None:
        pytest.skip("ripgrep is not installed")
    seen: set[str] = set()
    with exchanging(field / names[0], field / names[1]):
        for _ in rounds():
            for path in (".", names[0]):
                try:
                    seen.add(str(call_in(context, SEARCH, pattern="the (inside|outside)", path=path).result))
                except GateError as error:
                    seen.add(str(error))
    assert not [text for text in seen if "outside secret" in text]
    assert [text for text in seen if "inside text" in text]


def test_listing(field: Path) -> None:
    (field.parent / "outside" / "only-outside").write_text("")
    context = context_of(field)
    seen: set[str] = set()
    with exchanging(field / "a", field / "b"):
        for _ in rounds():
            for args in ({"path": "a"}, {"path": ".", "depth": 3}):
                try:
                    seen.update(call_in(context, LIST_DIR, **args).result)
                except GateError:
                    pass
    assert not [name for name in seen if "only-outside" in name]
    assert "a/secret.txt" in seen


def test_a_root_in_the_workspace(field: Path) -> None:
    """The gate's own root is what is exchanged."""
    context = context_of(field, root=field / "a")
    seen: set[str] = set()
    with exchanging(field / "a", field / "b"):
        for number in rounds():
            try:
                seen.add(str(READ_FILE.handler({"path": "secret.txt"}, context).result))
                WRITE_FILE.handler({"path": "secret.txt", "content": f"inside {number}\n"}, context)
            except GateError as error:
                seen.add(str(error)[:20])
    assert not [text for text in seen if "outside secret" in text]
    assert (field.parent / "outside" / "secret.txt").read_text() == "the outside secret\n"


def test_protected_names_behind_a_link_that_moves(field: Path) -> None:
    """``a`` is a folder, ``b`` a link to ``.git``: whatever the moment, nothing gets into ``.git``."""
    (field / ".git" / "hooks").mkdir(parents=True)
    (field / "b").unlink()
    (field / "b").symlink_to(".git")
    (field / "a" / "hooks").mkdir()
    context = context_of(field)
    with exchanging(field / "a", field / "b"):
        for _ in rounds():
            try:
                WRITE_FILE.handler({"path": "a/hooks/pre-commit", "content": "#!/bin/sh\n"}, context)
            except GateError:
                pass
    assert os.listdir(field / ".git" / "hooks") == []
