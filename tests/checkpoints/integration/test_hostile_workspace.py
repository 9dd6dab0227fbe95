"""Checkpoints of a hostile workspace: nothing outside is read or written, nothing hidden is kept, nothing is lost."""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cantrip_acp.checkpoints import watcher as watching
from cantrip_acp.checkpoints.history import FileHistory
from cantrip_acp.checkpoints.restore import make_plan, run_plan
from cantrip_acp.checkpoints.store import LARGEST, Store
from cantrip_acp.checkpoints.watcher import Watcher
from cantrip_acp.types.errors import CheckpointError
from tests.support.git_repositories import git, repository

KEY = ("loom", "entity")


class Kept:
    """A workspace with its store: what a session does, by hand."""

    def __init__(self, workspace: Path, *, watch: bool) -> None:
        self.workspace = workspace
        self.store = Store(workspace)
        self.watcher = Watcher(self.store, watch=watch)
        self.store.save(*KEY, None, "start", {}, tree=self.watcher.tree())

    def turn(self, by: str = "turn") -> dict[str, object]:
        changes = self.watcher.changes()
        self.store.save(*KEY, self.store.last(*KEY), by, changes, turn="t", cast="c")  # type: ignore[arg-type]
        return dict(changes)

    def undo(self, *, force: bool = False) -> tuple[dict[str, str], dict[str, str]]:
        """Undo everything. Returns the conflicts, and what was left."""
        self.turn("user")
        target = FileHistory(self.store, *KEY).undo()
        plan = make_plan(self.store, target.undone, to=target.to, force=force)
        outcome = run_plan(self.store, *KEY, plan)
        return dict(plan.conflicts), {**plan.left, **outcome.skipped}

    def close(self) -> None:
        self.watcher.close()
        self.store.close()


@pytest.fixture(params=["inotify", "scan"])
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Kept]:
    workspace = tmp_path / "w"
    (workspace / "src").mkdir(parents=True)
    (workspace / "src" / "a.txt").write_text("a\n")
    (workspace / "b.txt").write_text("b\n")
    (workspace / "run.sh").write_text("#!/bin/sh\n")
    (workspace / "run.sh").chmod(0o755)
    made = Kept(workspace, watch=request.param == "inotify")
    yield made
    made.close()


def files(folder: Path) -> dict[str, bytes | str]:
    """What is in a folder: the bytes of files, the targets of links, the kinds of others."""
    found: dict[str, bytes | str] = {}
    for path in sorted(folder.rglob("*")):
        mode = path.lstat().st_mode
        name = str(path.relative_to(folder))
        if stat.S_ISLNK(mode):
            found[name] = f"-> {os.readlink(path)}"
        elif stat.S_ISREG(mode):
            found[name] = path.read_bytes()
    return found


def test_created_deleted_renamed_and_moved_files_come_back(kept: Kept) -> None:
    where, before = kept.workspace, files(kept.workspace)
    (where / "src").rename(where / "lib")
    (where / "lib" / "a.txt").write_text("changed\n")
    (where / "b.txt").unlink()
    (where / "b.txt").mkdir()
    (where / "b.txt" / "inside").write_text("x")
    (where / "run.sh").chmod(0o644)
    (where / "deep" / "er").mkdir(parents=True)
    (where / "deep" / "er" / "new").write_text("new")
    kept.turn()
    assert kept.undo() == ({}, {})
    assert files(where) == before
    assert stat.S_IMODE((where / "run.sh").stat().st_mode) == 0o755
    assert sorted(os.listdir(where)) == ["b.txt", "run.sh", "src"]


