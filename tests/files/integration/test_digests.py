"""The digest of a folder: what goes while it is read is no obstacle, and only what changed is read again."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cantrip_acp.files import digests
from cantrip_acp.files.digests import FileDigests


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "work"
    made.mkdir()
    (made / "a.py").write_text("1")
    return made


def digest(folder: Path) -> str | None:
    """As a later process finds it."""
    return FileDigests(folder.parent / "kept" / "digests").folder(folder, strict=False)


def test_a_folder_that_goes_while_it_is_read_is_no_obstacle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = digest(folder)
    assert before is not None
    (folder / "b").mkdir()
    real = digests._enter

    def gone(level: object, name: str, place: str) -> object:
        os.rmdir(place)
        return real(level, name, place)  # type: ignore[arg-type]

    monkeypatch.setattr(digests, "_enter", gone)
    assert digest(folder) == before
    (folder / "b").mkdir()
    marks = digests._marks

    def gone_before(place: str) -> object:
        found = marks(place)
        if place.endswith("/b"):
            os.rmdir(place)
        return found

    monkeypatch.setattr(digests, "_marks", gone_before)
    assert digest(folder) == before


def test_a_later_process_reads_only_what_has_changed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.utime(folder / "a.py", (1, 1))
    read: list[str] = []
    real = digests._hash

    def noted(place: str, size: int) -> bytes:
        read.append(Path(place).name)
        return real(place, size)

    monkeypatch.setattr(digests, "_RACY_NS", 0)
    monkeypatch.setattr(digests, "_hash", noted)
    first = digest(folder)
    assert digest(folder) == first
    assert read == ["a.py"]
    (folder / "a.py").write_text("2")
    assert digest(folder) != first
    assert read == ["a.py", "a.py"]
    # What is kept and cannot be used is as nothing.
    kept = folder.parent / "kept" / "digests"
    assert kept.stat().st_mode & 0o077 == 0
    kept.write_bytes(b"torn")
    (folder / "a.py").write_text("1")
    assert digest(folder) == first
