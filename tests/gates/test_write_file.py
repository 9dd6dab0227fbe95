"""write_file: new files and old ones, whole or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.core.errors import GateError
from cantrip_acp.core.events import Diff, Location
from cantrip_acp.gates import atomic_write
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from tests import ordinary_user
from tests.gates.conftest import call_in, context_of

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
        ("öld –".encode("cp1252"), "né", b"n\xe9", ", Windows-1252"),
        ("öld –".encode("cp1252"), "日本", "日本".encode(), ", now UTF-8: Windows-1252 has no '日'"),
        (b"caf\xe9\x81", "\u20ac", "\u20ac".encode(), ", now UTF-8: Latin-1 has no '€'"),
        (b"\x89PNG\r\n\0", "text", b"text", ""),
        (b"one\r\n", "one\ntwo\n", b"one\ntwo\n", ""),
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
        with pytest.raises(GateError, match="changed by somebody else"):
            call(gate, path="f", **args)
        assert path.read_text() == "theirs, and longer\n"
        assert os.listdir(workspace) == ["f"]


FULL = """
import os, sys
from pathlib import Path
from cantrip_acp.core.errors import GateError
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from tests.gates.conftest import call_in, context_of

folder = Path(sys.argv[1])
context = context_of(folder)
(folder / "f").write_text("old NEEDLE\\n")
for gate, args in (
    (WRITE_FILE, {"path": "f", "content": "x" * 2_000_000}),
    (WRITE_FILE, {"path": "new/f", "content": "x" * 2_000_000}),
    (EDIT_FILE, {"path": "f", "old_text": "NEEDLE", "new_text": "y" * 900_000}),
):
    try:
        call_in(context, gate, **args)
    except GateError as error:
        print(error)
    else:
        print("WRITTEN")
assert (folder / "f").read_text() == "old NEEDLE\\n"
assert not [name for name in os.listdir(folder) if name.startswith(".cantrip-")], os.listdir(folder)
"""


def test_a_full_disk_leaves_the_old_file(tmp_path: Path) -> None:
    """In a mount namespace of its own, on a file system of 64 kB."""
    command = f'mount -t tmpfs -o size=64k none {tmp_path} && exec {sys.executable} -c "$1" {tmp_path}'
    done = subprocess.run(
        ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"]), "sh", "-c", command, "sh", FULL],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )
    if done.returncode and ("unshare" in done.stderr or "mount" in done.stderr):
        pytest.skip(f"no small file system to be had here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "cannot write 'f': the disk is full; the old file is unchanged"
    assert lines[1] == "cannot write 'new/f': the disk is full; no file was made"
    assert lines[2] == "cannot write 'f': the disk is full; the old file is unchanged"


DENIED = """
import os, sys
from pathlib import Path
from cantrip_acp.core.errors import GateError
from cantrip_acp.gates.files.list_dir import LIST_DIR
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.gates.search.search import SEARCH
from cantrip_acp.gates.files.edit_file import EDIT_FILE
from cantrip_acp.gates.files.write_file import WRITE_FILE
from tests.gates.conftest import call_in, context_of

folder = Path(sys.argv[1])
context = context_of(folder)
for gate, args in (
    (READ_FILE, {"path": "closed.txt"}),
    (READ_FILE, {"path": "closed/inner.txt"}),
    (LIST_DIR, {"path": "closed"}),
    (WRITE_FILE, {"path": "readonly.txt", "content": "x"}),
    (EDIT_FILE, {"path": "readonly.txt", "old_text": "o", "new_text": "x"}),
    (WRITE_FILE, {"path": "fixed/new.txt", "content": "x"}),
    (WRITE_FILE, {"path": "fixed/sub/new.txt", "content": "x"}),
    (WRITE_FILE, {"path": "fixed/old.txt", "content": "x"}),
):
    try:
        print("DONE", call_in(context, gate, **args).result)
    except GateError as error:
        print(error)
print(call_in(context, LIST_DIR, depth=3).result)
print(call_in(context, SEARCH, pattern="needle").result)
"""


def test_permission_denied(tmp_path: Path) -> None:
    """As somebody who is not root."""
    folder = tmp_path / "w"
    (folder / "closed").mkdir(parents=True)
    (folder / "closed" / "inner.txt").write_text("needle")
    (folder / "closed.txt").write_text("needle")
    (folder / "open.txt").write_text("needle")
    (folder / "readonly.txt").write_text("old")
    (folder / "fixed").mkdir()
    (folder / "fixed" / "old.txt").write_text("old")
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, 65534, 65534)
        above = tmp_path
        while above != above.parent:
            if not above.stat().st_mode & 0o001 and above.stat().st_uid == 0:
                above.chmod(above.stat().st_mode | 0o011)
            above = above.parent
    (folder / "closed.txt").chmod(0)
    (folder / "closed").chmod(0)
    (folder / "readonly.txt").chmod(0o444)
    (folder / "fixed").chmod(0o555)
    (folder / "fixed" / "old.txt").chmod(0o666)
    words = [sys.executable, "-B", "-c", DENIED, str(folder)]
    done = subprocess.run(
        ordinary_user.command(*words) if os.geteuid() == 0 else words,
        capture_output=True,
        text=True,
        timeout=60,
        env={"PATH": os.environ["PATH"], "PYTHONPATH": os.getcwd(), "HOME": "/nonexistent"},
    )
    (folder / "closed").chmod(0o755)
    (folder / "fixed").chmod(0o755)
    if done.returncode and "GateError" not in done.stderr and ("Permission denied" in done.stderr or not done.stdout):
        pytest.skip(f"the interpreter does not run without root here: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "cannot use 'closed.txt': permission denied",
        "cannot use 'closed/inner.txt': permission denied",
        "cannot use 'closed': permission denied",
        "'readonly.txt' is read-only: permission denied; the file was not changed",
        "'readonly.txt' is read-only: permission denied; the file was not changed",
        "cannot write 'fixed/new.txt': permission denied; no file was made",
        "cannot make its folder 'fixed/sub/new.txt': permission denied",
        "cannot write 'fixed/old.txt': permission denied; the old file is unchanged",
        "['closed/', 'closed.txt', 'fixed/', 'fixed/old.txt', 'open.txt', 'readonly.txt']",
        "open.txt:1:needle",
    ]
