"""``tool_choice: required`` where a provider refuses it: the crystal is asked again until it calls a tool (CRYSTAL-5)."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Cantrip, Circle
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import Noticed
from tests.support.families import FAMILIES, Family
from tests.support.provider_server import Reply, Request, Wire

TEXTS = {
    "DeepSeek": (400, "Thinking mode does not support this tool_choice"),
    "Qwen": (
        400,
        "<400> InternalError.Algo.InvalidParameter: The tool_choice parameter does not support being set to required or "
        "object in thinking mode",
    ),
    "Moonshot": (400, "tool_choice 'required' is incompatible with thinking enabled"),
    "Anthropic": (400, "Thinking may not be enabled when tool_choice forces tool use."),
    "OpenRouter": (404, "No endpoints found that support the provided 'tool_choice' value."),
    "a small server": (422, "Unknown parameter: 'tool_choice'"),
    "Groq": (400, "Tool choice is required, but model did not call a tool"),
    "Google": (400, "Function calling config mode ANY is not supported by this model"),
}


def forces(body: dict[str, Any]) -> bool:
    google = body.get("toolConfig", {}).get("functionCallingConfig", {}).get("mode")
    return body.get("tool_choice") in ("required", {"type": "any"}) or google == "ANY"


def server(family: Family, status: int, text: str) -> Wire:
    """It refuses a forced call. Its model first only talks, and calls when it is asked again."""
    free: list[Request] = []

    def answer(request: Request) -> Reply:
        if forces(request.json()):
            return family.refuse(status, text)
        free.append(request)
        return family.say("I am done.") if len(free) % 2 else family.call("done", {"answer": "42"}, "call00001")

    return Wire(answer)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("told", TEXTS)
async def test_a_refused_choice_is_asked_for_in_words(family: Family, told: str) -> None:
    status, text = TEXTS[told]
    with server(family, status, text) as wire:
        for casts in (1, 2):
            # Another crystal of the same model at the same address knows it already.
            crystal = family.crystal(wire.url)
            notices = []
            spell = Cantrip(crystal, {"tool_choice": "required"}, Circle(gates=["done"], wards=[{"max_turns": 3}]))
            async with spell.cast_stream("go") as events:
                async for event in events:
                    notices += [event.text] if isinstance(event, Noticed) else []
            assert events.result is not None
            assert events.result.result == "42"
            forced = [each for each in wire.requests if forces(each.json())]
            assert len(forced) == 1
            assert len(wire.requests) == 1 + 2 * casts
            assert any("tool_choice: required" in each for each in notices) is (casts == 1)


async def test_another_error_with_a_forced_call_stays_an_error() -> None:
    family = FAMILIES["local"]
    with Wire(lambda request: family.refuse(400, "the messages are empty")) as wire:
        spell = Cantrip(
            family.crystal(wire.url), {"tool_choice": "required"}, Circle(gates=["done"], wards=[{"max_turns": 3}])
        )
        with pytest.raises(CrystalError, match="empty"):
            await spell.cast("go")
        assert len(wire.requests) == 1
