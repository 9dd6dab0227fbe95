"""list_dir: names, depth, marks and bounds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.files.list_dir import LIST_DIR
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Location
from tests.support.fixtures.gates import call_in, context_of

Call = Callable[..., GateReply]


@pytest.fixture
def tree(workspace: Path) -> Path:
    for name in ("src/app.py", "src/deep/er/x.py", "README.md", "node_modules/pkg/index.js", "build.log", ".hidden"):
        (workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (workspace / name).write_text("x\n")
    (workspace / "link").symlink_to("src")
    (workspace / "out").symlink_to("../outside")
    (workspace / ".gitignore").write_text("node_modules/\n*.log\n")
    return workspace


def test_names(call: Call, tree: Path) -> None:
    reply = call(LIST_DIR)
    assert reply.result == [".gitignore", ".hidden", "README.md", "build.log", "link", "node_modules/", "out", "src/"]
    assert reply.title == "List ."
    assert reply.locations == (Location(str(tree)),)
    assert call(LIST_DIR, path="src").result == ["app.py", "deep/"]
    assert call(LIST_DIR, path="link").result == ["app.py", "deep/"]
    assert call(LIST_DIR, path=str(tree / "src")).result == ["app.py", "deep/"]


def test_names_can_be_read(call: Call, tree: Path) -> None:
    assert [call(READ_FILE, path=name).result for name in call(LIST_DIR).result if name.endswith(".md")] == ["x\n"]


def test_depth_leaves_ignored_folders_and_links_closed(call: Call, tree: Path) -> None:
    assert call(LIST_DIR, depth=2).result == [
        ".gitignore",
        ".hidden",
        "README.md",
        "build.log",
        "link",
        "node_modules/",
        "out",
        "src/",
        "src/app.py",
        "src/deep/",
    ]
    assert "src/deep/er/x.py" in call(LIST_DIR, depth=9).result
    assert call(LIST_DIR, path="node_modules", depth=3).result == ["pkg/", "pkg/index.js"]


def test_details(call: Call, tree: Path) -> None:
    os.mkfifo(tree / "src" / "pipe")
    assert call(LIST_DIR, details=True).result.splitlines() == [
        ".gitignore  20 bytes",
        ".hidden  2 bytes",
        "README.md  2 bytes",
        "build.log  2 bytes  (ignored)",
        "link -> src",
        "node_modules/  (ignored)",
        "out -> ../outside",
        "src/",
    ]
    assert call(LIST_DIR, path="src", details=True).result == "app.py  2 bytes\ndeep/\npipe  pipe"
    assert "node_modules/  (ignored, not opened)" in call(LIST_DIR, details=True, depth=2).result


def test_an_empty_folder(call: Call, workspace: Path) -> None:
    assert call(LIST_DIR).result == []
    assert call(LIST_DIR, details=True).result == "(the folder is empty)"


def test_the_list_is_bounded_and_keeps_the_top(workspace: Path) -> None:
    for folder in "abc":
        (workspace / folder).mkdir()
        for n in range(20):
            (workspace / folder / f"{n:02}").write_text("")
    context = context_of(workspace, max_entries=10)
    assert call_in(context, LIST_DIR, depth=2).result == [
        "a/",
        *[f"a/{n:02}" for n in range(7)],
        "b/",
        "c/",
        "[cut: 53 more; list one of the folders, or use search]",
    ]


def test_a_very_large_folder(workspace: Path) -> None:
    for n in range(8_000):
        os.close(os.open(workspace / f"{n:05}", os.O_CREAT | os.O_WRONLY))
    began = time.process_time()
    result = call_in(context_of(workspace), LIST_DIR).result
    assert time.process_time() - began < 10
    assert result[:2] == ["00000", "00001"]
    assert result[-1] == "[cut: 7,000 more; list one of the folders, or use search]"
    assert len(result) == 1001


@pytest.mark.parametrize("name", [b"br\xffken", "lêtre".encode(), b"new\nline", b"q'uote", b"-dash"])
def test_odd_names_are_valid_text(call: Call, workspace: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(workspace), name)
    with open(path, "w") as file:
        file.write("x")
    (shown,) = call(LIST_DIR).result
    shown.encode("utf-8")
    assert shown == name.decode("utf-8", "backslashreplace")


def test_what_cannot_be_listed(call: Call, workspace: Path) -> None:
    (workspace / "f.txt").write_text("")
    with pytest.raises(GateError, match=r"'f.txt' is a file, not a folder"):
        call(LIST_DIR, path="f.txt")
    with pytest.raises(GateError, match="no such folder: 'gone'"):
        call(LIST_DIR, path="gone")


def test_a_deep_tree(call: Call, workspace: Path) -> None:
    (workspace / "/".join("d" * 50)).mkdir(parents=True)
    assert call(LIST_DIR, depth=20).result[-1] == "d/" * 20
