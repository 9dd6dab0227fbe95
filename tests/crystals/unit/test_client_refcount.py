"""A crystal's connections end with the last entity that uses it, and not before."""

import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.contract import Emit, Query, Response


class Counting:
    name = "counting"
    model = "counting-1"
    context_window = None

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = 0
        self.error = error

    async def query(self, query: Query, emit: Emit) -> Response:
        return Response("words")

    async def aclose(self) -> None:
        self.closed += 1
        if self.error is not None:
            raise self.error


def circle() -> Circle:
    return Circle(gates=["done"], wards=[{"max_turns": 2}])


async def test_the_last_entity_closes() -> None:
    crystal = Counting()
    cantrip = Cantrip(crystal, circle=circle())
    first, second, idle = cantrip.invoke(), cantrip.invoke(), cantrip.invoke()
    await first.cast("go")
    await second.cast("go")
    await idle.close()  # it never asked
    await first.close()
    await first.close()
    assert crystal.closed == 0
    await second.close()
    assert crystal.closed == 1


async def test_a_batch_closes_once_all_are_done() -> None:
    crystal = Counting()
    await Cantrip(crystal, circle=circle()).cast_batch(["a", "b", "c"])
    assert crystal.closed == 1
    await Cantrip(crystal, circle=circle()).cast("again")
    assert crystal.closed == 2


@pytest.mark.parametrize("error", [RuntimeError("Event loop is closed"), OSError()])
async def test_a_closing_that_fails_hurts_nobody(error: Exception) -> None:
    crystal = Counting(error)
    assert (await Cantrip(crystal, circle=circle()).cast("go")).result == "words"
    assert crystal.closed == 1


async def test_a_crystal_that_cannot_be_counted_is_left_alone() -> None:
    class Slotted(Counting):
        __slots__ = ()
        __hash__ = None  # type: ignore[assignment]

    crystal = Slotted()
    assert (await Cantrip(crystal, circle=circle()).cast("go")).result == "words"
    assert crystal.closed == 0
