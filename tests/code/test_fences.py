"""Python in a fenced block is a cell too, where the response calls nothing (LOOP-6 holds for all other words)."""

from __future__ import annotations

import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.crystals.contract import Response, ToolCall
from cantrip_acp.mediums.codetext import classify, program

CASES = [
    ("Look:\n```python\nx = 1\n```\nThen more.", "Look:\nThen more.", "x = 1\n"),
    ("```py\n1\n```", None, "1\n"),
    ("```Python3\r\n1\r\n```", None, "1\n"),
    ("a\n~~~python\n1\n~~~", "a", "1\n"),
    ("```python\na = 1\n```\nand\n```python\na\n```", "and", "a = 1\na\n"),
    ("````python\n'''\n```\n'''\n````", None, "'''\n```\n'''\n"),
    ("  ```python\n  1\n  ```", None, "  1\n"),
]
WORDS = [
    "just words",
    "```\nx = 1\n```",
    "```bash\nls\n```",
    "```python\n\n```",
    "```python\nnever closed",
    "inline `python` and ```python``` too",
    "",
]


@pytest.mark.parametrize(("content", "prose", "code"), CASES)
def test_a_block_is_a_call(content: str, prose: str | None, code: str) -> None:
    found = classify(Response(content=content))
    assert found.content == prose
    (call,) = found.tool_calls
    assert call.gate == "python"
    assert program(call.args) == code


@pytest.mark.parametrize("content", WORDS)
def test_other_words_stay_words(content: str) -> None:
    response = Response(content=content)
    assert classify(response) is response


def test_a_response_that_calls_is_left_alone() -> None:
    response = Response(content="```python\n1\n```", tool_calls=(ToolCall("a", "python", "{}"),))
    assert classify(response) is response


def cantrip(medium: str, *responses: dict) -> Cantrip:
    return Cantrip(ScriptedCrystal(responses, record_inputs=True), Call(), Circle(medium, ["done"], {"max_turns": 5}))


@pytest.mark.anyio
async def test_through_the_loop() -> None:
    made = cantrip(
        "code",
        {"content": "First this.\n```python\nx = 20\nprint(x)\n```"},
        {"content": "```python\nx + 1\n```"},
        {"content": "It is 21."},
    )
    result = await made.cast("go")
    assert (result.result, result.reason, result.turns) == ("It is 21.", "text", 3)
    first, second, _ = [t for t in made.loom.turns() if t.role == "crystal"]
    assert (first.utterance.content, first.utterance.code) == ("First this.", "x = 20\nprint(x)\n")
    assert first.utterance.tool_calls[0].id != second.utterance.tool_calls[0].id
    messages = made.crystal.invocations[-1].messages  # type: ignore[union-attr]
    assert [m.content for m in messages if m.role == "tool"] == ["20", "21"]


@pytest.mark.anyio
@pytest.mark.parametrize("medium", ["conversation", "bash"])
async def test_other_mediums_take_it_for_words(medium: str) -> None:
    result = await cantrip(medium, {"content": "```python\n1\n```"}).cast("go")
    assert (result.result, result.reason) == ("```python\n1\n```", "text")
