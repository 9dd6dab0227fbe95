"""How a thread stands: every command and page gives the same answer, in every store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
from cantrip_acp.loom.query.listing import Listing
from cantrip_acp.loom.query.statistics import Statistics
from cantrip_acp.loom.query.thread import Endings
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.errors import CrystalError
from tests.support import processes
from tests.support.fixtures.core import INSTANT
from tests.support.loom_stores import Place
from tests.support.waiting import wait_for, wait_until

SLOW = {"content": "never", "delay_ms": 60_000}


def make(loom: Loom, *responses: dict[str, Any], wards: Any = ({"max_turns": 10},)) -> Cantrip:
    circle = Circle(gates=["done", "echo"], wards=wards)
    return Cantrip(ScriptedCrystal(responses), Call(), circle, loom=loom, retry=INSTANT)


def everywhere(loom: Loom) -> set[tuple[str, str | None]]:
    """The state and the reason of the last thread, as each reader has it."""
    thread = loom.threads()[-1]
    line = next(iter(Listing(loom).lines()))
    episode = Source(loom).episode(thread.leaf.id)
    last = list(loom.cast_starts())[-1]
    cast = Endings(loom).cast(last)
    statistics = Statistics()
    statistics.add(loom)
    assert statistics.record()["casts"]["outcomes"].get(cast.outcome)
    return {
        (thread.state, thread.reason),
        (line.state, None if line.outcome == line.state else line.outcome),
        (episode.state, episode.reason),
        (cast.state, cast.reason),
    }


@pytest.mark.parametrize("how", ["cancelled", "max_seconds", "error", "parent_terminated"])
async def test_a_last_query_without_a_turn_shows_why_it_ended(place: Place, how: str) -> None:
    loom = place.open()
    wards: Any = [{"max_turns": 10}, *([{"max_seconds": 2.5}] if how == "max_seconds" else [])]
    failing: list[dict[str, Any]] = [{"error": {"status": 500, "message": "no"}}] * 4 if how == "error" else [SLOW]
    cantrip = make(loom, {"content": "first"}, *failing, wards=wards)
    entity = cantrip.invoke()
    await entity.cast("One.")
    assert everywhere(loom) == {("terminated", "text")}
    if how == "error":
        with pytest.raises(CrystalError):
            await entity.cast("Two.")
    else:
        async with anyio.create_task_group() as group:
            group.start_soon(entity.cast, "Two.")
            await wait_until(lambda: everywhere(loom) == {("active", None)})
            if place.kind not in ("memory",):
                with place.open(readonly=True) as reader:
                    assert everywhere(reader) == {("active", None)}
            if how != "max_seconds":
                entity.cancel(how)
    assert everywhere(loom) == {("truncated", how)}
    await entity.close()
    assert everywhere(place.again(loom)) == {("truncated", how)}


KILLED = """
import sys, anyio
from cantrip_acp import Call, Cantrip, Circle, Loom, ScriptedCrystal
loom = Loom.open(sys.argv[1])
answers = [{"content": "first"}, {"content": "never", "delay_ms": 60000}]
entity = Cantrip(ScriptedCrystal(answers), Call(), Circle(gates=["done"], wards=[{"max_turns": 3}]), loom=loom).invoke()
async def main():
    await entity.cast("One.")
    print("first", flush=True)
    await entity.cast("Two.")
anyio.run(main)
"""


def test_a_cast_is_active_while_its_process_lives_and_interrupted_after(kept: Place) -> None:
    process = processes.Popen([sys.executable, "-c", KILLED, kept.where], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()

        def stands() -> set[tuple[str, str | None]]:
            with kept.open(readonly=True) as reader:
                return everywhere(reader)

        wait_for(lambda: stands() == {("active", None)})
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        wait_for(lambda: stands() == {("truncated", "interrupted")})
    finally:
        process.kill()
        process.wait()
    # Whoever opens it for writing changes nothing in that.
    assert everywhere(kept.open()) == {("truncated", "interrupted")}


def test_a_page_that_is_open_learns_that_the_process_was_killed(kept: Place) -> None:
    """A kill writes no record, so the page's version changes for it by itself."""
    from cantrip_acp.loom.view.reader import LoomReader

    process = processes.Popen([sys.executable, "-c", KILLED, kept.where], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        with closing(LoomReader(kept.where)) as reading:
            reading.load()
            wait_for(lambda: reading.look(at_once=True) >= 0 and len(reading.about()["running"]) == 1)
            before = reading.version
            process.kill()
            process.wait()
            assert reading.wait(before, 10) > before
            assert reading.about()["running"] == []
    finally:
        process.kill()
        process.wait()


def test_the_commands_and_the_page_agree(tmp_path: Path) -> None:
    from cantrip_acp.loom.view.reader import LoomReader
    from cantrip_acp.lsp.looms import labels
    from cantrip_acp.lsp.looms.document import LoomDocument

    path = tmp_path / "a.loom.jsonl"
    process = processes.Popen([sys.executable, "-c", KILLED, str(path)], stdout=subprocess.PIPE)
    cantrip = str(Path(sys.executable).parent / "cantrip")

    def told() -> tuple[set[str], set[str | None]]:
        """The outcomes of the thread and of its last cast, wherever they are shown."""
        found: set[str] = set()
        for command in (["show", "--json"], ["thread", "--json"], ["list", "--json"]):
            name, option = command
            out = processes.run(
                [cantrip, "loom", name, str(path), option], capture_output=True, text=True, check=True
            ).stdout
            data = json.loads(out) if name != "list" else json.loads(out.splitlines()[0])
            data = data[0] if isinstance(data, list) else data
            for each in (data.get("threads") or data.get("lines") or [data])[-1:]:
                found.add(each.get("outcome") or each.get("reason") or each["state"])
        tree = processes.run([cantrip, "loom", "tree", str(path)], capture_output=True, text=True, check=True).stdout
        found.add("active" if "active" in tree else "interrupted" if "interrupted" in tree else tree)
        book = LoomDocument(path)
        book.load()
        line = labels.cast(book, 1)
        found.add(line["reason"] or line["state"])
        assert found & {"active", "interrupted"}, found
        reading = LoomReader(path)
        reading.load()
        data = reading.cast(1)
        shown = {data["reason"] or data["state"]}
        return found, shown

    try:
        assert process.stdout is not None
        process.stdout.readline()
        wait_for(lambda: told() == ({"active"}, {"active"}))
        process.kill()
        process.wait()
        assert told() == ({"interrupted"}, {"interrupted"})
    finally:
        process.kill()
        process.wait()
