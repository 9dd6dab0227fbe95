"""A loom in a database on the command line: a recipe's, one that is named, and the commands that read it."""

from __future__ import annotations

from pathlib import Path

from tests.support.command_line import run

RECIPE = """\
crystal: {provider: scripted, responses: [{content: hi there}]}
circle: {gates: [done], wards: [{max_turns: 2}]}
loom: {store: 'sqlite:kept.db'}
"""


def test_a_recipes_database_is_written_and_read(tmp_path: Path) -> None:
    folder = tmp_path / "r"
    folder.mkdir()
    (folder / "r.cantrip.yaml").write_text(RECIPE)
    for _ in range(2):
        done = run("cast", "r/r.cantrip.yaml", "go", "--json", cwd=tmp_path)
        assert done.status == 0, done.err
        assert done.lines[-1]["loom"] == f"sqlite:{folder}/kept.db"
    for name in ("r/kept.db", "sqlite:r/kept.db", f"sqlite:{folder}/kept.db"):
        (shown,) = run("loom", "show", name, "--json", cwd=tmp_path).lines
        assert len(shown["casts"]) == 2
    assert run("loom", "reward", "sqlite:r/kept.db", "", "1", cwd=tmp_path).status == 0
    (thread,) = run("loom", "thread", "r/kept.db", "--json", cwd=tmp_path).lines
    assert thread["turns"][-1]["reward"] == 1.0


def test_a_cast_goes_where_the_command_says(tmp_path: Path) -> None:
    (tmp_path / "r.cantrip.yaml").write_text(RECIPE)
    done = run("cast", "r.cantrip.yaml", "go", "--loom", "sqlite:other.db", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.lines[-1]["loom"] == f"sqlite:{tmp_path}/other.db"
    assert not (tmp_path / "kept.db").exists()
    wrong = run("loom", "show", "sqlite:nowhere.db", cwd=tmp_path)
    assert wrong.status == 2
    assert "nowhere.db: no such file" in wrong.err
