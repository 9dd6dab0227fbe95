"""Which files of a workspace count for the casts of a recipe."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.recipes import load
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.reuse import workspace_inputs
from cantrip_acp.tuplespace.reuse.workspace_inputs import WorkspaceInputs, reads_files

RECIPE = """\
name: r
crystal: {provider: scripted, responses: []}
circle: {medium: conversation, gates: [done, read_file], wards: [{max_turns: 3}]}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "a.py").write_text("1")
    return made


def inputs(folder: Path, recipe: str = RECIPE, notice: Callable[[str], object] = print) -> WorkspaceInputs:
    (folder / "r.cantrip.yaml").write_text(recipe)
    found = load(str(folder / "r.cantrip.yaml"), folder)
    return WorkspaceInputs(found, folder, folder.parent / "state", ["out.jsonl"], notice)


@pytest.mark.parametrize(
    ("change", "reads"),
    [
        (("[done, read_file]", "[done, fetch, echo]"), False),
        (("medium: conversation, gates: [done, read_file]", "medium: bash, gates: [done]"), True),
        (("medium: conversation, gates: [done, read_file]", "medium: code, gates: [done]"), True),
        (("[done, read_file]", "[done, {name: search, root: src}]"), True),
        (("[done, read_file]", "[done, call_agent]"), True),
        (
            (
                "circle: {medium: conversation, gates: [done, read_file]",
                "memory: {culture: true}\ncircle: {gates: [done]",
            ),
            True,
        ),
    ],
)
def test_recipes_whose_entities_see_no_files_have_none(folder: Path, change: tuple[str, str], reads: bool) -> None:
    (folder / "r.cantrip.yaml").write_text(RECIPE.replace(*change))
    assert reads_files(load(str(folder / "r.cantrip.yaml"), folder)) is reads
    assert bool(inputs(folder, RECIPE.replace(*change)).digest()) is reads


def test_what_is_no_file_and_what_cannot_be_read_is_no_obstacle(folder: Path) -> None:
    before = inputs(folder).digest()
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "socket"))
        assert inputs(folder).digest() == before
        (folder / "a.py").rename(folder / "b.py")
        assert inputs(folder).digest() not in ("", before)


def test_an_index_of_another_version_is_no_obstacle(folder: Path) -> None:
    before = inputs(folder).digest()
    for words in (["init", "-q"], ["add", "-A"], ["update-index", "--index-version", "4"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    assert inputs(folder).digest() == before


@pytest.mark.parametrize("kind", ["sha1", "sha256"])
def test_what_git_tracks_counts_although_it_is_ignored_in_every_repository(folder: Path, kind: str) -> None:
    inner = folder / "packages" / "one"
    inner.mkdir(parents=True)
    (folder / ".gitignore").write_text("made\n")
    (inner / "made").write_text("1")
    for words in (["init", "-q", f"--object-format={kind}"], ["add", "-f", "."]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    for top in (folder, inner):
        before = inputs(top).digest()
        (inner / "made").write_text(f"{top}")
        assert inputs(top).digest() not in ("", before)


def test_an_index_that_is_cut_off_is_no_obstacle(folder: Path) -> None:
    for words in (["init", "-q"], ["add", "-A"]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    before = inputs(folder).digest()
    index = folder / ".git" / "index"
    index.write_bytes(index.read_bytes()[:40])
    assert inputs(folder).digest() == before


def test_folders_deep_inside_each_other_are_no_obstacle(folder: Path) -> None:
    before = inputs(folder).digest()
    top = os.open(folder, os.O_RDONLY)
    try:
        # Deeper than Python calls functions, and in the end deeper than a path can say.
        at = os.dup(top)
        for number in range(2500):
            os.mkdir("a", dir_fd=at)
            below = os.open("a", os.O_RDONLY, dir_fd=at)
            os.close(at)
            at = below
            if number == 1500:
                os.close(os.open("file", os.O_CREAT, dir_fd=at))
        os.close(at)
        assert inputs(folder).digest() not in ("", before)
    finally:
        os.close(top)
        subprocess.run(["rm", "-rf", folder / "a"], check=True)


def test_files_that_cannot_be_counted_do_not_count_and_the_user_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_inputs, "_MOST", 0)
    told: list[str] = []
    assert inputs(folder, notice=told.append).digest() == ""
    assert "more than 0. So a change of them makes no new work; name those that count with `inputs`" in told[0]
    with pytest.raises(TupleError, match=r"inputs: the files of .* cannot be read, or there are more than 0"):
        inputs(folder, RECIPE + "inputs: ['*.py']\n").digest()


def test_declared_inputs_behind_links_are_named_themselves(folder: Path) -> None:
    """The digest has where a link leads, so a change behind it would be no new work."""
    declared = RECIPE + "inputs: ['src/**', lib.py]\n"
    (folder / "other").mkdir()
    (folder / "other" / "b.py").write_text("1")
    (folder / "src").symlink_to("other")
    with pytest.raises(TupleError, match=r"r\.cantrip\.yaml: inputs: src is a link to what inputs does not name"):
        inputs(folder, declared).digest()
    (folder / "src").unlink()
    (folder / "src").mkdir()
    (folder / "src" / "c.py").symlink_to("../other/b.py")
    with pytest.raises(TupleError, match=r"src/c\.py is a link"):
        inputs(folder, declared).digest()
    # A link to a file that counts, too, is one.
    (folder / "src" / "c.py").unlink()
    (folder / "lib.py").write_text("1")
    (folder / "src" / "c.py").symlink_to("../lib.py")
    (folder / "elsewhere").symlink_to("other")
    before = inputs(folder, declared).digest()
    (folder / "lib.py").write_text("2")
    assert inputs(folder, declared).digest() != before
