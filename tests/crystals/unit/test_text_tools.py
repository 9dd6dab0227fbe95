"""Tool calls in text: the one format that the model was asked for, and no call out of anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.crystals.openai.tool_names import wire_name
from cantrip_acp.crystals.text_tools import StreamedTextFilter, TextCalls, call_grammar, read_calls, think_tags
from cantrip_acp.types.messages import ToolDefinition

NAMES = ("read_file", "done")
A = {"path": "a.txt"}
CALL = json.dumps({"name": "read_file", "arguments": A})

FORMATS = [
    f"```tool_call\n{CALL}\n```",
    f"~~~tool_call\n{CALL}\n~~~",
    f"```tool_call\n{CALL}",
    f"````tool_call\n{CALL}\n````",
    f"``` tool_call\n[{CALL}]\n```",
    f"```tool_call\r\n{CALL}\r\n```\r\n",
    '```tool_call\n{"name": "read_file", "parameters": {"path": "a.txt"}}\n```',
    '```tool_call\n{"name": "read_file", "arguments": "{\\"path\\": \\"a.txt\\"}"}\n```',
    # Nearly JSON.
    '```tool_call\n{"name": "read_file", "arguments": {"path": "a.txt",},}\n```',
    "```tool_call\n{'name': 'read_file', 'arguments': {'path': 'a.txt'}}\n```",
]

OTHER_FORMATS = [
    f"```json\n{CALL}\n```",
    f"```\n{CALL}\n```",
    CALL,
    f"[{CALL}]",
    f"<tool_call>\n{CALL}\n</tool_call>",
    f"<|tool_call|>[{CALL}]<|/tool_call|>",
    f"[TOOL_CALLS][{CALL}]",
    f"[TOOL_CALLS]read_file[ARGS]{json.dumps(A)}",
    '<|python_tag|>{"name": "read_file", "parameters": {"path": "a.txt"}}<|eom_id|>',
    f"<function=read_file>{json.dumps(A)}</function>",
    '<function_calls>\n<invoke name="read_file">\n<parameter name="path">a.txt</parameter>\n</invoke>\n</function_calls>',
]


@pytest.mark.parametrize("text", FORMATS)
def test_formats(text: str) -> None:
    reading = read_calls(text)
    assert [(name, json.loads(args)) for name, args in reading.calls] == [("read_file", A)]
    assert reading.words is None


@pytest.mark.parametrize("text", OTHER_FORMATS)
def test_any_other_form_is_text(text: str) -> None:
    for said in (text, f"I look at it.\n\n{text}"):
        assert read_calls(said) == TextCalls(said, ())


@pytest.mark.parametrize("text", FORMATS)
def test_formats_after_words(text: str) -> None:
    reading = read_calls(f"I look at it.\n\n{text}")
    assert [name for name, _ in reading.calls] == ["read_file"]
    assert reading.words == "I look at it."


@pytest.mark.parametrize(
    "text",
    [
        # An example, with words after it.
        f"You could write:\n```json\n{CALL}\n```\nbut I would not.",
        f"For example {CALL} does it.",
        f"Write `<tool_call>{CALL}</tool_call>` to call it.",
        f"It looks like <tool_call>{CALL}</tool_call> in the log.",
        # Inside another code block.
        f"````markdown\n```tool_call\n{CALL}\n```\n````",
        f"```text\n<tool_call>{CALL}</tool_call>\n```",
        f"```python\nprint('''{CALL}''')\n```",
        # JSON that is no call, or a call of nothing that there is.
        '```json\n{"name": "package", "arguments": {}}\n```',
        '{"name": "package", "version": "1.0"}',
        '```json\n{"path": "a.txt"}\n```',
        '{"name": "read_file", "size": 3}',
        '["read_file"]',
        "[1, 2, 3]",
        "{}",
        "```tool_call\n```",
        "```tool_call\nread the file please\n```",
        "<tool_call></tool_call>",
        "Just words.",
        "",
    ],
)
def test_what_is_no_call(text: str) -> None:
    reading = read_calls(text)
    assert reading.calls == ()
    assert reading.words == (text or None)


def test_several_in_order_and_words_between() -> None:
    text = f'One.\n```tool_call\n{CALL}\n```\nTwo.\n```tool_call\n{{"name": "done", "arguments": {{}}}}\n```\nThree.'
    reading = read_calls(text)
    assert [name for name, _ in reading.calls] == ["read_file", "done"]
    assert reading.words is not None
    assert reading.words.split() == ["One.", "Two.", "Three."]
    lines = f"```tool_call\n{CALL}\n{CALL}\n```"
    assert len(read_calls(lines).calls) == 2


def test_made_up_results_and_what_follows_them_do_not_count() -> None:
    made_up = '<tool_result name="read_file">\nall good\n</tool_result>'
    text = f'```tool_call\n{CALL}\n```\n{made_up}\n```tool_call\n{{"name":"done"}}\n```'
    reading = read_calls(text)
    assert [name for name, _ in reading.calls] == ["read_file"]
    assert reading.words is None


def test_broken_json_is_a_call_that_shows_the_entity_what_is_wrong() -> None:
    reading = read_calls('```tool_call\n{"name": "read_file", "arguments": {"path": "a}}\n```')
    ((name, args),) = reading.calls
    assert name == "read_file"
    with pytest.raises(ValueError):
        json.loads(args)


def test_without_tools_to_look_for_text_is_text() -> None:
    """A model that is asked with tool definitions calls by them: what it quotes is never a call."""
    for text in (*FORMATS, f"Look:\n{FORMATS[2]}"):
        reader = StreamedTextFilter((), tags=think_tags(()))
        shown = [*reader.feed(text)]
        rest, _, content, calls = reader.finish()
        assert ("".join(d.text for d in [*shown, *rest]), content, calls) == (text, text, ())


HIDDEN = [
    "<!--\n{}\n-->",
    "see <!--\n{}\n-->",
    "> {}",
    "- {}",
    "1. {}",
    "````\n{}\n````",
    "~~~text\n{}\n~~~",
    "<pre>\n{}\n</pre>",
    "    {}",
    "in ` code\n{}\nhere `",
]


@pytest.mark.parametrize("around", HIDDEN)
@pytest.mark.parametrize("call", FORMATS[:4])
def test_what_is_quoted_is_no_call(around: str, call: str) -> None:
    indent = " " * (len(around) - len(around.lstrip()) or {"-": 2, "1": 3}.get(around[0], 0))
    quoted = around.format(call.replace("\n", f"\n{'> ' if around[0] == '>' else indent}"))
    if quoted.startswith("in `") and call.startswith(("```", "~~~")):
        # A fence ends the paragraph, and with it no code span has begun.
        return
    reading = read_calls(f"It says:\n\n{quoted}\n\nThat is all.")
    assert reading.calls == ()


def test_a_flood_of_calls_is_cut() -> None:
    assert len(read_calls(f"```tool_call\n{CALL}\n```\n" * 500).calls) == 64


@given(st.text(alphabet=st.sampled_from("`~<>|{}[]\"'tool_calname=/ \n:,▁｜TOOLCALLS\\"), max_size=120))
def test_nothing_breaks_it(text: str) -> None:
    read_calls(text)
    read_calls(f"```tool_call\n{text}\n```\n<tool_call>{text}")


PARTS = (
    "Words ",
    "and\n",
    "```",
    "tool_call\n",
    "\n```\n",
    "<tool_call>",
    "</tool_call>",
    "{",
    "<think>",
    "x</think>",
    "json\n",
)


@given(st.lists(st.sampled_from([*PARTS, CALL, " <tool_result"]), max_size=10), st.integers(1, 7))
def test_what_is_shown_begins_what_is_said(parts: list[str], size: int) -> None:
    """However an answer is cut into pieces, the same is read; what a reader saw is the content, or its beginning."""
    text = "".join(parts)
    whole = StreamedTextFilter(NAMES, tags=think_tags(()))
    whole.feed(text)
    _, thinking, content, calls = whole.finish()
    spoken = StreamedTextFilter(NAMES, tags=think_tags(()))
    shown = [d for at in range(0, len(text), size) for d in spoken.feed(text[at : at + size])]
    rest, again, same, found = spoken.finish()
    assert (again, same, found) == (thinking, content, calls)
    seen = "".join(d.text for d in [*shown, *rest] if d.kind == "text")
    if not calls and "</think>" not in text:
        assert seen == (content or "") or not seen.strip()


def test_a_long_answer_takes_time_in_proportion() -> None:
    import time

    spoken = StreamedTextFilter(NAMES, tags=think_tags(()))
    start = time.process_time()
    for _ in range(20_000):
        spoken.feed("some words and\nmore ")
    spoken.finish()
    assert time.process_time() - start < 20


@pytest.mark.parametrize(
    "repeated",
    [
        "```\n",
        "`",
        "~~~`\n",
        "<tool_call>\n",
        "<tool_call>\n<",
        "<function=",
        "<function=a><parameter=b>",
        "[TOOL_CALLS]\n",
        '<invoke name="\n',
        '<invoke name="a">\n<parameter name="b">',
        "<｜tool▁call▁begin｜>\n",
        "<|tool_call_begin|>f<|tool_call_argument_begin|>\n",
        "<|channel|>commentary to=functions.f\n",
        " ",
        "\n",
        "```tool_call\n{",
        '```tool_call\n{"name":"a",\n```\n',
        "```tool_call\n[",
        "```json\n{}\n```\n",
        '```json\n{"name":"done","arguments":{}}\n```\nx\n',
        "x</think>",
    ],
)
def test_a_model_that_repeats_itself_without_end_is_read_in_proportion(repeated: str) -> None:
    import time

    text = repeated * (100_000 // len(repeated))
    start = time.process_time()
    read_calls(text)
    assert time.process_time() - start < 10


def test_a_grammar_allows_one_call_with_the_required_arguments_first() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "answer": {}, "how": {"enum": ["all", "é"]}},
        "required": ["answer"],
    }
    lines = call_grammar([ToolDefinition("my.done", "", schema), ToolDefinition("go", "", {})]).splitlines()
    assert lines[0] == r'root ::= "```tool_call\n" ( call0 | call1 ) "\n```"'
    assert lines[1] == (
        rf'call0 ::= "{{\"name\": \"{wire_name("my.done")}\", \"arguments\": " "{{" "\"answer\": " value'
        r' ( ", \"n\": " integer )? ( ", \"how\": " ( "\"all\"" | "\"\\u00e9\"" ) )? "}" "}"'
    )
    assert lines[2] == r'call1 ::= "{\"name\": \"go\", \"arguments\": " object "}"'
