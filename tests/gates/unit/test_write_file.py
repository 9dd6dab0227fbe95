"""write_file: new files and old ones, whole or not at all."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.gates import atomic_write
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Diff, Location
from tests.support.fixtures.gates import call_in, context_of

Call = Callable[..., GateReply]


def test_a_new_file_with_its_folders(call: Call, workspace: Path) -> None:
    reply = call(WRITE_FILE, path="src/new/app.py", content="x = 1\ny = 2\n")
    path = workspace / "src/new/app.py"
    assert path.read_text() == "x = 1\ny = 2\n"
    assert reply.result == "created src/new/app.py (2 lines, 12 bytes)"
    assert reply.locations == (Location(str(path)),)
    assert reply.diffs == (Diff(str(path), None, "x = 1\ny = 2\n"),)
    assert reply.title == "Write src/new/app.py"
    assert path.stat().st_mode & 0o777 == 0o666 & ~current_umask()


def current_umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def test_an_old_file_keeps_what_is_its_own(call: Call, workspace: Path) -> None:
    path = workspace / "run.sh"
    path.write_text("old\n")
    path.chmod(0o754)
    reply = call(WRITE_FILE, path="run.sh", content="new")
    assert path.read_text() == "new"
    assert path.stat().st_mode & 0o7777 == 0o754
    assert reply.result == "updated run.sh (1 line, 3 bytes)"
    assert reply.diffs == (Diff(str(path), "old\n", "new"),)
    assert os.listdir(workspace) == ["run.sh"]


def test_set_user_id_is_not_kept(call: Call, workspace: Path) -> None:
    path = workspace / "tool"
    path.write_text("old")
    path.chmod(0o4755)
    call(WRITE_FILE, path="tool", content="new")
    assert path.stat().st_mode & 0o7777 == 0o755


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to somebody else takes root")
def test_the_owner_stays(call: Call, workspace: Path) -> None:
    path = workspace / "theirs"
    path.write_text("old")
    os.chown(path, 1234, 2345)
    call(WRITE_FILE, path="theirs", content="new")
    assert (path.stat().st_uid, path.stat().st_gid) == (1234, 2345)


@pytest.mark.parametrize(
    ("old", "content", "new", "note"),
    [
        (b"\xef\xbb\xbfold", "né", b"\xef\xbb\xbfn\xc3\xa9", ", UTF-8 with a byte order mark"),
        (b"\xef\xbb\xbfold", "\ufeffné", b"\xef\xbb\xbfn\xc3\xa9", ", UTF-8 with a byte order mark"),
        ("old".encode("utf-16"), "né", "né".encode("utf-16"), ", UTF-16"),
        ("öld –".encode("cp1252"), "nö", b"n\xf6", ", Windows-1252"),
        ("öld –".encode("cp1252"), "日本", "日本".encode(), ", now UTF-8; it was not, perhaps Windows-1252"),
        (b"caf\xe9\x81", "\u20ac", "\u20ac".encode(), ", now UTF-8; it was not, perhaps Latin-1"),
        (b"\x89PNG\r\n\0", "text", b"text", ""),
        (b"one\r\n", "one\ntwo\n", b"one\r\ntwo\r\n", ", with CRLF line ends as before"),
        (b"one\r\n", "one\r\ntwo\n", b"one\r\ntwo\n", ""),
        (b"one\r\ntwo\n", "one\ntwo\n", b"one\ntwo\n", ", with LF line ends; it had CRLF ones too"),
    ],
)
def test_the_encoding_stays_where_it_can(
    call: Call, workspace: Path, old: bytes, content: str, new: bytes, note: str
) -> None:
    (workspace / "f").write_bytes(old)
    reply = call(WRITE_FILE, path="f", content=content)
    assert (workspace / "f").read_bytes() == new
    assert reply.result.endswith(f"bytes{note})")


def test_the_same_again_touches_nothing(call: Call, workspace: Path) -> None:
    path = workspace / "f"
    path.write_text("same")
    before = path.stat()
    reply = call(WRITE_FILE, path="f", content="same")
    assert reply.result == "unchanged: f (1 line, 4 bytes)"
    assert reply.diffs == ()
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("folder", "is a folder, not a file"),
        ("folder/", "is a folder, not a file"),
        ("new/", "names a folder"),
        ("file/below", "is not a folder"),
        ("gone/../x", "no such folder"),
    ],
)
def test_places_that_are_none(call: Call, workspace: Path, path: str, says: str) -> None:
    (workspace / "folder").mkdir()
    (workspace / "file").write_text("")
    with pytest.raises(GateError, match=says):
        call(WRITE_FILE, path=path, content="x")
    assert sorted(os.listdir(workspace)) == ["file", "folder"]


def test_limits(call: Call, workspace: Path) -> None:
    with pytest.raises(GateError, match="content has 6 bytes; this gate writes files of up to 5"):
        call_in(context_of(workspace, max_bytes=5), WRITE_FILE, path="f", content="ééé")
    with pytest.raises(GateError, match="surrogate pair"):
        call(WRITE_FILE, path="f", content="\ud800")
    assert os.listdir(workspace) == []
    (workspace / "large").write_bytes(b"x" * 20)
    reply = call_in(context_of(workspace, max_bytes=10), WRITE_FILE, path="large", content="small")
    assert reply.result.startswith("updated large")


def test_long_texts_go_through_a_thread_and_are_not_shown(call: Call, workspace: Path) -> None:
    content = "x" * 3_000_000
    reply = call(WRITE_FILE, path="f", content=content)
    assert (workspace / "f").stat().st_size == 3_000_000
    assert reply.diffs == ()


def test_readers_see_the_old_or_the_new(workspace: Path) -> None:
    path = workspace / "f"
    texts = {"a" * 50_000, "b" * 70_000}
    path.write_text("a" * 50_000)
    seen: set[str] = set()
    over = threading.Event()

    def reader() -> None:
        while not over.is_set():
            seen.add(path.read_text())

    thread = threading.Thread(target=reader)
    thread.start()
    try:
        for number in range(100):
            WRITE_FILE.handler({"path": "f", "content": sorted(texts)[number % 2]}, context_of(workspace))
    finally:
        over.set()
        thread.join()
    assert seen <= texts


def test_somebody_elses_change_is_not_undone(call: Call, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = workspace / "f"
    path.write_text("old\n")
    real = atomic_write._write

    def meanwhile(descriptor: int, data: bytes) -> None:
        real(descriptor, data)
        path.write_text("theirs, and longer\n")

    monkeypatch.setattr(atomic_write, "_write", meanwhile)
    for gate, args in ((WRITE_FILE, {"content": "ours\n"}), (EDIT_FILE, {"old_text": "e", "new_text": "x"})):
        path.write_text("on e\n")
        with pytest.raises(GateError, match="changed by another program"):
            call(gate, path="f", **args)
        assert path.read_text() == "theirs, and longer\n"
        assert os.listdir(workspace) == ["f"]
