"""Cleaning and bounding, whatever comes and however it is cut."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cantrip_acp.sandbox import Cleaner, Collector, clean
from cantrip_acp.sandbox.launch.output import separate
from cantrip_acp.types.styled import MOST_CHANGES, PLAIN, SGR, Styled, after, join, params_of


@pytest.mark.parametrize(
    ("given_text", "wanted"),
    [
        ("plain\ttext\n", "plain\ttext\n"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07after", "after"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;AAAA\x1b\\x", "x"),
        ("\x1bP1$r0m\x1b\\x", "x"),
        ("\x1b]never ended\nnext line", "\nnext line"),
        ("\x9b31mred\x9c", "red"),
        ("\x1b(Bx\x1b=y\x1bc", "xy"),
        ("a\x08b\x00c\x7fd\x07", "abcd"),
        ("10%\r20%\r\n", "10%\n20%\n"),
        ("a\r\r\nb", "a\nb"),
        ("\x1b", ""),
        ("\x1b[", ""),
        ("abc\u202etxt.exe\u2066", "abctxt.exe"),
        ("ok \U0001f600 ü", "ok \U0001f600 ü"),
    ],
)
def test_cleaning(given_text: str, wanted: str) -> None:
    assert clean(given_text) == wanted


PIECES = st.lists(
    st.one_of(
        st.binary(max_size=6),
        st.sampled_from([b"\x1b[31m", b"\x1b]0;t\x07", b"\xc3", b"\xbc", b"\r", b"\n", b"\xf0\x9f\x98\x80", b"text"]),
    ),
    max_size=30,
)


def forbidden(text: str) -> list[str]:
    return [c for c in text if (ord(c) < 32 and c not in "\n\t") or 0x7F <= ord(c) < 0xA0]


@given(PIECES)
def test_whatever_comes_nothing_forbidden_is_left(pieces: list[bytes]) -> None:
    cleaner = Cleaner()
    text = "".join([cleaner.feed(p) for p in pieces]) + cleaner.finish()
    assert forbidden(text) == []


@given(PIECES, st.integers(1, 7))
@example([b"\xc2\x90", b" ", b"\x1b \x00"], 1)
def test_how_it_is_cut_changes_nothing_of_the_words(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    one, many = Cleaner(), Cleaner()
    at_once = one.feed(whole) + one.finish()
    cut = "".join([many.feed(whole[i : i + size]) for i in range(0, len(whole), size)]) + many.finish()
    assert cut == at_once


def last_states(data: bytes) -> bytes:
    """Each line as it was left: what follows its last carriage return, if something does."""
    lines = [line.rstrip(b"\r").split(b"\r")[-1] for line in data.split(b"\n")]
    return b"\n".join(lines)


@given(st.lists(st.binary(max_size=50), max_size=40), st.integers(1, 300))
def test_a_collector_keeps_its_bound(pieces: list[bytes], limit: int) -> None:
    collector = Collector(limit)
    for piece in pieces:
        collector.feed(piece)
    text = collector.text(limit).text
    assert len(text.encode()) <= limit
    assert forbidden(text) == []
    if collector.total <= limit:
        assert (
            text == clean(last_states(b"".join(pieces)).decode("utf-8", "replace")) or len(text.encode()) >= limit - 3
        )


@given(st.binary(max_size=400), st.binary(max_size=400), st.integers(1, 400))
def test_two_streams_share_one_bound(out: bytes, err: bytes, limit: int) -> None:
    a, b = Collector(limit), Collector(limit)
    a.feed(out)
    b.feed(err)
    first, second, truncated = a.share(b, limit)
    assert len(first.text.encode()) + len(second.text.encode()) <= limit
    # A carriage return at the end of a line that goes on is no output yet.
    assert truncated or len(out.rstrip(b"\r")) + len(err.rstrip(b"\r")) <= limit or b"\r" in out + err
    assert truncated or a.total + b.total <= limit


def test_both_ends_are_kept_and_the_gap_says_how_much_is_missing() -> None:
    collector = Collector(1000)
    collector.feed(b"BEGIN" + b"x" * 5000)
    collector.feed(b"y" * 5000 + b"END")
    text = collector.text(1000).text
    assert text.startswith("BEGIN")
    assert text.endswith("END")
    assert "[… 9,088 bytes not shown …]" in text
    lines = Collector(1000)
    for n in range(50_000):
        lines.feed(b"line %d\n" % n)
        assert lines._tail_size <= 1000 + 20
    lines.feed(b"BUILD OK\n")
    text = lines.text(1000).text
    shown = text.splitlines()
    assert (shown[0], shown[-1]) == ("line 0", "BUILD OK")
    gap = next(at for at, line in enumerate(shown) if line.startswith("[…"))
    first, after = int(shown[gap - 1].split()[1]), int(shown[gap + 1].split()[1])
    assert shown[gap].startswith(f"[… {after - first - 1:,} lines (")


@given(
    st.lists(st.sampled_from([b"a", b"bc", b"\r", b"\n", b"\r\n", "é".encode(), b"\x1b[K", b"50 %"]), max_size=60),
    st.integers(1, 5),
)
def test_a_line_that_is_rewritten_is_one_line_however_it_is_cut(parts: list[bytes], size: int) -> None:
    whole = b"".join(parts)
    collector = Collector(10_000)
    told = ""
    for at in range(0, len(whole), size):
        collector.feed(whole[at : at + size])
        told += collector.read().text
    wanted = clean(last_states(whole).decode("utf-8", "replace"))
    assert collector.text(10_000).text == wanted
    assert told + collector.finish().text == wanted
    assert collector.text(10_000).text == wanted


def test_what_a_progress_bar_says_now_is_no_output() -> None:
    collector = Collector(100)
    collector.feed(b"start\n10 %\r20 %\r30")
    assert collector.read().text == "start\n"
    assert collector.state() == (("20 %", ()), True)
    assert collector.state() is None
    collector.feed(b" %\r100 %\ndone\n")
    assert collector.read().text == "100 %\ndone\n"


def test_a_live_reader_gets_the_beginning_and_then_the_newest_lines() -> None:
    collector = Collector(10)
    collector.feed(b"1234\n")
    assert collector.read().text == "1234\n"
    collector.feed(b"5678\nabcdef")
    assert collector.read().text + collector.finish().text == "5678\nabcdef"
    assert collector.last_line() == "1234\n5678\nabcdef"[-6:]
    flood = Collector(100)
    flood.feed(b"".join(b"line %d\n" % n for n in range(10_000)) + b"OK\n")
    told = flood.read(last=True).text.splitlines()
    gap = next(at for at, line in enumerate(told) if line.startswith("[…"))
    first, after = int(told[gap - 1].split()[1] or 0), int(told[gap + 1].split()[1])
    assert told[-1] == "OK"
    assert 0 < after - first < 10_000


def test_a_part_that_ends_in_a_line_is_read_whole() -> None:
    """What a command printed before a child ran is in the record of that part, so readers get it there too."""
    out, err = Collector(1000), Collector(1000)
    out.feed(b"one\nSeen.")
    assert out.part(err, 1000)[0].text == "one\nSeen."
    out.feed(b" more\n")
    assert out.read().text + out.finish().text == "one\nSeen. more\n"
    assert out.text(1000).text == " more\n"


# --- colours

CODES = [
    "\x1b[31m",
    "\x1b[1m",
    "\x1b[0m",
    "\x1b[m",
    "\x1b[22;4m",
    "\x1b[38;5;200m",
    "\x1b[48;2;1;2;3m",
    "\x1b[39m",
    "\x1b[7m",
]
COLOURED = st.lists(
    st.sampled_from(
        [*CODES, *CODES, "a", "bc", "é", "\n", "\n", "\r", "\x1b[K", "\x1b]8;;x\x07", "\x1b]0;t", "\x1b[2A", "50 %"]
    ),
    max_size=80,
)


def cells(styled: Styled) -> list[tuple[str, str]]:
    """Each character with its style, except for line ends, which have no colour that anybody sees."""
    out, at, style = [], 0, ""
    for place, new in [*styled.changes, (len(styled.text), "")]:
        out += [(c, style) for c in styled.text[at:place] if c != "\n"]
        at, style = place, new
    return out


def cells_of(raw: str) -> list[tuple[str, str]]:
    """The characters of an output with their styles, one code after the other, without what its lines have replaced."""
    out, style = [], PLAIN
    lines = raw.split("\n")
    for number, line in enumerate(lines):
        after_it = "\n" if number < len(lines) - 1 else ""
        body = line.rstrip("\r")
        start = body.rfind("\r") + 1
        for code in SGR.finditer(body, 0, start):
            style = after(style, code[1])
        at = start
        for code in [*SGR.finditer(body, start), None]:
            end = code.start() if code is not None else len(body)
            text = clean(body[at:end] + ("\x1b" if code is not None else after_it))
            out += [(c, params_of(style)) for c in text if c != "\n"]
            if code is not None:
                style, at = after(style, code[1]), code.end()
    return out


@given(st.one_of(st.text(max_size=80), COLOURED.map("".join)))
def test_text_beside_its_colours_is_the_text_without_codes(text: str) -> None:
    styled, _ = separate(text)
    assert styled.text == clean(text)
    places = [at for at, _ in styled.changes]
    assert places == sorted(set(places))
    assert all(0 <= at < len(styled.text) for at in places) or styled.changes[-1][1] == ""


@given(COLOURED, st.integers(1, 9))
def test_the_colours_are_right_however_the_output_is_cut(parts: list[str], size: int) -> None:
    raw = "".join(parts)
    whole = raw.encode()
    collector = Collector(10_000)
    live = []
    for at in range(0, len(whole), size):
        collector.feed(whole[at : at + size])
        live.append(collector.read())
    assert cells(collector.text(10_000)) == cells_of(raw)
    assert cells(join([*live, collector.finish()])) == cells_of(raw)


@given(st.lists(st.sampled_from(CODES), min_size=1, max_size=4), st.integers(0, 30), st.integers(60, 4000))
@example(["\x1b[38;5;200m"], 7, 60)
def test_both_sides_of_a_gap_have_their_colours(codes: list[str], every: int, size: int) -> None:
    """The code of a line that is left out still counts for the lines after it."""
    lines = [f"line {n}\n" for n in range(1500)]
    for n in range(every, 1500, every + 60):
        lines[n] = codes[n % len(codes)] + lines[n]
    raw = "".join(lines)
    out, err = Collector(600), Collector(600)
    whole = raw.encode()
    for at in range(0, len(whole), size):
        out.feed(whole[at : at + size])
    kept, _, truncated = out.share(err, 600)
    assert truncated
    everything = cells_of(raw)
    for shown in (kept, out.finish()):
        first, gap, last = shown.text.partition("[…")
        assert gap
        has = cells(shown)
        assert has[: len(first.replace("\n", ""))] == everything[: len(first.replace("\n", ""))]
        end = last.rpartition("…]\n")[2].replace("\n", "")
        assert end
        assert has[-len(end) :] == everything[-len(end) :]
        assert {style for _, style in has[len(first.replace("\n", "")) :][: len("[… ")]} == {""}


def test_a_part_after_a_child_has_the_colours_from_before() -> None:
    out, err = Collector(3000), Collector(3000)
    out.feed(b"\x1b[31mred\n" * 500)
    out.part(err, 3000)
    out.feed(b"still red\n\x1b[0mplain\n")
    assert out.part(err, 3000)[0] == ("still red\nplain\n", ((0, "31"), (10, "")))


def test_a_state_of_a_line_has_its_colours() -> None:
    collector = Collector(100)
    collector.feed(b"\x1b[32m10 %\r\x1b[1m20 %\r30")
    assert collector.state() == (("20 %", ((0, "1;32"),)), True)
    collector.feed(b" %\x1b[0m\n")
    assert collector.read() == ("30 %\n", ((0, "1;32"), (4, "")))


def test_a_code_for_each_character_costs_little() -> None:
    hostile = b"".join(b"\x1b[38;2;%d;%d;%dmx" % (n % 256, n // 256 % 256, n // 65536) for n in range(550_000))
    assert len(hostile) > 9_000_000
    for data in (hostile, hostile.replace(b"x", b"x\n"), hostile.replace(b"x", b"x\r")):
        collector = Collector(100_000)
        began = time.process_time()
        pieces = 0
        for at in range(0, len(data), 65_536):
            collector.feed(data[at : at + 65_536])
            pieces = max(pieces, len(collector.read().changes))
            assert len(collector._line) + collector._tail_size + len(collector._later) < 400_000
        shown = collector.text(100_000)
        assert time.process_time() - began < 10
        assert len(shown.changes) <= MOST_CHANGES
        assert pieces < 30_000
