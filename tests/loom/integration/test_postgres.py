"""The tests of `tests/loom/unit/test_postgres.py` that start processes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from cantrip_acp import Loom, LoomError, Turn
from cantrip_acp.types.errors import LoomWriteError
from tests.loom.unit.test_postgres import named
from tests.support.command_line import run
from tests.support.postgres_server import PASSWORD, QUOTED, Server


def test_a_server_that_crashes_loses_nothing_and_is_found_again(postgres: Server) -> None:
    url = postgres.url(named("crash"))
    with Loom.open(url, fsync=True) as loom, Loom.open(url, readonly=True) as reader:
        loom.append(Turn("t0", None, "c", "e", "k"))
        assert reader.turn("t0").id == "t0"
        postgres.stop(signal.SIGQUIT)
        try:
            with pytest.raises(LoomWriteError, match="cannot write loom postgresql://keeper@127") as caught:
                loom.append(Turn("t1", "t0", "c", "e", "k"))
            with pytest.raises(LoomError, match="Is the server running") as again:
                Loom.open(url)
            assert PASSWORD not in f"{caught.value} {again.value}"
            assert QUOTED not in f"{caught.value} {again.value}"
        finally:
            postgres.start()
        loom.append(Turn("t1", "t0", "c", "e", "k"))
        assert [t.id for t in reader.thread("t1")] == ["t0", "t1"]


def test_a_recipe_and_the_commands_take_one(postgres: Server, tmp_path: Path) -> None:
    url = postgres.url(named("recipe"))
    (tmp_path / "r.cantrip.yaml").write_text(
        "crystal: {provider: scripted, responses: [{content: hi there}]}\n"
        "circle: {gates: [done], wards: [{max_turns: 2}]}\n"
        f"loom: {{store: '{url}'}}\n"
    )
    done = run("cast", "r.cantrip.yaml", "go", "--json", cwd=tmp_path)
    assert done.status == 0, done.err
    assert done.lines[-1]["loom"].startswith("postgresql://keeper@127.0.0.1")
    (shown,) = run("loom", "show", url, "--json", cwd=tmp_path).lines
    assert len(shown["casts"]) == 1
    told = [run("recipe", "show", "r.cantrip.yaml", *how, cwd=tmp_path) for how in ((), ("--json",))]
    said = "".join(t.out + t.err for t in [done, *told])
    assert "s3cret" not in said
