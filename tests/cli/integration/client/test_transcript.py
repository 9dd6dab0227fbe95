"""What each kind of update looks like in plain text: `shows(updates, text)`."""

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.cli.render.client_output import usage_line
from cantrip_acp.cli.render.display import duration
from cantrip_acp.cli.render.from_acp import UpdateTranslator
from cantrip_acp.cli.render.renderer import Renderer
from cantrip_acp.cli.render.terminal import Screen


def shown(updates: list[dict[str, Any]], **options: Any) -> str:
    out = io.StringIO()
    ticks = iter(range(10_000))
    translator = UpdateTranslator()
    renderer = Renderer(Screen(out), folder=Path("/w/p"), clock=lambda: next(ticks), **options)
    for update in updates:
        for item in translator.translate(update):
            renderer.show(item)
    renderer.end_turn()
    assert not [line for line in out.getvalue().splitlines() if line != line.rstrip()], "trailing spaces"
    return out.getvalue()


def say(words: str, message: str = "m", kind: str = "agent_message_chunk") -> dict[str, Any]:
    return {"sessionUpdate": kind, "messageId": message, "content": {"type": "text", "text": words}}


def tool(call_id: str = "t", **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call", "toolCallId": call_id, **fields}


def more(call_id: str = "t", **fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": call_id, **fields}


def content(words: str) -> list[dict[str, Any]]:
    return [{"type": "content", "content": {"type": "text", "text": words}}]


def planned(plan: str) -> dict[str, Any]:
    return {"content": content(plan), "rawInput": {"plan": plan}}


def piece(words: str) -> dict[str, Any]:
    return {"terminal_output": {"terminal_id": "t", "data": words}}


CASES: dict[str, tuple[list[dict[str, Any]], str]] = {
    "chunks of one message": (
        [say("Hel"), say("lo,\n"), say("\n- wor"), say("ld  \n\n")],
        "● Hello,\n\n  - world\n",
    ),
    "two messages and a thought": (
        [say("Hm.", "1", "agent_thought_chunk"), say("One.", "1"), say("Two.", "2")],
        "✻ Hm.\n\n● One.\n\n● Two.\n",
    ),
    "a plan that the answer shows": (
        [
            say("I looked.\n\n# Plan\n\n"),
            say("1. Go."),
            tool(title="Carry out?", kind="switch_mode", status="pending", **planned("# Plan\n\n1. Go.")),
            more(status="failed", content=[*content("# Plan\n\n1. Go."), *content("Shorter.")]),
        ],
        "● I looked.\n\n  # Plan\n\n  1. Go.\n\n▸ switch_mode  Carry out?\n  │ Shorter.\n  ✗ failed · 1.0 s\n",
    ),
    "a plan that was edited": (
        [
            say("# Plan\n\n1. Go."),
            tool(title="Carry out?", kind="switch_mode", status="pending", **planned("# Plan\n\n2. Stay.")),
        ],
        "● # Plan\n\n  1. Go.\n\n▸ switch_mode  Carry out?\n  │ # Plan\n  │\n  │ 2. Stay.\n  ✗ Carry out?: did not begin\n",
    ),
    "nothing but white space": ([say(" \n "), say("\n")], ""),
    "a command with streamed output": (
        [
            tool(title="make test", kind="execute", status="pending", rawInput={"command": "make test"}),
            more(status="in_progress"),
            more(_meta=piece("one\ntw")),
            more(_meta=piece("o\x1b[3")),
            more(_meta=piece("1m!\n")),
            more(status="failed", _meta={"terminal_exit": {"exit_code": 2, "signal": None}}),
        ],
        "▸ execute  make test\n  │ one\n  │ two!\n  ✗ failed · exit 2 · 1.0 s\n",
    ),
    "a command that is asked about": (
        [
            tool(title="make", kind="execute", status="pending", rawInput={"command": "make"}),
            more(content=content("```sh\nmake\n```")),
            more(status="in_progress", _meta=piece("made\n")),
            more(status="completed"),
        ],
        "▸ execute  make\n  │ made\n  ✓ completed · 1.0 s\n",
    ),
    "a command of several lines": (
        [
            tool(title="cd x …", kind="execute", status="in_progress", rawInput={"command": "cd x\n  ls -l\n"}),
            more(status="completed", rawOutput={"exit_code": 0, "output": "total 0\n"}),
        ],
        "▸ execute\n  $ cd x\n      ls -l\n  │ total 0\n  ✓ completed · exit 0 · 1.0 s\n",
    ),
    "a title of its own, and the command": (
        [
            tool(title="Run the tests", kind="execute", status="in_progress", rawInput={"command": ["make", "test"]}),
            more(status="completed"),
        ],
        "▸ execute  Run the tests\n  $ make test\n  ✓ completed · 1.0 s\n",
    ),
    "content that grows is shown once": (
        [
            tool(title="x", kind="read", status="in_progress"),
            more(content=content("```\na\n```")),
            more(content=content("```\na\nb\n```")),
            more(content=content("```\na\nb\n```"), status="completed"),
        ],
        "▸ read  x\n  │ a\n  │ b\n  ✓ completed · 1.0 s\n",
    ),
    "content that is replaced": (
        [tool(title="x", status="in_progress"), more(content=content("10%")), more(content=content("done"), status="completed")],
        "▸ x\n  │ 10%\n  │ done\n  ✓ completed · 1.0 s\n",
    ),
    "a pending call waits for its real title": (
        [tool(title="Terminal", kind="execute", status="pending"), more(title="ls", status="completed", rawOutput="a\nb")],
        "▸ execute  ls\n  │ a\n  │ b\n  ✓ completed · 1.0 s\n",
    ),
    "an edit": (
        [
            tool(
                title="Edit a.py",
                kind="edit",
                status="completed",
                locations=[{"path": "/w/p/src/b.py", "line": 3}],
                content=[{"type": "diff", "path": "/w/p/src/b.py", "oldText": "1\n2\n3\n", "newText": "1\n2\n3"}],
            )
        ],
        "▸ edit  Edit a.py  src/b.py:3\n  │ --- a/src/b.py\n  │ +++ b/src/b.py\n  │ (no line differs)\n  ✓ completed · 1.0 s\n",
    ),
    "a new file": (
        [
            tool(
                title="write_file n.txt",
                kind="edit",
                status="completed",
                locations=[{"path": "/w/p/n.txt"}],
                content=[{"type": "diff", "path": "/w/p/n.txt", "oldText": None, "newText": "hello\n"}],
            )
        ],
        "▸ edit  write_file n.txt\n  │ --- /dev/null\n  │ +++ b/n.txt\n  │ @@ -0,0 +1 @@\n  │ +hello\n  ✓ completed · 1.0 s\n",
    ),
    "a gate within a command": (
        [
            tool("c", title="read_file a | wc", kind="execute", status="in_progress", rawInput={"command": "read_file a | wc"}),
            tool("g", title="read_file a", kind="read", status="pending", _meta={"cantrip": {"via": "c"}}),
            more("g", status="in_progress"),
            more("g", status="completed", content=content("secret of a"), rawOutput="secret of a"),
            tool("h", title="read_file b", kind="read", status="pending", _meta={"cantrip": {"via": "c"}}),
            more("h", status="failed", content=content("no such file"), rawOutput="no such file"),
            more("c", status="completed", _meta=piece("1 1 1\n")),
        ],
        "▸ execute  read_file a | wc\n  ↳ read  read_file a  ✓ completed\n  ↳ read  read_file b  ✗ failed: no such file\n"
        "  │ 1 1 1\n  ✓ completed · 4.0 s\n",
    ),
    "two calls at once": (
        [
            tool("a", title="one", kind="fetch", status="in_progress"),
            tool("b", title="two", kind="fetch", status="in_progress"),
            more("a", content=content("from one"), status="completed"),
            more("b", status="failed", rawOutput={"error": "no network"}),
        ],
        "▸ fetch  one\n\n▸ fetch  two\n  … one\n  │ from one\n  ✓ completed · 3.0 s\n  … two\n  │ no network\n  ✗ failed · 2.0 s\n",
    ),
    "a call that never ends": (
        [tool(title="x", status="in_progress"), say("Bye.")],
        "▸ x\n\n● Bye.\n  ✗ x: did not end\n",
    ),
    "a plan": (
        [
            {
                "sessionUpdate": "plan",
                "entries": [{"content": "look", "status": "completed"}, {"content": "do", "status": "pending"}],
            }
        ],
        "  plan\n    ✓ look\n    ○ do\n",
    ),
    "quiet updates": (
        [{"sessionUpdate": "available_commands_update"}, {"sessionUpdate": "usage_update", "used": 1, "size": 2}],
        "",
    ),
    "content that is not text": (
        [
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}},
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "resource_link", "name": "n", "uri": "file:///n"}},
        ],
        "● [image image/png, 3 bytes][n](file:///n)\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_looks_like_this(name: str) -> None:
    updates, text = CASES[name]
    assert shown(updates) == text


