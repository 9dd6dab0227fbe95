"""`provider: human`: a person in a model's place, in a real terminal; and nowhere else."""

import json
import re
import shutil
from pathlib import Path

import pytest

from cantrip_acp import Loom
from cantrip_acp.crystals.human import InputParser
from cantrip_acp.types.messages import ToolDefinition
from tests.support.acp_client import RawClient
from tests.support.command_line import Terminal, recipe, run
from tests.support.waiting import settled

HUMAN = """
crystal: {provider: human}
call: {system_prompt: Be a good model.}
circle:
  gates: [done, echo]
  wards: [{max_turns: 6}]
"""
PROMPT = "you ❯ "


@pytest.fixture
def loom(tmp_path: Path) -> Path:
    return tmp_path / "x.loom.jsonl"


def utterances(loom: Path) -> list[tuple[str | None, list[tuple[str, object]]]]:
    with Loom.open(loom, readonly=True) as held:
        (thread,) = held.threads()
        return [
            (t.utterance.content, [(c.gate, json.loads(c.args)) for c in t.utterance.tool_calls]) for t in thread.acted
        ]


def test_a_whole_cast_by_hand(tmp_path: Path, loom: Path) -> None:
    with Terminal("cast", recipe(tmp_path, HUMAN), "Say hi.", "--loom", loom, cwd=tmp_path) as terminal:
        shown = terminal.wait_for(PROMPT)
        for text in ("Be a good model.", "Say hi.", "/done", "/echo"):
            assert text in shown
        terminal.type("/tools\r")
        assert "text: string" in terminal.wait_for(PROMPT)
        terminal.type("/ecko hi\r")
        assert "did you mean /echo?" in terminal.wait_for(PROMPT)
        terminal.type('/echo {"text":\r')
        terminal.wait_for("… ")
        terminal.type('"a {b}"}\r')
        shown = terminal.wait_for(PROMPT)
        assert re.search(r"── echo\s+a \{b\}", shown)
        assert "Be a good model." not in shown
        terminal.type("+I think.\r")
        terminal.wait_for(PROMPT)
        terminal.type("+/echo one\r")
        terminal.wait_for(PROMPT)
        terminal.type("/echo\r")
        terminal.wait_for("… ")
        terminal.type("two\r")
        terminal.wait_for("… ")
        terminal.type("lines\r")
        terminal.wait_for("… ")
        terminal.type(".\r")
        terminal.wait_for(PROMPT)
        terminal.type("/all\r")
        assert "Be a good model." in terminal.wait_for(PROMPT)
        terminal.type("/done all is said\r")
        assert terminal.end() == 0
        assert "all is said" in terminal.seen
    assert utterances(loom) == [
        (None, [("echo", {"text": "a {b}"})]),
        ("I think.", [("echo", {"text": "one"}), ("echo", {"text": "two\nlines"})]),
        (None, [("done", {"answer": "all is said"})]),
    ]


