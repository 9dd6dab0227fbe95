"""Where an index lists submodules, held against what git itself says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from cantrip_acp.sandbox.policy import git_repositories
from cantrip_acp.types.errors import SandboxError
from tests.sandbox.integration.conftest import GIT, Make

NAMES = ("lib", "vendor/deep/lib-2", "vendor/x", "z" * 300 + "/m", "bücher", "späße/ü b")
_COMMIT = "1" * 40


def git(folder: Path, *words: str) -> str:
    env = {**os.environ, **GIT}
    done = subprocess.run(["git", *words], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def linked(folder: Path, *names: str) -> None:
    """List submodules in the index, without their folders."""
    for name in names:
        git(folder, "update-index", "--add", "--cacheinfo", f"160000,{_COMMIT},{name}")


@pytest.mark.parametrize("version", ["2", "3", "4"])
@pytest.mark.parametrize("objects", ["sha1", "sha256"])
@pytest.mark.parametrize("split", [False, True])
def test_every_form_of_an_index(version: str, objects: str, split: bool, workspace: Path) -> None:
    if objects == "sha256" and not _knows_sha256(workspace):
        pytest.skip("this git has no SHA-256")
    git(workspace, "init", "-q", f"--object-format={objects}")
    for number in range(40):
        path = workspace / f"folder{number % 7}/file{number}"
        path.parent.mkdir(exist_ok=True)
        path.write_text(str(number))
    git(workspace, "add", "-A")
    (workspace / "later").write_text("x")
    # An intent to add makes an entry of version 3 with more flags.
    git(workspace, "add", "-N", "later")
    git(workspace, "update-index", "--index-version", version)
    for name in NAMES:
        commit = _COMMIT if objects == "sha1" else "1" * 64
        git(workspace, "update-index", "--add", "--cacheinfo", f"160000,{commit},{name}")
    if split:
        git(workspace, "update-index", "--split-index")
    said = git(workspace, "ls-files", "-s", "-z").split("\0")
    wanted = sorted(line.partition("\t")[2] for line in said if line.startswith("160000"))
    assert wanted == sorted(NAMES)
    stamps = git_repositories.indexes([str(workspace / ".git")], [])
    assert sorted(git_repositories._submodules_in(stamps[0])) == wanted
    found = git_repositories.unfetched(stamps)
    assert found.missing == tuple(sorted({str(workspace / name.split("/")[0]) for name in NAMES}))
    assert not found.empty


def _knows_sha256(folder: Path) -> bool:
    words = ["git", "init", "-q", "--object-format=sha256", "--bare", str(folder.parent / "try.git")]
    return subprocess.run(words, capture_output=True, check=False).returncode == 0


def test_what_is_no_index() -> None:
    for data in (b"", b"DIRC", b"DIRC\0\0\0\2\0\0\xff\xff" + b"\0\0\xe0\0" * 30, b"\0\0\xe0\0" * 9):
        assert git_repositories.read_index(data) == ()
    hostile = (
        b"DIRC"
        + (2).to_bytes(4)
        + (1).to_bytes(4)
        + b"\0" * 24
        + b"\0\0\xe0\0"
        + b"\0" * 34
        + b"../../etc\0"
        + b"\0" * 8
    )
    assert git_repositories.read_index(hostile) == ()


def test_the_repository_above_and_what_a_file_names(repository: Path) -> None:
    linked(repository, "pkg/lib")
    (repository / "pkg").mkdir()
    (repository / "inner").mkdir()
    (repository / "inner/.git").write_text("gitdir: ../.git\n")
    stamps = git_repositories.indexes([str(repository / "inner/.git")], [str(repository / "pkg")])
    assert {stamp[1] for stamp in stamps} == {str(repository), str(repository / "inner")}
    assert git_repositories.unfetched(stamps).missing == (f"{repository}/inner/pkg", f"{repository}/pkg/lib")
    (repository / "inner/.git").write_text("gitdir: /dev/zero\n")
    assert git_repositories.indexes([str(repository / "inner/.git")], []) == ()


async def test_what_lies_there_stays_as_it_is(repository: Path, make: Make) -> None:
    linked(repository, "lib", "gone/lib", "fetched")
    (repository / "lib").mkdir()
    (repository / "fetched/.git").mkdir(parents=True)
    outcome = await make(repository, writable=True).run(
        "touch lib/x; touch gone/x; touch fetched/x; mv lib l; rmdir gone; mv fetched f; ls; git status --short"
    )
    assert (repository / "fetched/x").exists()
    assert not (repository / "lib/x").exists()
    # As if nothing had been there.
    assert sorted(os.listdir(repository)) == [".git", "fetched", "lib", "notes.txt"], outcome


async def test_a_link_in_its_place(repository: Path, make: Make) -> None:
    linked(repository, "lib")
    (repository / "lib").symlink_to("elsewhere")
    with pytest.raises(SandboxError, match=r"lib is a symbolic link"):
        make(repository, writable=True)
    make(repository)