def test_a_link_never_leads_out(kept: Kept, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("secret\n")
    where, before = kept.workspace, files(kept.workspace)
    (where / "src" / "a.txt").unlink()
    (where / "src").rmdir()
    (where / "src").symlink_to(outside)
    (where / "b.txt").unlink()
    (where / "b.txt").symlink_to(outside / "a.txt")
    changes = kept.turn()
    assert set(changes) == {"src", "src/a.txt", "b.txt"}
    assert not any(kept.store.content(found) == b"secret\n" for found in kept.store.hashes())
    assert kept.undo() == ({}, {})
    assert files(where) == before
    assert (outside / "a.txt").read_text() == "secret\n"
    # The folder is a link when the file is to be written: it is not followed.
    (where / "src" / "a.txt").write_text("changed\n")
    kept.turn()
    os.rename(where / "src", where / "moved")
    (where / "src").symlink_to(outside)
    kept.undo(force=True)
    assert (outside / "a.txt").read_text() == "secret\n"


def test_names(kept: Kept) -> None:
    where = kept.workspace
    names = ["A.txt", "a.txt", "new\nline", "größe", "-rf", " space ", "quote'\"", "x" * 255]
    for name in names:
        (where / name).write_text(name)
    raw = os.path.join(os.fsencode(where), b"\xff\xfe.bin")
    with open(raw, "wb") as file:
        file.write(b"raw")
    before = files(where)
    kept.turn("user")
    for name in names:
        (where / name).write_text("changed")
    os.unlink(raw)
    kept.turn()
    assert kept.undo() == ({}, {})
    assert files(where) == before


def test_what_is_not_kept_is_named_and_left_alone(kept: Kept) -> None:
    where = kept.workspace
    (where / ".env").write_text("KEY=secret\n")
    (where / "secret.pem").write_text("pem")
    (where / "secret.pem").chmod(0o600)
    (where / "unreadable").write_text("u")
    (where / "unreadable").chmod(0)
    with open(where / "huge.bin", "wb") as huge:
        huge.truncate(LARGEST + 1)
    os.mkfifo(where / "pipe")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(where / "socket")[-100:] if len(str(where / "socket")) < 100 else str(where / "s"))
    changes = kept.turn()
    assert {".env", "huge.bin", "pipe", "secret.pem", "unreadable"} <= set(changes)
    held = [kept.store.content(found) for found in kept.store.hashes()]
    assert not any(b"secret" in each or each == b"pem" for each in held)
    conflicts, left = kept.undo()
    assert conflicts == {}
    assert "larger than 10 MB" in left["huge.bin"]
    assert "keys" in left[".env"]
    assert "special file" in left["pipe"]
    for name in (".env", "huge.bin", "pipe", "secret.pem"):
        assert (where / name).exists()


def test_ignored_files_are_not_kept_and_a_rule_hides_no_change(kept: Kept) -> None:
    where = kept.workspace
    (where / ".gitignore").write_text("build/\n*.log\n")
    (where / "build").mkdir()
    (where / "build" / "out").write_text("x")
    (where / "a.log").write_text("x")
    assert set(kept.turn("user")) == {".gitignore"}
    before = files(where)
    (where / ".gitignore").write_text("*\n")
    kept.turn()
    (where / "src" / "a.txt").write_text("hidden change\n")
    assert set(kept.turn()) == {"src/a.txt"}
    assert kept.undo() == ({}, {})
    assert files(where) == before


def test_submodules_and_nested_repositories(kept: Kept, tmp_path: Path) -> None:
    where = kept.workspace
    repository(where)
    other = repository(tmp_path / "other")
    git(where, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(other), "module")
    repository(where / "nested")
    kept.turn("user")
    before = {name: data for name, data in files(where).items() if ".git/" not in name}
    (where / "module" / "kept.txt").write_text("changed\n")
    (where / "nested" / "src" / "app.py").unlink()
    assert set(kept.turn()) == {"module/kept.txt", "nested/src/app.py"}
    assert kept.undo() == ({}, {})
    assert {name: data for name, data in files(where).items() if ".git/" not in name} == before


def test_a_large_change_is_found_after_the_queue_of_the_kernel_overflowed(kept: Kept) -> None:
    # Three events or more for each file: more than max_queued_events, which is 16,384.
    for number in range(7_000):
        (kept.workspace / f"n{number}").touch()
    assert len(kept.turn()) == 7_000


def test_folders_come_and_go_with_their_files(kept: Kept) -> None:
    """What docs/undo.md says of folders, which are not kept themselves."""
    where = kept.workspace
    (where / "empty").mkdir()
    (where / "other").mkdir()
    kept.turn("user")
    (where / "empty" / "deep").mkdir()
    (where / "empty" / "deep" / "made.txt").write_text("made\n")
    (where / "made").mkdir()
    (where / "src" / "a.txt").unlink()
    (where / "src").rmdir()
    (where / "other").rmdir()
    kept.turn()
    assert kept.undo() == ({}, {})
    assert (where / "src" / "a.txt").read_text() == "a\n"
    assert sorted(os.listdir(where)) == ["b.txt", "made", "run.sh", "src"]


