"""Errors of a provider: the same for each service, from the real SDKs against a server that speaks their wire formats."""

from __future__ import annotations

import pytest

from cantrip_acp.text.redaction import shared
from tests.support.provider_faults import BODIES, KEY, SERVICES, STATUSES, Status, crystal, fails, refusal
from tests.support.provider_server import Reply, Wire


@pytest.fixture(params=SERVICES)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.mark.parametrize("status", STATUSES, ids=lambda status: str(status.number))
async def test_every_status(kind: str, status: Status) -> None:
    with Wire([refusal(kind, status.number, f"Something is wrong with {KEY}.")]) as wire:
        error = await fails(crystal(kind, wire.url))
        assert len(wire.requests) == 1, "retries are not the SDK's"
    assert error.status == status.number
    assert error.may_retry() is status.again
    assert status.words in str(error)
    assert "Something is wrong" in str(error)


@pytest.mark.parametrize("at", [560, 575, 590, 599])
async def test_a_long_error_is_not_cut_in_a_secret(kind: str, at: int) -> None:
    secret = "cut-secret-0123456789"
    shared().add(secret)
    with Wire([refusal(kind, 400, f"{'x' * at}{secret}{'y' * 600}")]) as wire:
        told = str(await fails(crystal(kind, wire.url)))
    assert "xxx" in told
    assert "cut" not in told


@pytest.mark.parametrize("body", BODIES)
async def test_a_body_in_any_shape(kind: str, body: bytes) -> None:
    for content_type in ("application/json", "text/html"):
        with Wire([Reply(502, {"content-type": content_type}, body)]) as wire:
            error = await fails(crystal(kind, wire.url))
        assert error.status == 502
        assert error.may_retry()
        assert "<h1>" not in str(error)


async def test_waiting_as_told(kind: str) -> None:
    with Wire([refusal(kind, 429, "Slow down.", **{"retry-after": "7"})]) as wire:
        error = await fails(crystal(kind, wire.url))
    assert (error.retry_after, error.may_retry()) == (7, True)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed_with_the_key(kind: str, status: int) -> None:
    with Wire([Reply(200)] * 2) as other:
        with Wire([Reply(status, {"location": f"{other.url}/elsewhere?x={KEY}"})]) as wire:
            error = await fails(crystal(kind, wire.url))
        assert not other.requests
    assert error.status == status
    assert not error.may_retry()
    assert "redirect" in str(error)
    assert other.url in str(error)
