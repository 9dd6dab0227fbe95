"""Which files of a workspace count for the casts of a recipe."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.files import digests
from cantrip_acp.recipes import load
from cantrip_acp.tuplespace import workspace_inputs
from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.workspace_inputs import WorkspaceInputs, reads_files

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


def test_files_that_cannot_be_counted_do_not_count_and_the_user_is_told(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace_inputs, "_MOST", 0)
    told: list[str] = []
    assert inputs(folder, notice=told.append).digest() == ""
    assert "more than 0. So a change of them makes no new work; name those that count with `inputs`" in told[0]
    with pytest.raises(TupleError, match=r"inputs: the files of .* cannot be read, or there are more than 0"):
        inputs(folder, RECIPE + "inputs: ['*.py']\n").digest()


def test_a_later_process_reads_only_what_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(folder / "a.py", (1, 1))
    read: list[str] = []
    real = digests._hash

    def noted(place: str, size: int) -> bytes:
        read.append(Path(place).name)
        return real(place, size)

    monkeypatch.setattr(digests, "_RACY_NS", 0)
    monkeypatch.setattr(digests, "_hash", noted)
    first = inputs(folder).digest()
    assert inputs(folder).digest() == first
    assert read == ["a.py"]
    (folder / "a.py").write_text("2")
    assert inputs(folder).digest() != first
    assert read == ["a.py", "a.py"]
    # What is kept and cannot be used is as nothing.
    (kept,) = (folder.parent / "state" / "file-digests").iterdir()
    assert kept.stat().st_mode & 0o077 == 0
    kept.write_bytes(b"torn")
    (folder / "a.py").write_text("1")
    assert inputs(folder).digest() == first
