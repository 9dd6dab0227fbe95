"""A session's title: what a user knows the session by, whatever the first prompt looks like."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cantrip_acp.acp.sessions.title import MAX_TITLE, better_title, chosen_title, title_of
from cantrip_acp.text.redaction import shared
from tests.support.acp_client import RawClient
from tests.support.secret_places import SECRET

TRACE = 'Traceback (most recent call last):\n  File "x.py", line 1, in <module>\n    main()\nValueError: bad thing'
FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467"


@pytest.mark.parametrize(
    ("intent", "title"),
    [
        ("Hi! Could you please fix the test in `tests/test_app.py`? It broke.", "Fix the test in tests/test_app.py"),
        ("word " * 40, "Word word word word word word word word word word word…"),
        ("x" * 300, "X" + "x" * 58 + "…"),
        ("", None),
        ("...", None),
        ("  \n \n", None),
        ("```", None),
        ("\x1b[31m\x00", None),
        ("a", "A"),
        # Greetings and courtesies.
        ("hello there friend", "Hello there friend"),
        ("hi", "Hi"),
        ("Hello!\nFix the build", "Fix the build"),
        ("hello world in Rust", "Hello world in Rust"),
        ("hey can you add dark mode", "Add dark mode"),
        ("hi fix the login page", "Fix the login page"),
        ("please fix it", "Fix it"),
        ("Please, fix the bug", "Fix the bug"),
        ("Now playing widget is broken", "Now playing widget is broken"),
        ("ok so can you please, fix x now", "Fix x now"),
        ("I'd like you to write docs for the API", "Write docs for the API"),
        ("Can you help?", "Can you help"),
        ("help me with the build", "Help me with the build"),
        ("I want to add dark mode", "Add dark mode"),
        # Other languages and scripts.
        ("Kannst du bitte den Test reparieren?", "Den Test reparieren"),
        ("Bonjour, pouvez-vous corriger le test ?", "Corriger le test"),
        ("修复这个错误。然后运行测试", "修复这个错误"),
        ("你好，修复这个错误", "修复这个错误"),
        ("请修复登录页面", "请修复登录页面"),
        ("تصحيح الخطأ في الملف", "تصحيح الخطأ في الملف"),
        ("תקן את הבאג", "תקן את הבאג"),
        ("ß is a letter", "ß is a letter"),
        # Emoji, and characters made of several.
        ("\U0001f44d", "\U0001f44d"),
        (f"Draw {FAMILY} here", f"Draw {FAMILY} here"),
        ("\U0001f1e9\U0001f1ea" * 40, "\U0001f1e9\U0001f1ea" * 29 + "…"),
        ("e\u0301" * 80, "e\u0301" * 29 + "…"),
        (FAMILY * 40, FAMILY * 11 + "…"),
        # Terminal codes, and what turns text around.
        ("\x1b[31mRed\x1b[0m is broken", "Red is broken"),
        ("\x1b]0;evil\x07Fix it now", "Fix it now"),
        ("\x9b1mBold text", "Bold text"),
        ("\u202eevil\u202c text\u200b", "Evil text"),
        ("one\x00two", "One two"),
        ("\ud800 bad half", "Bad half"),
        # Markup.
        ("# Fix the parser\n\nIt fails on tabs.", "Fix the parser"),
        ("#123 is broken", "#123 is broken"),
        ("- add tests\n- fix lint", "Add tests"),
        ("1. Do this\n2. Do that", "Do this"),
        ("- [ ] write docs first", "Write docs first"),
        ("**Bold** move: *fix* it", "Bold move: fix it"),
        ("__init__.py is wrong", "__init__.py is wrong"),
        ("--verbose is ignored", "--verbose is ignored"),
        ("why does List<String> fail", "Why does List<String> fail"),
        ("<task>Fix it all</task>", "Fix it all"),
        ("<context>\nFoo bar\n</context>\nDo it now", "Do it now"),
        ("> quoted text\n> more\nI agree, do it", "I agree, do it"),
        ("> only quoted", "Only quoted"),
        ("Do the following:\n- add tests", "Do the following: add tests"),
        ("app.py is broken", "app.py is broken"),
        # Links and addresses.
        ("Explain [@app.py](file:///x/app.py) to me please.", "Explain @app.py to me please"),
        ("[@app.py](file:///x/app.py)[@b.py](file:///b.py)", "@app.py @b.py"),
        ("/unknown thing", "/unknown thing"),
        ("https://github.com/foo/bar/issues/12?x=1#y", "github.com/foo/bar/issues/12"),
        ("look at https://me:pw@example.com/a/b?token=abc and summarise", "Look at example.com/a/b and summarise"),
        ("/very/long/path/" + "dir/" * 20 + "file.py", "…" + "/dir" * 12 + "/file.py"),
        # Code and traces.
        ("```py\ncode\n```\nwhat is wrong", "What is wrong"),
        ("```python\nimport os\n\ndef add(a, b):\n    return a + b\n```", "def add(a, b)"),
        ("~~~\nSELECT * FROM t;\n~~~", "SELECT * FROM t"),
        (TRACE, "ValueError: bad thing"),
        (f"Fix this:\n{TRACE}", "Fix this: ValueError: bad thing"),
        (f"Fix this:\n```\n{TRACE}\n```", "Fix this: ValueError: bad thing"),
        (f"```\n{TRACE}\n```", "ValueError: bad thing"),
        ("TypeError: x is undefined\n    at foo (a.js:1:2)", "TypeError: x is undefined"),
        ('Exception in thread "main" java.lang.Error: no\n\tat com.foo.Bar(Bar.java:3)', "java.lang.Error: no"),
        ("What does e.g. foo vs. bar mean for node.js?", "What does e.g. foo vs. bar mean for node.js"),
    ],
)
def test_titles(intent: str, title: str | None) -> None:
    assert title_of(intent) == title
    assert len(title or "") <= MAX_TITLE


@pytest.mark.parametrize(
    "piece", ["[", "*a ", "`", "_", "hi, ", "please ", "- ", "```\n", "\x1b]", "a.", "Error", "<a ", "<a>\n", "**a", "\n at ",
              "> ", "http://a@", "ok. ", "(", "<!--", "E   ", "x:\n"]
)  # fmt: skip
def test_a_title_costs_nothing(piece: str) -> None:
    began = time.thread_time()
    title_of(piece * 100_000)
    assert time.thread_time() - began < 10


def test_a_greeting_is_a_title_until_something_is_asked() -> None:
    assert better_title(None, "hi there") == "Hi there"
    assert better_title("Hi there", "thanks") is None
    assert better_title("Hi there", "fix the build") == "Fix the build"
    assert better_title("Fix the build", "and now the tests") is None
    assert better_title(None, "...") is None


def test_a_session_that_begins_with_a_greeting(start: Callable[..., RawClient], folder: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    agent = start([{"content": "Hello."}] * 4, "--state-dir", str(state))
    session = agent.session(folder)
    agent.prompt(session, "/cost")
    assert not agent.updates("session_info_update")
    for intent in ("Hello there!", "Please fix the build.", "And the tests, please."):
        agent.prompt(session, intent)
    assert [update["title"] for update in agent.updates("session_info_update")] == ["Hello there", "Fix the build"]
    (listed,) = agent.call("session/list")["sessions"]
    assert listed["title"] == "Fix the build"
    # The note is only a saving: the loom gives the same.
    agent.hang_up()
    (state / "looms" / f"{session}.session.json").unlink()
    again = start([{"content": "Hello."}], "--state-dir", str(state))
    (listed,) = again.call("session/list")["sessions"]
    assert listed["title"] == "Fix the build"


@pytest.mark.parametrize("at", range(180, 260, 5))
def test_a_chosen_title_is_not_cut_in_a_secret(at: int) -> None:
    shared().add(SECRET)
    shown = chosen_title(f"{'x' * at} {SECRET} {'y' * 300}").replace(SECRET, "")
    assert SECRET[:3] not in shown
