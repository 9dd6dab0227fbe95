"""read_file: lines, limits, large files, and what an editor is told."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cantrip_acp.gates.contract import GateReply
from cantrip_acp.gates.files import read_file
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.records import Location
from tests.support.fixtures.gates import call_in, context_of

Call = Callable[..., GateReply]
GIB = 1 << 30


@pytest.mark.parametrize(
    ("content", "args", "result"),
    [
        ("", {}, ""),
        ("one\n", {}, "one\n"),
        ("one\ntwo\nthree", {}, "one\ntwo\nthree"),
        ("one\ntwo\nthree", {"offset": 2}, "two\nthree"),
        ("one\ntwo\nthree", {"offset": 3}, "three"),
        ("one\ntwo\nthree", {"limit": 1}, "one\n"),
        ("one\ntwo\nthree", {"offset": 2, "limit": 1}, "two\n"),
        ("one\ntwo\nthree", {"offset": 2, "limit": 100}, "two\nthree"),
        ("one\r\ntwo\r\n", {"offset": 2}, "two\r\n"),
        ("one\n\n\nfour\n", {"offset": 2, "limit": 2}, "\n\n"),
        ("a\fb\x0bc\u2028d\x85e\n2\n", {"offset": 2}, "2\n"),
    ],
)
def test_lines(call: Call, workspace: Path, content: str, args: dict[str, int], result: str) -> None:
    (workspace / "f.txt").write_bytes(content.encode())
    assert call(READ_FILE, path="f.txt", **args).result == result


@pytest.mark.parametrize(
    ("content", "offset", "lines"), [("one\ntwo\n", 3, 2), ("one\ntwo", 4, 2), ("", 2, 0), ("\n", 9, 1), ("x", 2, 1)]
)
def test_past_the_end(call: Call, workspace: Path, content: str, offset: int, lines: int) -> None:
    (workspace / "f.txt").write_text(content)
    with pytest.raises(GateError, match=f"has {lines} lines; offset {offset} is past its end"):
        call(READ_FILE, path="f.txt", offset=offset)


@settings(max_examples=200, deadline=None)
@given(
    content=st.text(st.sampled_from("ab\n\ré"), max_size=60),
    offset=st.integers(1, 12),
    limit=st.none() | st.integers(1, 6),
    utf16=st.booleans(),
    chunk=st.integers(1, 9),
)
def test_lines_are_those_of_the_whole_text(
    tmp_path: Path, content: str, offset: int, limit: int | None, utf16: bool, chunk: int
) -> None:
    """However the file is cut into pieces while it is read."""
    path = tmp_path / "f.txt"
    path.write_bytes(content.encode("utf-16" if utf16 else "utf-8"))
    lines = [line + "\n" for line in content.split("\n")]
    lines[-1] = lines[-1][:-1]
    if not lines[-1]:
        lines.pop()
    expected = "".join(lines[offset - 1 : offset - 1 + limit if limit is not None else None])
    args = {"path": "f.txt", "offset": offset, **({} if limit is None else {"limit": limit})}
    with pytest.MonkeyPatch.context() as patch:
        # The first piece must hold a byte order mark whole.
        patch.setattr(read_file, "_CHUNK", max(chunk, 4))
        if offset > max(len(lines), 1):
            with pytest.raises(GateError, match=f"has {len(lines)} lines"):
                call_in(context_of(tmp_path), READ_FILE, **args)
        else:
            assert call_in(context_of(tmp_path), READ_FILE, **args).result == expected


def test_a_long_result_is_cut_and_says_how_to_read_on(call: Call, workspace: Path) -> None:
    content = "".join(f"line {n}\n" for n in range(1, 100_001))
    (workspace / "long.txt").write_text(content)
    offset, got = 1, ""
    for _ in range(20):
        result = call(READ_FILE, path="long.txt", offset=offset).result
        body, _, note = result.rpartition("[cut: ")
        if not body:
            got += result
            break
        assert len(body) <= read_file.MAX_BYTES
        assert f"bytes of the file's {len(content):,}; read on with offset " in note
        got += body
        offset = int(note.removesuffix("]").rpartition(" ")[2])
    assert got == content


def test_a_line_longer_than_a_result(call: Call, workspace: Path) -> None:
    (workspace / "min.js").write_text("é" * 400_000 + "\nsecond\n")
    result = call(READ_FILE, path="min.js").result
    assert "these are the characters 1 to 131,072 of line 1; the file has 800,008 bytes" in result
    assert "next line is at offset 2" in result
    assert "\ufffd" not in result
    assert result.startswith("ééé")
    assert call(READ_FILE, path="min.js", offset=2).result == "second\n"


def test_the_limit_is_a_dependency(workspace: Path) -> None:
    (workspace / "f.txt").write_text("one\ntwo\nthree\n")
    result = call_in(context_of(workspace, max_bytes=9), READ_FILE, path="f.txt").result
    assert result.startswith("one\ntwo\n[cut: these are lines 1 to 2,")


def sparse(path: Path, head: bytes, size: int, tail: bytes = b"") -> None:
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size)
        file.seek(0, os.SEEK_END)
        file.write(tail)


def test_a_hole_of_a_gigabyte_is_binary(call: Call, workspace: Path) -> None:
    sparse(workspace / "hole", b"", GIB)
    with pytest.raises(GateError, match=r"binary file \(binary data, 1,073,741,824 bytes\)"):
        call(READ_FILE, path="hole")


def test_a_large_file_does_not_hold_up_the_others(workspace: Path) -> None:
    sparse(workspace / "big", b"text\n" * 2000, GIB, b"\nend\n")

    async def beside() -> int:
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await anyio.sleep(0.01)

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await READ_FILE.handler({"path": "big", "offset": 2002}, context_of(workspace))
            group.cancel_scope.cancel()
        return ticks

    assert anyio.run(beside) > 2


def test_a_cancelled_read_stops_and_closes(workspace: Path) -> None:
    sparse(workspace / "big", b"text\n" * 2000, 8 * GIB)
    before = len(os.listdir("/proc/self/fd"))

    async def cancelled() -> None:
        with anyio.move_on_after(0.05) as scope:
            await READ_FILE.handler({"path": "big", "offset": 5_000}, context_of(workspace))
        assert scope.cancelled_caught
        with anyio.CancelScope() as scope:
            scope.cancel()
            await READ_FILE.handler({"path": "big", "offset": 5_000}, context_of(workspace))

    began = time.monotonic()
    anyio.run(cancelled)
    assert time.monotonic() - began < 30
    deadline = time.monotonic() + 60
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_line_that_takes_too_long_to_reach(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sparse(workspace / "big", b"text\n" * 2000, GIB)
    monkeypatch.setattr(read_file, "_SECONDS", 0.0)
    with pytest.raises(GateError, match="line 5,000 of 'big' was not reached within 0 seconds"):
        call_in(context_of(workspace), READ_FILE, path="big", offset=5000)


def test_encodings_are_read(call: Call, workspace: Path) -> None:
    (workspace / "f.txt").write_bytes("één\r\ntwee\r\n".encode("utf-16"))
    assert call(READ_FILE, path="f.txt", offset=2).result == "twee\r\n"
    (workspace / "f.txt").write_bytes(b"\xef\xbb\xbfone\n")
    assert call(READ_FILE, path="f.txt").result == "one\n"
    (workspace / "f.txt").write_bytes("een \u2013 één\n".encode("cp1252"))
    guessed = "[not UTF-8; shown as Windows-1252, which is a guess]"
    assert call(READ_FILE, path="f.txt").result == f"een \u2013 één\n\n{guessed}"
    (workspace / "f.txt").write_bytes("日本語".encode() + b"\xff\n")
    assert call(READ_FILE, path="f.txt").result == "日本語\ufffd\n"


def test_a_long_line_is_read_in_parts(workspace: Path) -> None:
    line = "".join(chr(0x4E00 + n % 999) if n % 3 else "x" for n in range(5_000))
    (workspace / "f.js").write_text(f"first\n{line}\nlast\n")
    context, found, column = context_of(workspace, max_bytes=1_000), "", 1
    for _ in range(99):
        part = call_in(context, READ_FILE, path="f.js", offset=2, column=column).result
        text, _, note = part.rpartition("\n[cut: ")
        if "Read on in this line" not in note:
            found += part.split("\n")[0]
            break
        found += text
        column = int(re.search(r"offset 2 and column (\d+)", note)[1])  # type: ignore[index]
    assert found == line
    with pytest.raises(GateError, match=r"line 2 of 'f.js' has 5,000 characters; column 5,001 is past its end"):
        call_in(context, READ_FILE, path="f.js", offset=2, column=5001)


def test_what_editors_are_shown(workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src" / "app.py").write_text("a\nb\nc\n")
    context = context_of(workspace)
    assert READ_FILE.preview is not None
    for args, title, line in (
        ({}, "Read src/app.py", None),
        ({"offset": 2}, "Read src/app.py (from 2)", 2),
        ({"limit": 40}, "Read src/app.py (1–40)", None),
        ({"offset": 2, "limit": 2}, "Read src/app.py (2–3)", 2),
    ):
        for reply in (
            READ_FILE.preview({"path": "./src/app.py", **args}, context),
            call_in(context, READ_FILE, path="./src/app.py", **args),
        ):
            assert reply.title == title
            assert reply.locations == (Location(str(workspace / "src/app.py"), line),)
    (workspace / "link").symlink_to("src/app.py")
    assert READ_FILE.preview({"path": "link"}, context).title == "Read link → src/app.py"
    missing = READ_FILE.preview({"path": "gone.py"}, context)
    assert missing.locations == (Location(str(workspace / "gone.py")),)
    outside = READ_FILE.preview({"path": "../../etc/passwd"}, context)
    assert outside.title == "Read ../../etc/passwd"
    assert outside.locations == ()


def test_what_is_not_there(call: Call, workspace: Path) -> None:
    (workspace / "src").mkdir()
    (workspace / "src" / "main.py").write_text("")
    with pytest.raises(GateError, match=r"no such file: 'src/mian.py'. Did you mean 'src/main.py'\?"):
        call(READ_FILE, path="src/mian.py")
    with pytest.raises(GateError, match=r"no such folder: 'scr'. Did you mean 'src'\?"):
        call(READ_FILE, path="scr/main.py")
    with pytest.raises(GateError, match="'src' is a folder, not a file; list_dir"):
        call(READ_FILE, path="src")