def test_a_long_output_loses_its_middle_unless_asked_for_whole() -> None:
    lines = "".join(f"line {n}\n" for n in range(200))
    updates = [tool(title="x", status="in_progress"), more(_meta=piece(lines)), more(status="completed")]
    short = shown(updates).splitlines()
    assert len(short) == 1 + 40 + 1 + 15 + 1
    assert short[40:43] == ["  │ line 39", "  │ … 145 lines left out …", "  │ line 185"]
    assert len(shown(updates, full=True).splitlines()) == 202


def test_a_line_without_end_is_no_memory_hole() -> None:
    updates = [
        tool(title="x", status="in_progress"),
        *[more(_meta=piece("z" * 100_000))] * 30,
        more(status="completed"),
    ]
    assert len(shown(updates)) < 60 * 4100


def test_huge_changes_are_counted_not_compared() -> None:
    diff = {"type": "diff", "path": "/w/p/a", "oldText": "a\n" * 30_000, "newText": "b\n" * 30_000}
    assert "30,000 lines become 30,000" in shown([tool(title="x", status="completed", content=[diff])])
    diff = {"type": "diff", "path": "/w/p/a", "oldText": None, "newText": "b\n" * 300}
    assert "… 181 more lines of this change …" in shown([tool(title="x", status="completed", content=[diff])])


