"""Files that users name for output: what is replaced, what is written into, and what is refused."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp import Loom, Turn
from cantrip_acp.loom.output_file import output_file
from cantrip_acp.loom.view import write_html
from cantrip_acp.types.errors import OutputError
from cantrip_acp.types.records import CantripRecord, CastRecord
from tests.support.command_line import run
from tests.support.fixtures.loom import small_disk as small_disk


def loom_at(where: str) -> str:
    with Loom.open(where) as loom:
        loom.append(CantripRecord("c", {"system_prompt": "You greet."}, {}))
        loom.append(Turn("t0", None, "c", "e", None, role="call"))
        loom.append(CastRecord("k", "start", "e", "c", intent="go"))
        loom.append(Turn("t1", "t0", "c", "e", "k", sequence=1, terminated=True, reason="done"))
        loom.append(CastRecord("k", "end", "e", "c", terminated=True, reason="done", result="x"))
    return where


@pytest.fixture
def loom(tmp_path: Path) -> Path:
    return Path(loom_at(str(tmp_path / "a.loom.jsonl")))


@pytest.fixture
def device(tmp_path: Path) -> Path:
    """A character device that swallows everything, made here."""
    if os.geteuid() != 0:
        pytest.skip("making a device needs root")
    path = tmp_path / "device"
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        path.write_bytes(b"")
    except OSError as error:
        pytest.skip(f"no device can be made or used here: {error}")
    return path


WAYS: dict[str, Callable[[Path, Path], list[str | Path]]] = {
    "export": lambda loom, out: ["loom", "export", loom, "--format", "openai", "-o", out],
    "view": lambda loom, out: ["loom", "view", loom, "--html", out],
    "recipe": lambda loom, out: ["recipe", "new", "--force", out],
}


@pytest.fixture(params=list(WAYS))
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def target(folder: Path, way: str) -> Path:
    """A name that the command takes."""
    return folder / ("out.cantrip.yaml" if way == "recipe" else "out")


def command(way: str, loom: Path, out: Path) -> list[str]:
    return [str(word) for word in WAYS[way](loom, out)]


def test_a_device_stays_a_device(loom: Path, device: Path, tmp_path: Path, way: str) -> None:
    out = target(tmp_path, way)
    device.rename(out)
    before = out.lstat()
    done = run(*command(way, loom, out), cwd=tmp_path)
    assert done.status == 0, done.err
    after = out.lstat()
    assert stat.S_ISCHR(after.st_mode)
    assert (after.st_ino, after.st_rdev, after.st_mode) == (before.st_ino, before.st_rdev, before.st_mode)
    assert not list(tmp_path.glob(".*.part"))


def test_a_pipe_gets_what_is_written(loom: Path, tmp_path: Path, way: str) -> None:
    out = target(tmp_path, way)
    os.mkfifo(out)
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(out.read_bytes()), daemon=True)
    reader.start()
    done = run(*command(way, loom, out), cwd=tmp_path)
    assert done.status == 0, done.err
    reader.join(60)
    plain = tmp_path / "plain" / out.name
    plain.parent.mkdir()
    run(*command(way, loom, plain), cwd=tmp_path)
    assert len(got[0]) == len(plain.read_bytes()) > 100
    assert stat.S_ISFIFO(out.lstat().st_mode)


def test_a_link_is_refused_whatever_it_names(loom: Path, tmp_path: Path, way: str) -> None:
    file = tmp_path / "file"
    file.write_text("old")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    again = tmp_path / "again"
    again.symlink_to(file)
    out = target(tmp_path, way)
    for to in (file, fifo, again, tmp_path / "none", Path("/dev/null"), Path("0")):
        out.symlink_to(to)
        done = run(*command(way, loom, out), cwd=tmp_path, timeout=60)
        assert done.status == 2
        assert f"it is a symbolic link, to {to}" in done.err
        assert out.is_symlink()
        assert file.read_text() == "old"
        out.unlink()
    assert not (tmp_path / "none").exists()


def _damaged(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"#" + b"".join(lines))


def _reordered(path: Path) -> None:
    path.write_text('{"format": 1, "id": "loom_1", "type": "loom"}\n')


def test_a_loom_is_refused(loom: Path, tmp_path: Path, way: str) -> None:
    out = target(tmp_path, way)
    for make in (
        lambda: loom_at(str(out)),
        lambda: loom_at(f"sqlite:{out}"),
        lambda: (loom_at(str(out)), _damaged(out)),
        lambda: _reordered(out),
    ):
        make()
        kept = out.read_bytes()
        done = run(*command(way, loom, out), cwd=tmp_path)
        assert done.status == 2
        assert "it is a loom, which is never replaced" in done.err
        assert out.read_bytes() == kept
        linked = target(tmp_path / "linked", way)
        linked.parent.mkdir(exist_ok=True)
        os.link(out, linked)
        assert "it is a loom" in run(*command(way, loom, linked), cwd=tmp_path).err
        assert out.read_bytes() == kept
        linked.unlink()
        out.unlink()


def test_what_belongs_to_a_loom_is_refused(tmp_path: Path) -> None:
    held = Loom.open(f"sqlite:{tmp_path}/a.db")
    held.append(Turn("t0", None, "c", "e", None, role="call"))
    with pytest.raises(OutputError, match="it is a loom"), output_file(tmp_path / "a.db"):
        pass
    with pytest.raises(OutputError, match="part of a loom"), output_file(tmp_path / "a.db-wal"):
        pass
    held.close()
    with pytest.raises(OutputError, match="part of a loom"), output_file(tmp_path / "a.db-wal"):
        pass
    # One that was just made and has no record yet.
    empty = Loom.open(tmp_path / "b.loom.jsonl")
    with pytest.raises(OutputError, match="another program is writing it"), output_file(tmp_path / "b.loom.jsonl"):
        pass
    empty.close()


def test_a_log_is_not_appended_to_a_loom(loom: Path, tmp_path: Path) -> None:
    kept = loom.read_bytes()
    for words in (["cantrip_acp.acp.start"], ["cantrip_acp.cli.main", "lsp"]):
        done = subprocess.run(
            [sys.executable, "-m", *words, "--log-file", str(loom)], input=b"", capture_output=True, timeout=60
        )
        assert done.returncode == 2
        assert b"it is a loom" in done.stderr
        assert loom.read_bytes() == kept


def test_our_own_descriptors_are_written_into(loom: Path, tmp_path: Path, way: str) -> None:
    if way == "recipe":
        pytest.skip("a recipe's file has an ending")
    words = command(way, loom, Path("/dev/stdout"))
    done = subprocess.run(
        [sys.executable, "-m", "cantrip_acp.cli.main", *words], cwd=tmp_path, capture_output=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) > 100
    assert Path("/dev/stdout").is_symlink()


def test_a_folder_is_refused_and_what_was_there_survives_a_failure(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    with pytest.raises(OutputError, match="is a folder; name a file in it"), output_file(folder):
        pass
    with pytest.raises(OutputError, match="No such file or directory"), output_file(tmp_path / "no" / "x"):
        pass
    file = tmp_path / "x"
    file.write_text("old")
    file.chmod(0o604)
    with pytest.raises(KeyError), output_file(file) as out:  # noqa: PT012
        out.write(b"half")
        raise KeyError
    assert file.read_text() == "old"
    with pytest.raises(OutputError, match="exists already"), output_file(file, overwrite=False):
        pass
    if os.geteuid() == 0:
        os.chown(file, 12345, 54321)
    with output_file(file) as out:
        out.write(b"new")
    status = file.stat()
    assert (file.read_text(), stat.S_IMODE(status.st_mode)) == ("new", 0o604)
    if os.geteuid() == 0:
        assert (status.st_uid, status.st_gid) == (12345, 54321)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["f", "x"]


def test_a_full_disk_leaves_the_old_file(small_disk: Path) -> None:
    file = small_disk / "x"
    file.write_text("old")
    with pytest.raises(OutputError, match="No space left"), output_file(file) as out:  # noqa: PT012
        for _ in range(40):
            out.write(bytes(100_000))
    assert file.read_text() == "old"
    assert [p.name for p in small_disk.iterdir()] == ["x"]


def test_what_takes_the_place_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    """The file is another one when the new content takes its name, or something is there that was not."""
    file, fifo = tmp_path / "x", tmp_path / "fifo"
    for before in ("old", None):
        if before is not None:
            file.write_text(before)
        os.mkfifo(fifo)
        with pytest.raises(OutputError, match="replaced by another one at the same time"), output_file(file) as out:  # noqa: PT012
            out.write(b"new")
            fifo.rename(file)
        assert stat.S_ISFIFO(file.lstat().st_mode)
        assert [p.name for p in tmp_path.iterdir()] == ["x"]
        file.unlink()


def test_a_race_never_replaces_a_pipe(tmp_path: Path) -> None:
    """Somebody swaps a file and a pipe under the name as fast as possible."""
    file = tmp_path / "x"
    stop = threading.Event()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    number = pipe.lstat().st_ino

    def swap() -> None:
        while not stop.is_set():
            (tmp_path / "plain").write_text("plain")
            os.replace(tmp_path / "plain", file)
            # A rename between two names of one file does nothing, so the name of the last round may be left.
            (tmp_path / "other").unlink(missing_ok=True)
            os.link(pipe, tmp_path / "other")
            os.replace(tmp_path / "other", file)
            # A reader, or a writer into the pipe would wait.
            os.close(os.open(pipe, os.O_RDONLY | os.O_NONBLOCK))

    thread = threading.Thread(target=swap)
    held = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    thread.start()
    try:
        for _ in range(300):
            try:
                with output_file(file) as out:
                    out.write(b"x")
            except OutputError:
                pass
            assert pipe.lstat().st_ino == number
            assert stat.S_ISFIFO(pipe.lstat().st_mode)
    finally:
        stop.set()
        thread.join()
        os.close(held)
    assert not list(tmp_path.glob(".*.part"))


def test_the_page_keeps_to_its_owner(loom: Path, tmp_path: Path) -> None:
    write_html(loom, tmp_path / "x.html")
    assert stat.S_IMODE((tmp_path / "x.html").stat().st_mode) == 0o600
