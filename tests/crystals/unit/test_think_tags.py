"""An answer that mentions a tag of thinking is whole; thinking without its opening tag is taken out."""

from __future__ import annotations

import pytest

from cantrip_acp.crystals.text_tools import StreamedTextFilter, think_tags
from cantrip_acp.types.messages import Message

CALL = '```tool_call\n{"name": "done", "arguments": {"answer": "%s"}}\n```'
OTHER = '<tool_call>\n{"name": "done", "arguments": {"answer": "%s"}}\n</tool_call>'
"""The form of another program: it is not run, and the model is told so."""
FENCED = "Close it:\n```xml\n<answer>\n</think>\n```\nThen go on."

MENTIONS = [
    "The bug is fixed: strip everything up to `</think>` before parsing. 12 tests pass.",
    "Answer: 42. The tags stand in <think> and </think>.",
    "Use </think> to end it.",
    "Everything up to </think>\nis thinking.",
    "</think> is the closing tag.",
    "Write '</think>' or \"</think>\", not (</think>).",
    "text = s.split('</think>')[-1]",
    "An example:\n<think>\nHm.\n</think>\nYes.",
    FENCED,
    "~~~\nx</think>\n~~~\nAn end.",
    "`a\n</think>`",
    "It ends in </think>",
    "```bash\nprintf 'x\n</think>\ny' | wc -c\n```",
]
ENDS = [
    ("Hm, so.</think>\n\nYes.", "Hm, so.", "Yes."),
    ("Hm.\n</think>\nYes.", "Hm.", "Yes."),
    ("Hm.\n</think>Yes.", "Hm.", "Yes."),
    ("So 42.</think>It is 42.", "So 42.", "It is 42."),
    ("\n</think>\n\nYes.", None, "Yes."),
    # The first that is more than a mention.
    ("It is about `</think>`, so:\n</think>\nWrite `</think>`.", "It is about `</think>`, so:", "Write `</think>`."),
    ("```python\nx = 1\n```\nGood.\n</think>\nYes.", "```python\nx = 1\n```\nGood.", "Yes."),
    ("A draft:\n```python\nx = 1\n</think>\nYes.", "A draft:\n```python\nx = 1", "Yes."),
    ("Well, <think> ends in </think>.\n</think>\nYes.", "Well, <think> ends in </think>.", "Yes."),
]


def read(text: str, size: int, names: tuple[str, ...] = (), *prompt: Message) -> tuple[str | None, str | None, int]:
    spoken = StreamedTextFilter(names, tags=think_tags(prompt))
    for at in range(0, len(text), size):
        spoken.feed(text[at : at + size])
    _, thinking, content, calls = spoken.finish()
    return thinking, content, len(calls)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("names", [(), ("done",)])
@pytest.mark.parametrize("text", MENTIONS)
def test_a_mention_cuts_nothing(text: str, names: tuple[str, ...], size: int) -> None:
    assert read(text, size, names) == (None, text, 0)
    assert read(f"<think>Hm.</think>{text}", size, names) == ("Hm.", text, 0)
    assert read(f"Hm.\n</think>\n{text}", size, names) == ("Hm.", text, 0)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize(("text", "thinking", "content"), ENDS)
def test_thinking_that_the_prompt_opened_is_taken_out(text: str, thinking: str | None, content: str, size: int) -> None:
    assert read(text, size) == (thinking, content, 0)


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("argument", ["s.split('</think>')[-1]", "x</think>y", r"\n</think>\n", "It is.</think>It is."])
@pytest.mark.parametrize("form", [CALL, OTHER])
def test_a_call_keeps_its_arguments(form: str, argument: str, size: int) -> None:
    text, calls = form % argument, int(form == CALL)
    assert read(text, size, ("done",)) == (None, text, calls)
    assert read(f"Hm.\n</think>\n\n{text}", size, ("done",)) == ("Hm.", text, calls)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_thinking_may_be_about_its_own_tag(size: int) -> None:
    assert read("<think>Where is `</think>`?</think>Here.", size) == ("Where is `</think>`?", "Here.", 0)
    assert read("<think>Is it '</think>Yes.", size) == ("Is it '", "Yes.", 0)
    assert read("<think>Is it '</think>", size) == ("Is it '", None, 0)


@pytest.mark.parametrize("text", [*MENTIONS, *(text for text, _, _ in ENDS), "<think>x</think>y"])
def test_beside_a_field_for_thinking_the_text_is_never_cut(text: str) -> None:
    for first in (True, False):
        spoken = StreamedTextFilter((), tags=think_tags(()))
        if first:
            spoken.thought_apart()
        shown = spoken.feed(text)
        if not first:
            spoken.thought_apart()
        rest, _, content, _ = spoken.finish()
        if first or not text.startswith("<think>"):
            assert content == "".join(each.text for each in [*shown, *rest] if each.kind == "text") == text


def test_a_form_that_the_prompt_asks_for_is_the_answer() -> None:
    text = "<reasoning>2+2</reasoning><answer>4</answer>"
    for role in ("system", "user"):
        asking = Message(role, "Write <reasoning>\n…\n</reasoning>\n<answer>…</answer>.")  # type: ignore[arg-type]
        assert read(text, 3, (), asking) == (None, text, 0)
    assert read(text, 3) == ("2+2", "<answer>4</answer>", 0)
    # Models write <think> of their own: people who talk about it do not ask for it.
    thinking = text.replace("reasoning", "think")
    assert read(thinking, 3, (), Message("user", "What is <think>?")) == ("2+2", "<answer>4</answer>", 0)
    assert read(thinking, 3, (), Message("system", "Write <think>…</think>.")) == (None, thinking, 0)


def test_many_mentions_take_time_in_proportion() -> None:
    import time

    for repeated in ("x </think> ", "```\n</think>\n", "<think></think>", "</think> is\n"):
        start = time.process_time()
        read(repeated * (400_000 // len(repeated)), 100_000)
        assert time.process_time() - start < 10
