"""A body whose beginning was looked at is read and closed as any other."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest

from cantrip_acp.crystals.event_stream import beginning

pytestmark = pytest.mark.anyio


class Response:
    """What `beginning` uses of a response."""

    def __init__(self) -> None:
        self.closed = False
        self.aiter_bytes: Any = self._pieces

    async def _pieces(self, chunk_size: int | None = None) -> AsyncIterator[bytes]:
        try:
            for piece in (b"\n", b"data: 1\n\n", b"data: 2\n\n", b"data: 3\n\n"):
                yield piece
        finally:
            self.closed = True


async def test_a_reader_that_stops_closes_the_body_itself() -> None:
    """The garbage collector would do it at any time and in any thread."""
    response = Response()
    gc.disable()
    try:
        assert await beginning(response) == b"data: 1\n\n"
        async with contextlib.aclosing(response.aiter_bytes()) as pieces:
            assert await anext(pieces) == b"\ndata: 1\n\n"
            assert await anext(pieces) == b"data: 2\n\n"
            assert not response.closed
        assert response.closed
        assert [piece async for piece in response.aiter_bytes()] == []
    finally:
        gc.enable()


async def test_a_body_is_read_to_its_end() -> None:
    response = Response()
    await beginning(response)
    assert b"".join([piece async for piece in response.aiter_bytes()]).count(b"data") == 3
    assert response.closed