def test_prose_ends_a_cast_and_the_talk_goes_on(tmp_path: Path, loom: Path) -> None:
    with Terminal("repl", recipe(tmp_path, HUMAN), "--loom", loom, cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        terminal.type("first\r")
        terminal.wait_for(PROMPT)
        terminal.type("one \\\r")
        terminal.wait_for("… ")
        terminal.type("and two\r")
        terminal.wait_for("text")
        terminal.wait_for("❯ ")
        terminal.type("second\r")
        shown = terminal.wait_for(PROMPT)
        assert "second" in shown
        assert "first" not in shown
        terminal.type("/refuse not that\r")
        terminal.wait_for("refusal")
        terminal.wait_for("❯ ")
        terminal.type("\x04")
        assert terminal.end() == 0
    assert [content for content, _ in utterances(loom)] == ["one \nand two", "not that"]


def test_ctrl_c_cancels_and_takes_no_line_of_the_next_prompt(tmp_path: Path, loom: Path) -> None:
    with Terminal("repl", recipe(tmp_path, HUMAN), "--loom", loom, cwd=tmp_path, TERM="dumb") as terminal:
        terminal.wait_for("❯ ")
        terminal.type("first\r")
        terminal.wait_for(PROMPT)
        terminal.type("half")
        terminal.wait_for("half")
        terminal.type("\x03")
        terminal.wait_for("cancelled")
        terminal.wait_for("❯ ")
        settled(terminal.pid)
        terminal.type("second\r")
        assert "second" in terminal.wait_for(PROMPT)
        terminal.type("fine\r")
        terminal.wait_for("text")
        terminal.wait_for("❯ ")
        terminal.type("/quit\r")
        assert terminal.end() == 0
    with Loom.open(loom, readonly=True) as held:
        assert [end.reason for _, end in held.casts() if end] == ["cancelled", "text"]


def test_ctrl_c_ends_a_cast_with_130(tmp_path: Path) -> None:
    with Terminal("cast", recipe(tmp_path, HUMAN), "Go.", cwd=tmp_path) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("\x03")
        assert terminal.end() == 130


def test_end_of_input_ends_the_cast(tmp_path: Path) -> None:
    with Terminal("cast", recipe(tmp_path, HUMAN), "Go.", cwd=tmp_path) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type("\x04")
        assert terminal.end() == 1
        assert "end of input" in terminal.seen


def test_what_a_tool_gave_cannot_steer_the_terminal(tmp_path: Path) -> None:
    with Terminal("cast", recipe(tmp_path, HUMAN), "Go.", cwd=tmp_path) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type('/echo {"text": "\\u001b[2Jgone \\u202eback"}\r')
        shown = terminal.wait_for(PROMPT)
        assert "\x1b[2J" not in shown
        assert "\u202e" not in shown
        terminal.type("/done ok\r")
        assert terminal.end() == 0


@pytest.mark.sandbox
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here")
@pytest.mark.parametrize(
    ("medium", "first", "last"),
    [
        ("bash", "/bash echo made $((20+1))", "/bash cantrip_done well"),
        ("code", "/python print('made', 20 + 1)", "/python done('well')"),
    ],
)
def test_programs_of_a_medium(tmp_path: Path, medium: str, first: str, last: str) -> None:
    text = HUMAN.replace("gates: [done, echo]", f"gates: [done]\n  medium: {medium}")
    with Terminal("cast", recipe(tmp_path, text), "Go.", cwd=tmp_path) as terminal:
        terminal.wait_for(PROMPT)
        terminal.type(f"{first}\r")
        shown = terminal.wait_for(PROMPT, timeout=60)
        assert re.search(r"── (bash|python)\s+made 21", shown)
        terminal.type(f"{last}\r")
        assert terminal.end(timeout=60) == 0
        assert "well" in terminal.seen


def test_without_a_terminal_it_is_refused(tmp_path: Path) -> None:
    done = run("cast", recipe(tmp_path, HUMAN), "Go.", cwd=tmp_path, stdin="hello\n")
    assert done.status == 1
    assert "needs a terminal" in done.err


def test_over_acp_it_is_refused(tmp_path: Path) -> None:
    # Even where the editor itself was started in a terminal: standard input is the protocol's.
    agent = RawClient("--recipe", str(recipe(tmp_path, HUMAN)))
    try:
        agent.initialize()
        session = agent.session(tmp_path)
        answer = agent.answer(agent.start_prompt(session))
    finally:
        agent.close()
    assert answer["error"]["code"] == -32603
    assert "needs a terminal" in json.dumps(answer["error"])


ECHO = ToolDefinition("echo", "", {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]})
ADD = ToolDefinition("add", "", {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a", "b"]})
LIST = ToolDefinition("list_dir", "", {"type": "object", "properties": {"path": {"type": "string"}}})
ANY = ToolDefinition("done", "", {"type": "object", "properties": {"answer": {}}, "required": ["answer"]})
SAY = ToolDefinition("say", "", {"type": "object", "properties": {}})


@pytest.mark.parametrize(
    ("lines", "kind", "expected"),
    [
        (["hello"], "text", "hello"),
        (["  hello"], "text", "  hello"),
        (["one\\", "two"], "text", "one\ntwo"),
        (["a\\\\"], "text", "a\\\\"),
        (["/say", "/not a call", "", "end", "."], "text", "/not a call\n\nend"),
        (["+ held"], "text", "held"),
        ([""], "nothing", ""),
        (["/say", "."], "nothing", ""),
        (["/refuse no"], "refusal", "no"),
        (["/help"], "show", "help"),
        (["/echo hi there"], "call", {"text": "hi there"}),
        (["/echo 12"], "call", {"text": "12"}),
        (['/echo {"text": "x"}'], "call", {"text": "x"}),
        (['/echo {"text":', '"x\\', 'y"}'], "problem", "JSON"),
        (['/echo {"text":', '"x"', "}"], "call", {"text": "x"}),
        (["/echo {not json}"], "problem", "not valid JSON"),
        (['/echo {"text":', ""], "problem", "not valid JSON"),
        (["/echo", "  a", "b", "."], "call", {"text": "  a\nb"}),
        (["/echo", "."], "call", {}),
        (["/list_dir"], "call", {}),
        (["/list_dir src"], "call", {"path": "src"}),
        (["/done [1, 2]"], "call", {"answer": [1, 2]}),
        (["/done it is 42"], "call", {"answer": "it is 42"}),
        (["/done 42"], "call", {"answer": 42}),
        (["/add 1 2"], "problem", "as JSON"),
        (["/gate say {}"], "call", {}),
        (["/gate echo hi"], "call", {"text": "hi"}),
        (["/gate echo", "hi", "."], "call", {"text": "hi"}),
        (["/etc/passwd"], "problem", "/say"),
        (["/"], "problem", "/tools"),
    ],
)
def test_what_is_typed(lines: list[str], kind: str, expected: object) -> None:
    typing = InputParser([ECHO, ADD, LIST, ANY, SAY])
    *first, last = lines
    for line in first:
        assert typing.add(line).kind == "more"
    said = typing.add(last)
    assert said.kind == kind, said
    assert not typing.inside
    if kind == "call":
        assert json.loads(said.args) == expected
    else:
        assert str(expected) in said.text
    assert said.hold is lines[0].startswith("+")
