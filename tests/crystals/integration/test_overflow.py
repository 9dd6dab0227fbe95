"""Messages that a provider refuses as too long: a cast folds its earlier turns and goes on, in whatever words it was told."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.crystals.catalog.overflow_texts import ROWS, OverflowText, is_overflow
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.local.presets import PRESETS
from cantrip_acp.crystals.retry import RetryPolicy
from cantrip_acp.gates.contract import Gate
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import Folded, Noticed
from tests.support.families import FAMILIES, Family
from tests.support.openai_replies import DONE
from tests.support.provider_server import Reply, Request, Wire, sse, sse_reply

WINDOW = 20_000
"""The most bytes of a request that the server takes."""

PAGE = Gate(
    "page",
    "Gets a page.",
    {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    lambda args, context: f"page {args['n']} " + "x" * 5_000,
)


def server(family: Family, status: int, text: str, *, refuse: bool = True) -> Wire:
    """It reads page after page, and refuses what is larger than its window; after six pages it answers."""
    pages: Iterator[int] = iter(range(100))

    def answer(request: Request) -> Reply:
        if refuse and len(request.body) > WINDOW:
            return family.refuse(status, text)
        n = next(pages)
        return family.say("read them all") if n == 6 else family.call("page", {"n": n}, f"call{n:05}")

    return Wire(answer)


async def cast(family: Family, wire: Wire, window: int | None = None) -> tuple[str, list[str], int]:
    """Returns the result, the notices, and how often it folded."""
    made = family.crystal(wire.url, ModelInfo(context_window=window))
    circle = Circle(gates=[PAGE, "done"], wards=[{"max_turns": 30}])
    notices: list[str] = []
    folds = 0
    async with Cantrip(made, {}, circle, retry=RetryPolicy(max_retries=0)).cast_stream("read") as events:
        async for event in events:
            if isinstance(event, Noticed):
                notices.append(event.text)
            folds += isinstance(event, Folded)
        result = events.result
    assert result is not None
    return str(result.result), notices, folds


def family_of(row: OverflowText) -> Family:
    return FAMILIES[row.providers if row.providers in ("anthropic", "google") else "local"]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.providers[:20]}-{row.example[:30]}")
async def test_every_row_of_the_table_folds_and_goes_on(row: OverflowText) -> None:
    family = family_of(row)
    with server(family, row.status, row.example) as wire:
        result, _, folds = await cast(family, wire)
    assert result == "read them all"
    assert folds


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.providers[:20]}-{row.example[:30]}")
async def test_every_row_counts_inside_a_stream_too(row: OverflowText) -> None:
    """Gateways answer 200 and send the provider's error as an event."""
    family = FAMILIES["local"]
    told = dataclasses.replace(
        family,
        refuse=lambda status, text: sse_reply([sse({"error": {"message": text, "code": "1261", "type": "x"}}), DONE]),
    )
    with server(told, 200, row.example) as wire:
        result, _, folds = await cast(family, wire)
    assert result == "read them all"
    assert folds


def test_the_table_has_a_row_for_every_preset() -> None:
    named = " ".join(row.providers for row in ROWS)
    assert [name for name in PRESETS if name not in named] == []
    assert all(row.source and row.seen for row in ROWS)


def test_a_limit_of_tokens_per_minute_is_waited_for_and_not_folded() -> None:
    assert not is_overflow(429, "Too many tokens, please wait before trying again.")
    assert not is_overflow(500, "ThrottlingException: Too many tokens, please wait before trying again.")


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("status", [400, 413])
async def test_unknown_words_near_the_window_are_tried_once_with_a_fold(family: Family, status: int) -> None:
    with server(family, status, "Das war zu viel.") as wire:
        # The count of the server is wrong; with the last page it is over half of the window.
        result, notices, folds = await cast(family, wire, window=3_000)
    assert result == "read them all"
    assert folds
    assert any("Das war zu viel." in notice for notice in notices)


async def test_unknown_words_far_from_the_window_are_an_error() -> None:
    with server(FAMILIES["local"], 400, "Das war zu viel.") as wire, pytest.raises(CrystalError, match="zu viel"):
        await cast(FAMILIES["local"], wire, window=1_000_000)


async def test_it_is_tried_only_once() -> None:
    family = FAMILIES["local"]
    refused: list[Request] = []

    def answer(request: Request) -> Reply:
        if refused or len(request.body) > WINDOW:
            refused.append(request)
            return family.refuse(413, "no")
        return family.call("page", {"n": 1}, f"call{len(wire.requests):05}")

    with Wire(answer) as wire, pytest.raises(CrystalError, match="413"):
        await cast(family, wire)
    assert len(refused) == 2


async def test_with_nothing_to_fold_it_is_an_error_at_once() -> None:
    family = FAMILIES["local"]
    with Wire(lambda request: family.refuse(413, "no")) as wire, pytest.raises(CrystalError, match="413"):
        await cast(family, wire)
    assert len(wire.requests) == 1
