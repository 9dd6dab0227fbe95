"""Files lent to an agent: only those of the folder, whatever links and races say."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.acp.client.client_files import ClientFiles, FileRefused


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    (folder / "a.txt").write_text("one\ntwo\r\nthree")
    (tmp_path / "secret").write_text("secret")
    return folder


def test_ranges_count_lines_from_one(folder: Path) -> None:
    files = ClientFiles(folder)
    path = str(folder / "a.txt")
    assert files.read(path) == "one\ntwo\r\nthree"
    assert files.read(path, 2) == "two\r\nthree"
    assert files.read(path, 1, 1) == "one\n"
    assert files.read(path, 2, 0) == ""
    assert files.read(path, 9, 5) == ""
    # What ends no line in an editor ends none here.
    odd = "a\x0cb\n\x85c\u2028d\ne\n"
    (folder / "odd.txt").write_text(odd)
    assert [files.read(str(folder / "odd.txt"), n, 1) for n in (1, 2, 3, 4)] == [
        "a\x0cb\n",
        "\x85c\u2028d\n",
        "e\n",
        "",
    ]


@pytest.mark.parametrize(
    "path",
    ["{f}/../secret", "{f}/sub/../../secret", "/etc/passwd", "a.txt", "{f}", "{f}/sub", "{f}/sub/..", "{f}/out", "{f}/up/secret",
     "{f}/a\0b", "{f}/fifo", "{f}/a.txt/b", "{f}2/x", "", "/proc/self/environ", "{f}/dev"],
)  # fmt: skip
def test_what_is_not_lent(folder: Path, path: str) -> None:
    (folder / "out").symlink_to(folder.parent / "secret")
    (folder / "up").symlink_to("..")
    (folder / "dev").symlink_to("/dev/zero")
    os.mkfifo(folder / "fifo")
    (folder.parent / "project2").mkdir()
    files = ClientFiles(folder)
    path = path.replace("{f}", str(folder))
    with pytest.raises(FileRefused):
        files.read(path)
    with pytest.raises(FileRefused):
        files.write(path, "evil")
    assert (folder.parent / "secret").read_text() == "secret"
    assert not (folder.parent / "project2" / "x").exists()


def test_links_that_stay_inside_are_followed(folder: Path) -> None:
    (folder / "link").symlink_to("a.txt")
    (folder / "way").symlink_to("sub")
    files = ClientFiles(folder)
    assert files.read(str(folder / "link"), 1, 1) == "one\n"
    files.write(str(folder / "way" / "n.txt"), "new")
    assert (folder / "sub" / "n.txt").read_text() == "new"


def test_a_folder_reached_by_a_link_is_the_folder(folder: Path) -> None:
    link = folder.parent / "short"
    link.symlink_to(folder)
    assert ClientFiles(link).read(str(link / "a.txt"), 1, 1) == "one\n"
    assert ClientFiles(folder).read(str(link / "a.txt"), 1, 1) == "one\n"


def test_writing_keeps_the_mode_and_leaves_nothing_beside(folder: Path) -> None:
    script = folder / "run.sh"
    script.write_text("old")
    script.chmod(0o750)
    ClientFiles(folder).write(str(script), "new é\n")
    assert script.read_text() == "new é\n"
    assert script.stat().st_mode & 0o777 == 0o750
    ClientFiles(folder).write(str(folder / "x" / "y" / "z.txt"), "deep")
    assert (folder / "x" / "y" / "z.txt").read_text() == "deep"
    assert sorted(p.name for p in folder.iterdir()) == ["a.txt", "run.sh", "sub", "x"]


def test_text_in_any_encoding_is_answered(folder: Path) -> None:
    (folder / "latin").write_bytes(b"caf\xe9\n")
    assert ClientFiles(folder).read(str(folder / "latin")) == "caf\ufffd\n"


def test_a_file_too_large_is_refused(folder: Path) -> None:
    with (folder / "big").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(FileRefused, match="larger than 32 MiB"):
        ClientFiles(folder).read(str(folder / "big"))


def test_missing_is_told_apart(folder: Path) -> None:
    with pytest.raises(FileRefused) as refused:
        ClientFiles(folder).read(str(folder / "nowhere" / "x"))
    assert refused.value.missing


def test_swapping_a_folder_for_a_link_leads_nowhere(folder: Path) -> None:
    """Somebody exchanges a folder for a link to the outside all the time; no read ever sees the outside."""
    outside = folder.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text("secret")
    inside = folder / "d"
    inside.mkdir()
    (inside / "f").write_text("inside")

    def swap() -> None:
        inside.rename(folder / "e")
        inside.symlink_to(outside)
        inside.unlink()
        (folder / "e").rename(inside)

    assert "secret" not in _meanwhile(swap, lambda: ClientFiles(folder).read(str(inside / "f")))


def test_swapping_a_file_for_a_link_leads_nowhere(folder: Path) -> None:
    outside = folder.parent / "secret"
    inside = folder / "f"

    def swap() -> None:
        (folder / "plain").write_text("inside")
        (folder / "plain").rename(inside)
        (folder / "linked").symlink_to(outside)
        (folder / "linked").rename(inside)

    files = ClientFiles(folder)
    assert "secret" not in _meanwhile(swap, lambda: files.read(str(inside)))
    _meanwhile(swap, lambda: files.write(str(inside), "evil"))
    assert outside.read_text() == "secret"


def _meanwhile(swap: Callable[[], None], work: Callable[[], object]) -> set[object]:
    """What `work` gave in two thousand attempts while another thread swapped."""
    stop = threading.Event()

    def swapping() -> None:
        while not stop.is_set():
            swap()

    thread = threading.Thread(target=swapping)
    thread.start()
    seen: set[object] = set()
    try:
        for _ in range(2000):
            try:
                seen.add(work())
            except FileRefused:
                seen.add("refused")
    finally:
        stop.set()
        thread.join()
    return seen
