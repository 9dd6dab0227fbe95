"""A crystal owns its connections: casts share them, and they end with the crystal or with their event loop."""

import asyncio
import gc
import threading

import anyio
import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.http_clients import ClientPerLoop
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.provider_faults import crystal
from tests.support.provider_server import Reply, Request, Until, Wire, sse_reply

SAYS = {
    "anthropic": anthropic.says("Hello."),
    "google": google.says("Hello."),
    "chat": openai.said("Hello."),
    "responses": openai.responds(openai.message_item("Hello.")),
}
KINDS = pytest.mark.parametrize("kind", SAYS)


def cantrip(kind: str, wire: Wire) -> Cantrip:
    return Cantrip(crystal(kind, wire.url), circle=Circle(gates=["done"], wards=[{"max_turns": 2}]))


@KINDS
async def test_casts_that_follow_each_other_share_a_connection(kind: str) -> None:
    with Wire([SAYS[kind]] * 3) as wire:
        made = cantrip(kind, wire)
        for _ in range(3):
            await made.cast("go")
        assert wire.connections == 1


@KINDS
async def test_an_entity_that_ends_leaves_the_query_of_another_alone(kind: str) -> None:
    go = threading.Event()

    def answer(request: Request) -> Reply:
        first, *others = SAYS[kind].stream or ()
        return sse_reply([Until(go), first, *others] if b"slow" in request.body else [first, *others])

    with Wire(answer) as wire:
        made = cantrip(kind, wire)

        async def slow() -> None:
            assert (await made.cast("slow")).result == "Hello."

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(slow)
            assert await anyio.to_thread.run_sync(wire.wait_requests, 1)
            assert (await made.cast("quick")).result == "Hello."
            go.set()
        assert wire.connections == 2


@KINDS
async def test_a_crystal_that_nobody_has_closes_its_connections(kind: str) -> None:
    with Wire([SAYS[kind]]) as wire:
        await cantrip(kind, wire).cast("go")
        with anyio.fail_after(20):
            while wire.open:
                gc.collect()
                await anyio.sleep(0.01)


@KINDS
def test_an_event_loop_that_ends_closes_its_connections(kind: str) -> None:
    with Wire([SAYS[kind]] * 2) as wire:
        made = cantrip(kind, wire)
        for number in range(2):
            made.cast_sync("go")
            assert wire.wait_closed()
            assert wire.connections == number + 1


async def test_a_client_whose_closing_fails_hurts_nobody() -> None:
    async def close(client: object) -> None:
        raise RuntimeError("a library's error")

    clients = ClientPerLoop(object, close)
    first = await clients.get()
    assert await clients.get() is first
    await clients.aclose()
    await clients.aclose()
    assert await clients.get() is not first


async def test_a_client_that_does_not_close_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cantrip_acp.crystals.http_clients.CLOSING_S", 0.05)
    clients = ClientPerLoop(object, lambda client: asyncio.sleep(3600))
    await clients.get()
    with anyio.fail_after(20):
        await clients.aclose()