def test_a_file_that_changes_during_the_first_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    for name in ("a", "b", "c", "d"):
        (workspace / name).write_text("old\n")
        os.utime(workspace / name, (1, 1))
    time.sleep(0.06)  # A file that was changed just now is read in another way.
    real, changes = watching.read_file, {"b": lambda: (workspace / "b").write_text("newer\n"), "c": (workspace / "c").unlink,
                                         "d": lambda: os.chmod(workspace / "d", 0o600)}  # fmt: skip

    def read_file(name: str, fd: int) -> tuple[bytes, os.stat_result] | None:
        if change := changes.pop(name, None):
            change()
        return real(name, fd)

    monkeypatch.setattr(watching, "read_file", read_file)
    with Store(workspace) as store:
        watcher = Watcher(store)
        tree = watcher.tree()
        assert {name: store.content(entry.hash) for name, entry in tree.items()} == {
            "a": b"old\n", "b": b"newer\n", "d": b"old\n",
        }  # fmt: skip
        assert stat.S_IMODE(tree["d"].mode) == 0o600
        watcher.close()


def test_the_limit_counts_each_byte_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    workspace = tmp_path / "w"
    workspace.mkdir()
    for number in range(10):
        (workspace / f"f{number}").write_bytes(b"%09d\n" % number)
    monkeypatch.setattr(watching, "MOST_BYTES", 100)
    with Store(workspace) as store:
        Watcher(store).close()
        monkeypatch.setattr(watching, "MOST_BYTES", 99)
        with pytest.raises(CheckpointError, match="more than"):
            Watcher(store)


def test_a_link_that_goes_while_it_is_read_stops_nothing(kept: Kept) -> None:
    link = kept.workspace / "link"
    link.symlink_to("b.txt")
    status = link.lstat()
    link.unlink()
    folder = os.open(kept.workspace, os.O_RDONLY)
    try:
        assert kept.watcher._entry(folder, "link", "link", status).why == "not readable"
    finally:
        os.close(folder)


def test_a_hundred_restores_after_each_other(kept: Kept) -> None:
    """What is in effect after them takes no longer to find: each may lead to one before it."""
    file = kept.workspace / "b.txt"
    file.write_text("changed\n")
    kept.turn()
    for _ in range(50):
        for way, text in ((FileHistory.undo, "b\n"), (FileHistory.redo, "changed\n")):
            target = way(FileHistory(kept.store, *KEY))
            run_plan(kept.store, *KEY, make_plan(kept.store, target.undone, to=target.to))
            assert file.read_text() == text
    history = FileHistory(kept.store, *KEY)
    assert history.effective(len(history.chain) - 1) == [1]


def test_an_ignored_file_is_followed_and_nothing_beside_it(kept: Kept) -> None:
    """Also in ignored folders that come later, and where a link or another user's rule stands in the way."""
    where = kept.workspace
    (where / ".gitignore").write_text("build/\n*.csv\n")
    (where / "build" / "deep").mkdir(parents=True)
    (where / "data.csv").write_text("precious\n")
    (where / "build" / "deep" / "kept").write_text("old\n")
    (where / "build" / "deep" / "other").write_text("other\n")
    (where / "build" / "link").symlink_to("/etc")
    kept.turn("user")
    followed = {
        "data.csv",
        "build/deep/kept",
        "build/new/made",
        "late.csv",
        "build/link/passwd",
        ".git/config",
        "/etc/passwd",
        "src",
    }
    assert kept.watcher.follow(sorted(followed))
    assert set(kept.turn("user")) == {"data.csv", "build/deep/kept"}
    kept.watcher.follow(sorted(followed))
    assert not kept.turn("user")
    before = files(where)
    (where / "data.csv").unlink()
    (where / "late.csv").write_text("x")
    (where / "never.csv").write_text("x")
    (where / "build" / "deep" / "kept").write_text("new\n")
    (where / "build" / "deep" / "more").write_text("more\n")
    (where / "build" / "new").mkdir()
    (where / "build" / "new" / "made").write_text("x")
    (where / "build" / "new" / "beside").write_text("x")
    assert set(kept.turn()) == {"data.csv", "late.csv", "build/deep/kept", "build/new/made"}
    assert kept.undo() == ({}, {})
    stays = {"never.csv": b"x", "build/deep/more": b"more\n", "build/new/beside": b"x"}
    assert files(where) == before | stays
    # A rule that goes away reveals the rest.
    (where / ".gitignore").write_text("")
    assert {"build/deep/other", "never.csv"} <= set(kept.turn("user"))
    assert {"build/deep/other", "never.csv"} <= kept.watcher.revealed
