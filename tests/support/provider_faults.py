"""Providers of every wire format, and what any of them may answer instead of a response: one table for the tests of them all."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import anyio
import pytest

from cantrip_acp.crystals.contract import Crystal, Delta, Query, Response
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.openai.openrouter import OpenRouterCrystal
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.messages import Message, ToolDefinition
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.provider_server import Reply

KEY = "sk-PLANTED-0123456789abcdefghijklmnop"
ECHO = ToolDefinition("echo", "Says it again.", {"type": "object", "properties": {"text": {"type": "string"}}})
WIRES = ("anthropic", "responses", "chat", "google")
"""The wire formats."""
SERVICES = (*WIRES, "openrouter", "local")
"""The crystals that speak them: the last two speak that of "chat"."""


@dataclass(frozen=True)
class Status:
    """A status of HTTP that is no response. ``words``: what the error says beside the provider's own message."""

    number: int
    again: bool = False
    words: str = ""


STATUSES = (
    *(Status(400), Status(401, words="check the key"), Status(402, words="credit"), Status(403, words="permissions")),
    *(Status(404, words="base_url"), Status(408), Status(409), Status(413, words="too large"), Status(422)),
    *(Status(number, again=True) for number in (429, 500, 502, 503, 504, 529)),
)

BODIES = (
    b"",
    b"<html><head><style>x</style></head><body><h1>Bad Gateway</h1></body></html>",
    b"{not json",
    b"null",
    b"7",
    b"[]",
    b"[1,2]",
    b'"text"',
    b'{"error": 7}',
    b'{"error":"text"}',
    b'{"error":{"message":{"deep":1}}}',
    b'{"detail":[{"msg":"x"}]}',
    b"\xff\xfe\x00garbage",
)
"""Bodies of an error that have not the provider's shape."""


def crystal(kind: str, url: str, **more: Any) -> Crystal:
    """A crystal for a server."""
    if kind == "anthropic":
        return anthropic.crystal(url, api_key=Secret(KEY), **more)
    if kind == "google":
        return google.crystal(url, api_key=Secret(KEY), **more)
    make: Callable[[Endpoint], Crystal] = {"openrouter": OpenRouterCrystal, "local": LocalCrystal}.get(
        kind, OpenAICrystal
    )
    provider, options = ("openai", {"api": kind}) if make is OpenAICrystal else (kind, {})
    return make(Endpoint(provider, openai.MODEL, f"{url}/v1", Secret(KEY), options=options, **more))


def refusal(kind: str, status: int, message: str, **headers: str) -> Reply:
    """An error with the body that the provider gives it."""
    if kind == "anthropic":
        return anthropic.refusal(status, "some_error", message, **headers)
    if kind == "google":
        return google.refusal(status, message, "WORD", **headers)
    return openai.refusal(status, message, **headers)


async def asks(made: Any, shown: list[Delta] | None = None) -> Response:
    """The response to a greeting; what was shown of it before is added to ``shown``."""

    async def emit(delta: Delta) -> None:
        if shown is not None:
            shown.append(delta)

    try:
        with anyio.fail_after(60):
            response: Response = await made.query(Query([Message("user", "Hello")], tools=(ECHO,)), emit)
            return response
    finally:
        await made.aclose()


async def fails(made: Any) -> CrystalError:
    """The error of a query. No key is in it."""
    with pytest.raises(CrystalError) as caught:
        await asks(made)
    error = caught.value
    assert KEY not in "".join([repr(made), repr(error), *traceback.format_exception(error)])
    return error