def test_on_a_terminal_words_wrap_with_a_hanging_indent_and_colour() -> None:
    out = io.StringIO()
    translator, renderer = UpdateTranslator(), Renderer(Screen(out, colour=True, width=20), folder=Path("/"))
    for word in "one two three four five six seven 中文字 end".split():
        for item in translator.translate(say(word + " ")):
            renderer.show(item)
    renderer.end_turn()
    assert "\x1b[" in out.getvalue()
    import re

    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert plain == "● one two three four\n  five six seven\n  中文字 end\n"


def test_notices_by_how_grave_they_are() -> None:
    update = {"sessionUpdate": "notice", "severity": "warning", "title": "Asking \x1b[31mthe model again",
              "description": "It said 529.\nThe next try is in 2 s."}  # fmt: skip
    assert shown([say("Well."), update, say("Now.")]) == (
        "● Well.\n\n  ◆ Asking the model again\n    It said 529.\n    The next try is in 2 s.\n\n● Now.\n"
    )


def test_a_compaction_is_shown_once_when_it_is_over() -> None:
    def compaction(status: str, **more: Any) -> dict[str, Any]:
        return {"sessionUpdate": "compaction_update", "compactionId": "c", "status": status, **more}

    def piece_of(words: str) -> dict[str, Any]:
        return {
            "sessionUpdate": "compaction_summary_chunk",
            "compactionId": "c",
            "content": {"type": "text", "text": words},
        }

    streamed = [compaction("in_progress"), piece_of("Asked for "), piece_of("a page."), compaction("completed")]
    at_once = [compaction("completed", summary=[{"type": "text", "text": "Asked for a page."}])]
    for updates in (streamed, at_once):
        words = shown([say("Well."), *updates])
        assert words.count("compacted") == 1
        assert words.endswith("  │ Asked for a page.\n")
    assert "compacting the context failed: no room" in shown([compaction("failed", error="no room")])
    assert "compacting the context was cancelled" in shown([compaction("cancelled")])
    assert shown([compaction("in_progress"), piece_of("x")]) == ""


def test_usage_and_durations() -> None:
    assert usage_line({}, {}) == []
    cost = {"used": 5000, "size": 200_000, "cost": {"amount": 0.01234, "currency": "USD"}}
    assert usage_line({"inputTokens": 1500, "outputTokens": 20}, cost) == [
        "1,500 tokens in, 20 out",
        "context 5,000 of 200,000 (2%)",
        "$0.0123",
    ]
    assert usage_line({"prompt_tokens": 3}, {"cost": {"amount": 1, "currency": "EUR"}}) == [
        "3 tokens in, 0 out",
        "1.0000 EUR",
    ]
    assert usage_line({"prompt_tokens": 3, "cost": 0.01}, {}) == ["3 tokens in, 0 out", "$0.0100"]
    assert usage_line({"inputTokens": "many"}, {"used": True, "size": None, "cost": 5}) == []
    assert [duration(s) for s in (0.0123, 1.44, 59.94, 200)] == ["12 ms", "1.4 s", "59.9 s", "3 min 20 s"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = (
    "toolCallId",
    "title",
    "kind",
    "status",
    "content",
    "locations",
    "rawInput",
    "rawOutput",
    "_meta",
    "entries",
    "messageId",
    "severity",
    "description",
    "compactionId",
    "summary",
    "error",
)
KINDS = ("agent_message_chunk", "agent_thought_chunk", "user_message_chunk", "tool_call", "tool_call_update", "plan",
         "usage_update", "current_mode_update", "session_info_update", "notice", "compaction_update",
         "compaction_summary_chunk", "new")  # fmt: skip
LIKELY = st.sampled_from(
    ["a", "b", "completed", "failed", "in_progress", "pending", {"type": "text", "text": "x"}, content("y"), {"command": "ls"},
     [{"type": "diff", "path": "/w/p/f", "newText": "n"}], {"cantrip": {"via": "a"}}, piece("z"), [{"path": "/w/p/f", "line": 2}]]
)  # fmt: skip
UPDATES = st.lists(
    st.builds(
        lambda kind, fields: {"sessionUpdate": kind, **fields},
        st.sampled_from(KINDS) | JSON,
        st.dictionaries(st.sampled_from(KEYS), LIKELY | JSON, max_size=6),
    ),
    max_size=10,
)


@given(UPDATES)
def test_no_update_ends_the_client(updates: list[dict[str, Any]]) -> None:
    out = io.StringIO()
    translator, renderer = UpdateTranslator(), Renderer(Screen(out), folder=Path("/w/p"))
    for update in updates:
        for item in translator.translate(update):
            renderer.show(item)
    renderer.end_turn()
    assert not [c for c in out.getvalue() if ord(c) < 32 and c not in "\n\t"]
