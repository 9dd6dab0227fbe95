"""What a first query would wait for is done in a thread: the event loop goes on, and a cancel need not wait."""

import threading
import time

import anyio

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.contract import Emit, Query, Response
from cantrip_acp.crystals.http_clients import prepare_in_background


class Slow:
    name = "slow"
    model = "slow-1"
    context_window = None

    def __init__(self, error: Exception | None = None) -> None:
        self.go = threading.Event()
        self.prepared: list[str] = []
        self.error = error

    def prepare(self) -> None:
        self.prepared.append(threading.current_thread().name)
        self.go.wait(30)
        if self.error is not None:
            raise self.error

    async def query(self, query: Query, emit: Emit) -> Response:
        return Response("words")


def entity(crystal: Slow) -> Cantrip:
    return Cantrip(crystal, circle=Circle(gates=["done"], wards=[{"max_turns": 2}]))


async def test_the_loop_goes_on_meanwhile() -> None:
    crystal = Slow()
    async with anyio.create_task_group() as tasks:

        async def release() -> None:
            while not crystal.prepared:
                await anyio.sleep(0.01)
            crystal.go.set()

        tasks.start_soon(release)
        with anyio.fail_after(60):
            assert (await entity(crystal).cast("go")).result == "words"
    assert (await entity(crystal).cast("again")).result == "words"
    assert len(crystal.prepared) == 1
    assert threading.main_thread().name not in crystal.prepared


async def test_a_cancel_does_not_wait_for_it() -> None:
    crystal = Slow()
    async with entity(crystal).invoke() as one, anyio.create_task_group() as tasks:

        async def stop() -> None:
            while not crystal.prepared:
                await anyio.sleep(0.01)
            one.cancel()

        tasks.start_soon(stop)
        with anyio.fail_after(60):
            assert (await one.cast("go")).reason == "cancelled"
    crystal.go.set()


async def test_what_fails_is_for_the_query_to_say() -> None:
    crystal = Slow(ImportError("no such SDK"))
    crystal.go.set()
    assert (await entity(crystal).cast("go")).result == "words"
    prepare_in_background(crystal)
    deadline = time.monotonic() + 60
    while len(crystal.prepared) < 2:
        assert time.monotonic() < deadline
        await anyio.sleep(0.01)


class Ready:
    """A crystal with nothing to prepare."""

    name = model = "ready"
    context_window = None

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def query(self, query: Query, emit: Emit) -> Response:
        self.asked.append(query.messages[-1].content)
        return Response("words")


async def test_queries_that_wait_for_nothing_begin_in_their_order() -> None:
    """A thread for each would mix them (COMP-3: the answers of a batch's children are given in their order)."""
    names = [f"task {n}" for n in range(40)]
    crystal = Ready()
    async with anyio.create_task_group() as tasks:
        for name in names:
            made = Cantrip(crystal, circle=Circle(gates=["done"], wards=[{"max_turns": 2}]))
            tasks.start_soon(made.cast, name)
    assert crystal.asked == names
