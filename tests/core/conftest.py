"""Small ways to make a cantrip for the tests of the core."""

from __future__ import annotations

from typing import Any

import pytest

from cantrip_acp import Call, Cantrip, Circle, Loom, RetryPolicy, ScriptedCrystal


async def no_wait(seconds: float) -> None:
    """Time that passes at once."""


INSTANT = RetryPolicy(sleep=no_wait)


def done(answer: Any = "ok") -> dict[str, Any]:
    return {"tool_calls": [{"gate": "done", "args": {"answer": answer}}]}


def echo(text: str = "hi", **more: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "echo", "args": {"text": text}}], **more}


def make(
    *responses: dict[str, Any],
    gates: Any = ("done", "echo"),
    wards: Any = ({"max_turns": 10},),
    call: Any = None,
    loom: Loom | None = None,
    **more: Any,
) -> Cantrip:
    crystal_options = {k: more.pop(k) for k in ("usage", "context_window") if k in more}
    more.setdefault("retry", INSTANT)
    return Cantrip(
        ScriptedCrystal(responses, record_inputs=True, **crystal_options),
        call if call is not None else Call(),
        Circle(gates=gates, wards=wards),
        loom=loom,
        **more,
    )


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
