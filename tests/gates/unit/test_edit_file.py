"""edit_file: exactly one place, or a refusal that helps to find it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.files.edit_file import EDIT_FILE, replace_exactly
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Diff, Location
from tests.support.fixtures.gates import call_in, context_of

Call = Callable[..., GateReply]

PROGRAM = """\
def first(items):
    for item in items:
        print(item)
    return items


def second(items):
    for item in items:
        print(item)
    return None
"""


def test_one_place(call: Call, workspace: Path) -> None:
    path = workspace / "app.py"
    path.write_text(PROGRAM)
    path.chmod(0o600)
    reply = call(EDIT_FILE, path="app.py", old_text="    return None\n", new_text="    return items\n")
    after = PROGRAM.replace("return None", "return items")
    assert path.read_text() == after
    assert path.stat().st_mode & 0o777 == 0o600
    assert reply.result == "edited app.py at line 10"
    assert reply.locations == (Location(str(path), 10),)
    assert reply.diffs == (Diff(str(path), PROGRAM, after),)


def test_every_place(call: Call, workspace: Path) -> None:
    (workspace / "app.py").write_text(PROGRAM)
    reply = call(EDIT_FILE, path="app.py", old_text="print(item)", new_text="yield item", replace_all=True)
    assert (workspace / "app.py").read_text() == PROGRAM.replace("print(item)", "yield item")
    assert reply.result == "edited app.py: 2 replacements, at lines 3, 9"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("print(item)", "x", "ambiguous: it is found 2 times in 'app.py', at lines 3, 9. Add more"),
        ("", "x", "old_text is empty"),
        ("print(item)", "print(item)", "the same; nothing would change"),
        ("return Nothing", "x", "is not found in 'app.py'. The nearest lines to its first one:\n  10:     return None"),
        ("  return None", "  x", None),
        ("\treturn None", "x", "differ from it only in white space. They are:\n    return None"),
        ("for item in items:\n  print(item)\n  return None", "x", "lines 8 to 10 differ from it only in white space"),
        ("zzzzqqqq", "x", "is not found in 'app.py'; read the file again"),
    ],
)
def test_refusals(call: Call, workspace: Path, old: str, new: str, says: str | None) -> None:
    path = workspace / "app.py"
    path.write_text(PROGRAM)
    if says is None:
        call(EDIT_FILE, path="app.py", old_text=old, new_text=new)
        return
    with pytest.raises(GateError) as caught:
        call(EDIT_FILE, path="app.py", old_text=old, new_text=new)
    assert says in str(caught.value)
    assert path.read_text() == PROGRAM
    assert os.listdir(workspace) == ["app.py"]


@pytest.mark.parametrize(
    ("content", "old", "new", "after"),
    [
        ("a\r\nb\r\nc\r\n", "a\nb\n", "x\ny\nz\n", "x\r\ny\r\nz\r\nc\r\n"),
        ("a\r\nb\r\nc\r\n", "b", "x\ny", "a\r\nx\r\ny\r\nc\r\n"),
        ("a\r\nb\r\nc\r\n", "a\r\nb", "x\r\ny", "x\r\ny\r\nc\r\n"),
        ("a\nb\nc\n", "a\r\nb", "x\ny", "x\ny\nc\n"),
        ("a\nb\r\nc\r\nd\r\n", "a\nb", "x\ny", "x\ny\r\nc\r\nd\r\n"),
        ("a\rb\rc\r", "a\nb", "x\ny", "x\ry\rc\r"),
        ("a\r\nb", "a\n", "", "b"),
        ("one two", "two", "", "one "),
        ("a\r\n\r\nb", "\n\nb", "\nb", "a\r\nb"),
        ("a\r\nb", "\nb", "c", "ac"),
        ("a\r\nb", "a\r\n", "", "b"),
    ],
)
def test_line_endings_stay(call: Call, workspace: Path, content: str, old: str, new: str, after: str) -> None:
    (workspace / "f").write_bytes(content.encode())
    call(EDIT_FILE, path="f", old_text=old, new_text=new)
    assert (workspace / "f").read_bytes() == after.encode()


def test_overlapping_places_are_ambiguous(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("aaa")
    with pytest.raises(GateError, match="found 2 times"):
        call(EDIT_FILE, path="f", old_text="aa", new_text="b")
    call(EDIT_FILE, path="f", old_text="aa", new_text="b", replace_all=True)
    assert (workspace / "f").read_text() == "ba"


def test_only_line_endings_differ(call: Call, workspace: Path) -> None:
    (workspace / "f").write_bytes(b"a\r\nb\r\n")
    with pytest.raises(GateError, match="differ only in line endings"):
        call(EDIT_FILE, path="f", old_text="a\nb", new_text="a\r\nb")


@pytest.mark.parametrize(
    ("file", "old", "place", "there", "here"),
    [
        ("x\nlet a\u00a0= 1\n", "let a = 1", "line 2, column 6", "U+00A0 (no-break space)", "U+0020 (space)"),
        ("let caf\u00e9 = 1\n", "let cafe\u0301 = 1", "line 1, column 8", "U+00E9", "U+0065 (latin small letter e)"),
        ("let cafe\u0301 = 1\n", "let caf\u00e9 = 1", "line 1, column 8", "U+0065", "U+00E9"),
        ("a\u200bb\n", "ab", "line 1, column 2", "U+200B (zero width space)", "U+0062"),
        ("ab\n", "a\u200bb", "line 1, column 2", "U+0062", "U+200B (zero width space)"),
        ("say \u201chi\u201d\n", 'say "hi"', "line 1, column 5", "U+201C (left double quotation mark)", "U+0022"),
        ("it\u2019s\n", "it's", "line 1, column 3", "U+2019", "U+0027"),
        ("a \u2014 b\n", "a - b", "line 1, column 3", "U+2014 (em dash)", "U+002D"),
        ("\uff21\uff22\n", "AB", "line 1, column 1", "U+FF21", "U+0041"),
        ("\ufeffx\nsoft\u00adware y\n", "software y", "line 2, column 5", "U+00AD", "U+0077"),
        ("one\r\ntwo\u00a0x\r\n", "one\ntwo x", "line 2, column 4", "U+00A0", "U+0020"),
    ],
)
def test_a_difference_that_nobody_sees_is_named(
    call: Call, workspace: Path, file: str, old: str, place: str, there: str, here: str
) -> None:
    (workspace / "f").write_bytes(file.encode())
    with pytest.raises(GateError) as refused:
        call(EDIT_FILE, path="f", old_text=old, new_text="new")
    assert f"at {place} the file has {there}" in str(refused.value)
    assert f"where old_text has {here}" in str(refused.value)


def test_files_that_cannot_be_edited(call: Call, workspace: Path) -> None:
    (workspace / "empty").write_text("")
    (workspace / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(GateError, match="the file is empty"):
        call(EDIT_FILE, path="empty", old_text="a", new_text="b")
    with pytest.raises(GateError, match="no such file: 'gone'"):
        call(EDIT_FILE, path="gone", old_text="a", new_text="b")
    with pytest.raises(
        GateError, match=r"'latin' is not UTF-8\. It looks like Windows-1252, but that is a guess, so the letter '日'"
    ):
        call(EDIT_FILE, path="latin", old_text="caf", new_text="日")
    with pytest.raises(GateError, match="surrogate"):
        call(EDIT_FILE, path="latin", old_text="caf", new_text="\udcff")
    with pytest.raises(GateError, match="has more than 3 bytes"):
        call_in(context_of(workspace, max_bytes=3), EDIT_FILE, path="latin", old_text="caf", new_text="x")
    with pytest.raises(GateError, match="would become longer than the 5 characters"):
        call_in(context_of(workspace, max_bytes=5), EDIT_FILE, path="latin", old_text="caf", new_text="xxxxxx")
    assert (workspace / "latin").read_bytes() == b"caf\xe9"


def test_what_is_not_found_in_a_large_file_is_said_soon(call: Call, workspace: Path) -> None:
    line = "value_{n} = compute(alpha, beta, gamma, {n})  # a comment that goes on for a while\n"
    (workspace / "f").write_text("".join(line.format(n=n) for n in range(12_000)))
    began = time.process_time()
    with pytest.raises(GateError, match="nearest lines"):
        call(EDIT_FILE, path="f", old_text="value_77 = compute(alpha, beta, gamma, delta)", new_text="x")
    assert time.process_time() - began < 5


def test_replacing_very_often_is_bounded(call: Call, workspace: Path) -> None:
    (workspace / "f").write_text("a" * 1_000_000)
    began = time.process_time()
    with pytest.raises(GateError, match="more than 100,000 times"):
        call(EDIT_FILE, path="f", old_text="a", new_text="b", replace_all=True)
    with pytest.raises(GateError, match="found more than 100,000 times in 'f', at lines 1, 1,"):
        call(EDIT_FILE, path="f", old_text="a", new_text="b")
    (workspace / "f").write_text("ab" * 50_000)
    with pytest.raises(GateError, match="would become longer than the 16,777,216 characters"):
        call(EDIT_FILE, path="f", old_text="a", new_text="x" * 100_000, replace_all=True)
    with pytest.raises(GateError, match="not found"):
        call(EDIT_FILE, path="f", old_text="ab\n" * 500_000, new_text="x")
    assert time.process_time() - began < 10


def test_a_cancelled_edit_of_a_large_file_is_whole(workspace: Path) -> None:
    """Cancelled while the thread works: the file is the old or the new one."""
    import anyio

    before = "x" * 3_000_000 + "NEEDLE"
    path = workspace / "f"
    path.write_text(before)

    async def cancelled() -> None:
        with anyio.move_on_after(0.001):
            await EDIT_FILE.handler({"path": "f", "old_text": "NEEDLE", "new_text": "pin"}, context_of(workspace))

    anyio.run(cancelled)
    assert path.read_text() in (before, before.replace("NEEDLE", "pin"))
    assert os.listdir(workspace) == ["f"]


PIECES = st.text(st.sampled_from("ab\n\r "), max_size=12)


@settings(max_examples=300)
@given(before=PIECES, old=PIECES.filter(bool), new=PIECES, after=PIECES)
def test_replacing_is_what_it_says(before: str, old: str, new: str, after: str) -> None:
    """Where it succeeds, everything around the one place stays, and the place holds the new text but for line ends."""
    content = before + old + after
    for left, right in ((before, old), (old, after), (before, new), (new, after)):
        # A line ending that came about between two pieces belongs to neither.
        assume(not (left.endswith("\r") and right.startswith("\n")))
    assume(new or not (before.endswith("\r") and after.startswith("\n")))
    try:
        replaced = replace_exactly(content, old, new, every=False, shown="f")
    except GateError as error:
        said = str(error)
    else:
        said = ""
    if said:
        assert content.count(old) > 1 or "ambiguous" in said or old == new or "line endings" in said
        return
    assert replaced.text.startswith(before)
    assert replaced.text.endswith(after)
    middle = replaced.text[len(before) : len(replaced.text) - len(after)]
    plain = middle.replace("\r\n", "\n").replace("\r", "\n")
    assert plain == new.replace("\r\n", "\n").replace("\r", "\n")
