"""Databases that many processes open at the same time, also when there is no file yet."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest

from tests.support import postgres_server, processes

OPENERS = """
import multiprocessing, pathlib, sys
from cantrip_acp.checkpoints.store import Store
from cantrip_acp import Loom
from cantrip_acp.substrate.stores import open_tables
from cantrip_acp.tuplespace.stores import open_store

def checkpoints(place):
    path = pathlib.Path(place.removeprefix("sqlite:"))
    Store(path, state=path.parent).close()

openers = {"checkpoints": checkpoints, "loom": Loom.open, "substrate": open_tables, "tuple-space": open_store}
what = openers[sys.argv[1]]

def opened(place, barrier, answers):
    barrier.wait()
    try:
        what(place)
        answers.put("opened")
    except BaseException as error:
        answers.put(repr(error))

multiprocessing.set_start_method("fork")
for place in sys.argv[2:]:
    barrier, answers = multiprocessing.Barrier(6), multiprocessing.SimpleQueue()
    them = [multiprocessing.Process(target=opened, args=(place, barrier, answers)) for _ in range(6)]
    for each in them:
        each.start()
    print(*(answers.get() for _ in them), sep="\\n")
    for each in them:
        each.join()
"""


def answers(what: str, places: list[str]) -> list[str]:
    ended = processes.run(
        [sys.executable, "-c", OPENERS, what, *places], stdout=subprocess.PIPE, text=True, timeout=300
    )
    return ended.stdout.splitlines()


@pytest.mark.parametrize("what", ["checkpoints", "loom", "substrate", "tuple-space"])
def test_processes_open_a_new_file_at_the_same_time(tmp_path: Path, what: str) -> None:
    assert answers(what, [f"sqlite:{tmp_path}/{n}.db" for n in range(30)]) == ["opened"] * 180


@pytest.mark.parametrize("what", ["loom", "substrate", "tuple-space"])
def test_processes_make_the_tables_of_a_server_at_the_same_time(postgres: postgres_server.Server, what: str) -> None:
    names = [f"{what.replace('-', '_')}_{n}" for n in range(5)]
    with psycopg.connect(postgres.url("default").partition("?")[0], autocommit=True) as owner:
        for name in names:
            owner.execute(f"CREATE DATABASE {name}")  # type: ignore[arg-type]
    places = [postgres.url("default", database=name) for name in names]
    assert answers(what, places) == ["opened"] * 30
