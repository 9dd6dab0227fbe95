"""The git gates on real repositories: ordinary ones, parts of them, and ones that would run programs or leak files."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.gates.contract import Gate
from cantrip_acp.gates.git.git_commit import GIT_COMMIT
from cantrip_acp.gates.git.git_read import GIT_DIFF, GIT_LOG, GIT_SHOW, GIT_STATUS
from cantrip_acp.types.errors import GateError
from tests.support.gate_calls import call_in, context_of
from tests.support.git_repositories import git, plant, repository


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settings = tmp_path / "gitconfig"
    settings.write_text("[user]\n\tname = Ada\n\temail = ada@example.org\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    return repository(tmp_path / "repo")


async def said(where: Path, gate: Gate, **args: Any) -> str:
    return str((await call_in(context_of(where), gate, **args)).result)


async def test_reading(repo: Path) -> None:
    assert await said(repo, GIT_STATUS) == "## main\nthe working tree is clean"
    assert await said(repo, GIT_DIFF) == "no changes of tracked files"
    (repo / "src/app.py").write_text("print('two')\n")
    (repo / "new file.txt").write_text("new\n")
    (repo / "kept.txt").unlink()
    git(repo, "add", "src/app.py")
    assert (await said(repo, GIT_STATUS)).splitlines() == ["## main", " D kept.txt", "M  src/app.py", "?? new file.txt"]
    diff = await said(repo, GIT_DIFF)
    assert "-print('one')\n+print('two')" in diff
    assert "deleted file mode 100644" in diff
    assert diff.endswith("new files, not in the diff (read_file shows them):\n?? new file.txt")
    assert "kept.txt" not in await said(repo, GIT_DIFF, path="src")
    assert "kept.txt" not in await said(repo, GIT_DIFF, staged=True)
    assert "+print('two')" in await said(repo, GIT_DIFF, staged=True)
    assert "2 files changed" in await said(repo, GIT_DIFF, stat=True)
    git(repo, "commit", "-qam", "The second\n\nwith a body")
    log = (await said(repo, GIT_LOG)).splitlines()
    assert [line.split(": ")[-1] for line in log] == ["The second", "the first"]
    assert (await said(repo, GIT_LOG, path="src", max_count=1)).endswith("The second")
    assert (await said(repo, GIT_LOG, grep="SECOND")).endswith("The second")
    shown = await said(repo, GIT_SHOW)
    assert "Ada <ada@example.org>" in shown
    assert "with a body" in shown
    assert "+print('two')" in shown
    assert await said(repo, GIT_SHOW, revision="HEAD~1", path="src/app.py") == "print('one')\n"
    assert await said(repo, GIT_SHOW, path="src") == "app.py"
    assert "+print('two')" in await said(repo, GIT_DIFF, base="HEAD~1", to="HEAD")
    assert "the first" in await said(repo, GIT_SHOW, revision="HEAD~1")


@pytest.mark.parametrize(
    "revision", ["--output=/tmp/x", "-p", "no-such", "HEAD\0", "HEAD\n--all", "", "HEAD:kept.txt", "x" * 900]
)
async def test_what_is_no_revision(repo: Path, revision: str) -> None:
    for gate, name in ((GIT_SHOW, "revision"), (GIT_LOG, "revision")):
        with pytest.raises(GateError):
            await said(repo, gate, **{name: revision})


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", ".git/config", ".env", "a\0b", "src/../../x"])
async def test_what_is_no_path(repo: Path, path: str) -> None:
    (repo / ".env").write_text("KEY=secret")
    for gate in (GIT_SHOW, GIT_LOG, GIT_DIFF):
        with pytest.raises(GateError):
            await said(repo, gate, path=path)
    with pytest.raises(GateError):
        await said(repo, GIT_COMMIT, paths=[path], message="x")


async def test_no_repository_and_an_empty_one(tmp_path: Path, repo: Path) -> None:
    with pytest.raises(GateError, match="not in a git repository"):
        await said(tmp_path, GIT_STATUS)
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-q", "-b", "main")
    (empty / "a.txt").write_text("a\n")
    assert await said(empty, GIT_STATUS) == "## main (no commits yet)\n?? a.txt"
    assert "?? a.txt" in await said(empty, GIT_DIFF)
    with pytest.raises(GateError, match="no commits yet"):
        await said(empty, GIT_LOG)
    assert "committed" in await said(empty, GIT_COMMIT, paths=["a.txt"], message="Begin")
    assert git(empty, "log", "--format=%s%n%P") == "Begin"
    assert git(empty, "status", "--porcelain") == ""


async def test_hidden_files_stay_hidden(repo: Path) -> None:
    (repo / ".env").write_text("KEY=secret-one\n")
    git(repo, "add", "-f", ".env")
    git(repo, "commit", "-qm", "oops")
    (repo / ".env").write_text("KEY=secret-two\n")
    (repo / "kept.txt").write_text("more\n")
    texts = [await said(repo, gate) for gate in (GIT_STATUS, GIT_DIFF, GIT_SHOW)]
    texts.append(await said(repo, GIT_DIFF, base="HEAD~1", to="HEAD"))
    texts.append(await said(repo, GIT_COMMIT, paths=["."], message="all"))
    assert not any("secret" in text or ".env" in text for text in texts)
    assert git(repo, "status", "--porcelain") == "M .env"


async def test_a_commit_of_named_files_alone(repo: Path) -> None:
    (repo / "kept.txt").write_text("changed\n")
    (repo / "src/app.py").write_text("print('staged')\n")
    (repo / "src/run.sh").write_text("#!/bin/sh\n")
    (repo / "src/run.sh").chmod(0o755)
    (repo / "src/link").symlink_to("../kept.txt")
    (repo / "other.txt").write_text("other\n")
    git(repo, "add", "src/app.py")
    text = await said(repo, GIT_COMMIT, paths=["kept.txt", "src/run.sh", "src/link"], message="Change it\n\nWhy.")
    assert "on main: Change it (kept.txt, src/link, src/run.sh)" in text
    assert (
        git(repo, "show", "--format=%an <%ae>|%cn|%B", "--name-only", "HEAD").split("\n", 1)[0]
        == "Ada <ada@example.org>|Ada|Change it"
    )
    assert set(git(repo, "show", "--format=", "--name-only", "HEAD").split()) == {"kept.txt", "src/run.sh", "src/link"}
    assert git(repo, "ls-tree", "HEAD", "src/run.sh", "src/link").split()[0::4] == ["120000", "100755"]
    assert git(repo, "status", "--porcelain").splitlines() == ["M  src/app.py", "?? other.txt"]
    git(repo, "fsck", "--strict")
    (repo / "kept.txt").unlink()
    await said(repo, GIT_COMMIT, paths=["kept.txt"], message="Remove it")
    assert git(repo, "ls-tree", "--name-only", "HEAD").split() == ["src"]
    assert git(repo, "status", "--porcelain").splitlines() == ["M  src/app.py", "?? other.txt"]
    with pytest.raises(GateError, match="nothing to commit"):
        await said(repo, GIT_COMMIT, paths=["kept.txt"], message="again")


async def test_what_is_not_committed(repo: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (repo / "kept.txt").write_text("changed\n")
    (repo / "big.bin").write_text("big\n")
    (repo / ".gitignore").write_text("ignored\n")
    (repo / "ignored").write_text("x")
    (repo / ".gitattributes").write_text("*.bin filter=lfs\n")
    with pytest.raises(GateError, match="through filter 'lfs'"):
        await said(repo, GIT_COMMIT, paths=["."], message="all")
    with pytest.raises(GateError, match="nothing to commit"):
        await said(repo, GIT_COMMIT, paths=["ignored", "no-such"], message="x")
    with pytest.raises(GateError, match="message is empty"):
        await said(repo, GIT_COMMIT, paths=["kept.txt"], message=" \n")
    (repo / ".git/MERGE_HEAD").write_text(git(repo, "rev-parse", "HEAD"))
    with pytest.raises(GateError, match="a merge is in progress"):
        await said(repo, GIT_COMMIT, paths=["kept.txt"], message="x")
    (repo / ".git/MERGE_HEAD").unlink()
    empty = tmp_path / "none"
    empty.write_text("")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(empty))
    with pytest.raises(GateError, match=r"user\.name"):
        await said(repo, GIT_COMMIT, paths=["kept.txt"], message="x")
    assert git(repo, "log", "--format=%s") == "the first"


async def test_a_part_of_a_repository(repo: Path) -> None:
    part = repo / "src"
    (part / "app.py").write_text("print('part')\n")
    (repo / "kept.txt").write_text("outside\n")
    assert await said(part, GIT_STATUS) == "## main\n M app.py"
    diff = await said(part, GIT_DIFF)
    assert "--- a/app.py" in diff
    assert "outside" not in diff
    with pytest.raises(GateError, match="outside of the workspace"):
        await said(part, GIT_COMMIT, paths=["../kept.txt"], message="x")
    await said(part, GIT_COMMIT, paths=["."], message="Part")
    assert git(repo, "show", "--format=", "--name-only", "HEAD") == "src/app.py"
    assert git(repo, "status", "--porcelain") == "M kept.txt"
    assert "kept.txt" not in await said(part, GIT_SHOW)


async def test_a_worktree(repo: Path, tmp_path: Path) -> None:
    git(repo, "worktree", "add", "-q", "-b", "side", str(tmp_path / "side"))
    side = tmp_path / "side"
    (side / "kept.txt").write_text("side\n")
    assert await said(side, GIT_STATUS) == "## side\n M kept.txt"
    await said(side, GIT_COMMIT, paths=["kept.txt"], message="Side")
    assert git(repo, "log", "--format=%s", "side").splitlines() == ["Side", "the first"]
    assert git(side, "status", "--porcelain") == ""


async def test_line_ends_are_kept_as_the_repository_says(repo: Path) -> None:
    (repo / ".gitattributes").write_text("*.txt text eol=crlf\n")
    (repo / "kept.txt").write_bytes(b"one\r\ntwo\r\n")
    await said(repo, GIT_COMMIT, paths=["kept.txt", ".gitattributes"], message="Ends")
    assert git(repo, "cat-file", "-s", "HEAD:kept.txt") == "8"
    assert git(repo, "status", "--porcelain") == ""


async def test_a_hostile_repository_runs_nothing(repo: Path, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    plant(repo, marker)
    (repo / "notes.md").write_text("notes\n")
    (repo / "kept.txt").write_text("changed\n")
    (repo / "src/app.py").write_text("print('x')\n")
    for gate in (GIT_STATUS, GIT_DIFF, GIT_LOG, GIT_SHOW):
        await said(repo, gate)
    await said(repo, GIT_DIFF, staged=True)
    await said(repo, GIT_SHOW, path="src/app.py")
    await said(repo, GIT_COMMIT, paths=["notes.md"], message="Notes")
    with pytest.raises(GateError, match="filter"):
        await said(repo, GIT_COMMIT, paths=["kept.txt"], message="x")
    assert not marker.exists(), marker.read_text()
    head = (repo / ".git/refs/heads/main").read_text().strip()
    ran = subprocess.run(["git", "cat-file", "-p", head], cwd=repo, capture_output=True, text=True, check=True,
                         env={"PATH": os.environ["PATH"], "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.fsmonitor",
                              "GIT_CONFIG_VALUE_0": "false"})  # fmt: skip
    assert ran.stdout.endswith("Notes\n")


async def test_links_lead_nowhere(repo: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("outer secret\n")
    (repo / "kept.txt").unlink()
    (repo / "kept.txt").symlink_to(outside / "secret.txt")
    (repo / "src/app.py").unlink()
    (repo / "src").rmdir()
    (repo / "src").symlink_to(outside)
    assert "outer secret" not in await said(repo, GIT_DIFF)
    await said(repo, GIT_COMMIT, paths=["."], message="Links")
    assert "outer secret" not in await said(repo, GIT_SHOW)
    assert git(repo, "ls-tree", "HEAD").split()[0::4] == ["120000", "120000"]


async def test_a_file_that_is_exchanged_meanwhile_leaks_nothing(repo: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("outer secret\n")
    victim, over = repo / "kept.txt", threading.Event()

    def exchange() -> None:
        while not over.is_set():
            for make in (lambda p: p.write_text("mine\n"), lambda p: p.symlink_to(secret)):
                fresh = repo / f".swap{os.getpid()}"
                fresh.unlink(missing_ok=True)
                make(fresh)
                os.replace(fresh, victim)

    thread = threading.Thread(target=exchange)
    thread.start()
    try:
        for n in range(15):
            with contextlib.suppress(GateError):
                assert "outer secret" not in await said(repo, GIT_DIFF)
            with contextlib.suppress(GateError):
                await said(repo, GIT_COMMIT, paths=["kept.txt"], message=f"{n}")
    finally:
        over.set()
        thread.join()
    assert "outer secret" not in git(repo, "log", "-p")


async def test_a_pipe_and_a_stranger(repo: Path, tmp_path: Path) -> None:
    (repo / "kept.txt").unlink()
    os.mkfifo(repo / "kept.txt")
    await said(repo, GIT_STATUS)
    await said(repo, GIT_DIFF)
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / ".git").symlink_to(repo / ".git")
    with pytest.raises(GateError, match="symbolic link"):
        await said(linked, GIT_STATUS)


async def test_a_moved_branch_is_not_overwritten(repo: Path) -> None:
    """A commit is made on what was read; two at once are two commits, or one of them says so."""
    import anyio

    for name in ("a", "b", "c"):
        (repo / name).write_text(name)
    results: list[str] = []

    async def commit(name: str) -> None:
        try:
            results.append(await said(repo, GIT_COMMIT, paths=[name], message=name))
        except GateError as error:
            results.append(str(error))

    async with anyio.create_task_group() as group:
        for name in ("a", "b", "c"):
            group.start_soon(commit, name)
    made = sum("committed" in r for r in results if "nothing was" not in r)
    assert len(git(repo, "log", "--format=%s").splitlines()) == 1 + made
    assert made >= 1
    git(repo, "fsck", "--strict")


async def test_other_kinds_of_repositories(repo: Path, tmp_path: Path) -> None:
    """With SHA-256, with an index in two files, with one that leaves files out."""
    modern = tmp_path / "modern"
    modern.mkdir()
    git(modern, "init", "-q", "-b", "main", "--object-format=sha256")
    (modern / "a.txt").write_text("a\n")
    await said(modern, GIT_COMMIT, paths=["a.txt"], message="Begin")
    (modern / "a.txt").write_text("b\n")
    assert "+b" in await said(modern, GIT_DIFF)
    assert await said(modern, GIT_STATUS) == "## main\n M a.txt"
    git(repo, "update-index", "--split-index")
    (repo / "kept.txt").write_text("changed\n")
    assert await said(repo, GIT_STATUS) == "## main\n M kept.txt"
    await said(repo, GIT_COMMIT, paths=["kept.txt"], message="Split")
    assert git(repo, "status", "--porcelain") == ""
    git(repo, "sparse-checkout", "set", "--no-cone", "/src/")
    assert not (repo / "kept.txt").exists()
    assert "kept.txt" not in await said(repo, GIT_STATUS)
    (repo / "src/app.py").write_text("print('sparse')\n")
    await said(repo, GIT_COMMIT, paths=["src"], message="Sparse")
    assert git(repo, "show", "--format=", "--name-only", "HEAD") == "src/app.py"
    assert "kept.txt" not in await said(repo, GIT_DIFF)
    with pytest.raises(GateError, match="nothing to commit"):
        await said(repo, GIT_COMMIT, paths=["."], message="A file that is left out is not removed")
    assert "kept.txt" in git(repo, "ls-tree", "-r", "--name-only", "HEAD")


async def test_a_shallow_clone(repo: Path, tmp_path: Path) -> None:
    git(repo, "commit", "-q", "--allow-empty", "-m", "Second")
    git(tmp_path, "clone", "-q", "--depth=1", f"file://{repo}", str(tmp_path / "shallow"))
    shallow = tmp_path / "shallow"
    assert (await said(shallow, GIT_LOG)).endswith("Second")
    assert "Second" in await said(shallow, GIT_SHOW)
    (shallow / "kept.txt").write_text("x\n")
    await said(shallow, GIT_COMMIT, paths=["kept.txt"], message="Third")
    assert git(shallow, "log", "--format=%s").splitlines() == ["Third", "Second"]


async def test_a_submodule_is_left_alone(repo: Path, tmp_path: Path) -> None:
    inner = repository(tmp_path / "inner", {"in.txt": "in\n"})
    git(repo, "-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner), "part")
    git(repo, "commit", "-qam", "With a part")
    (repo / "part/in.txt").write_text("changed\n")
    git(repo / "part", "commit", "-qam", "In the part")
    (repo / "kept.txt").write_text("changed\n")
    assert "part" not in await said(repo, GIT_DIFF)
    assert "(kept.txt)" in await said(repo, GIT_COMMIT, paths=["."], message="All")
    assert "160000" in git(repo, "ls-tree", "HEAD", "part")
    nested = repository(repo / "nested")
    with pytest.raises(GateError, match="nothing to commit"):
        await said(repo, GIT_COMMIT, paths=["."], message="x")
    assert nested.is_dir()
