"""Framing: bytes to lines, in whatever pieces they come."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.acp.wire.jsonrpc import TOO_LONG, LineSplitter


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[a:b] for a, b in pairwise(edges)]


@given(st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"")), max_size=8), st.lists(st.integers(0, 300)))
def test_lines_come_back_however_they_are_cut(lines: list[bytes], places: list[int]) -> None:
    splitter = LineSplitter()
    data = b"".join(line + b"\n" for line in lines)
    assert [line for chunk in cut(data, places) for line in splitter.feed(chunk)] == lines
    assert splitter.end() == []


@given(st.lists(st.integers(0, 40), max_size=8), st.lists(st.integers(0, 300)))
def test_an_overlong_line_is_one_error_and_the_next_line_is_read(lengths: list[int], places: list[int]) -> None:
    splitter = LineSplitter(max_line=20)
    data = b"".join(b"x" * length + b"\n" for length in lengths)
    got = [line for chunk in cut(data, places) for line in splitter.feed(chunk)]
    assert got == [TOO_LONG if length > 20 else b"x" * length for length in lengths]


def test_the_last_line_needs_no_newline() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"one\ntw") == [b"one"]
    assert splitter.feed(b"o") == []
    assert splitter.end() == [b"two"]
    assert splitter.end() == []


def test_an_overlong_line_takes_no_memory() -> None:
    splitter = LineSplitter(max_line=1000)
    reported = 0
    for _ in range(10_000):
        reported += len(splitter.feed(b"x" * 1000))
        assert splitter._size <= 2000
        assert sum(map(len, splitter._parts)) <= 1000
    assert reported == 1
    assert splitter.feed(b"\nnext\n") == [b"next"]
