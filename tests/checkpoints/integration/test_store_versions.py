"""The database of checkpoints: stores from before their tables had a version, and what is refused."""

import sqlite3
from pathlib import Path

import pytest

from cantrip_acp.checkpoints.store import KIND, MIGRATIONS, Store
from cantrip_acp.types.errors import CheckpointError


def path_of(tmp_path: Path) -> Path:
    with Store(tmp_path / "work", state=tmp_path / "state") as store:
        return store.path


def pragma(path: Path, name: str) -> int:
    base = sqlite3.connect(path)
    (value,) = base.execute(f"PRAGMA {name}").fetchone()
    base.close()
    return int(value)


def test_a_store_from_before_its_tables_had_a_version_goes_on(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    with Store(tmp_path / "work", state=tmp_path / "state") as store:
        found = store.add(b"kept")
        made = store.save("loom", "entity", None, "start", {}, tree={})
    base = sqlite3.connect(path)
    base.execute("PRAGMA application_id = 0")
    base.execute("PRAGMA user_version = 0")
    base.close()
    with Store(tmp_path / "work", state=tmp_path / "state") as store:
        assert store.content(found) == b"kept"
        assert store.last("loom", "entity") == made.id
    assert (pragma(path, "application_id"), pragma(path, "user_version")) == (KIND.application, len(MIGRATIONS))


def test_a_store_of_a_later_version_and_a_database_of_another_program_are_refused(tmp_path: Path) -> None:
    path = path_of(tmp_path)
    base = sqlite3.connect(path)
    base.execute("PRAGMA user_version = 100")
    base.close()
    with pytest.raises(CheckpointError, match=r"its tables have version 100, .* reads up to 99. Upgrade cantrip-acp"):
        Store(tmp_path / "work", state=tmp_path / "state")
    path.unlink()
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE other (a)")
    base.close()
    with pytest.raises(CheckpointError, match="a database of another program"):
        Store(tmp_path / "work", state=tmp_path / "state")
    path.write_bytes(b"no database" * 200)
    with pytest.raises(CheckpointError, match=r"cannot open checkpoints .*: file is not a database"):
        Store(tmp_path / "work", state=tmp_path / "state")
