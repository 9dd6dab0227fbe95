"""Text of strangers never drives the terminal."""

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.text.sanitize import Cleaner, StyledCleaner, clean, clean_line
from cantrip_acp.types.styled import join

CASES = [
    ("plain ünïcödé 🎉\ttab\n", "plain ünïcödé 🎉\ttab\n"),
    ("a\x1b[31mred\x1b[0m", "ared"),
    ("\x1b]0;title\x07after", "after"),
    ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
    ("\x1b]52;c;ZXZpbA==\x07", ""),
    ("\x1bP+q544e\x1b\\x", "x"),
    ("\x1b(Bx\x1b#8y\x1b=z", "xyz"),
    ("\x9b2Jx\x9d0;t\x9cy", "xy"),
    ("one\r\ntwo\rthree", "one\ntwo\nthree"),
    ("end\r", "end\n"),
    ("bell\x07 back\x08 nul\x00 del\x7f", "bell back nul del"),
    ("\u202egnp.exe\u2069", "\ufffdgnp.exe\ufffd"),
    ("tag\U000e0041s", "tags"),
    ("lone \ud800 half", "lone \ufffd half"),
    ("para\u2029graph", "para\ngraph"),
    ("unfinished \x1b]0;swallow\nnext line", "unfinished \nnext line"),
    ("unfinished \x1b[12;\nnext", "unfinished \nnext"),
    ("\x1b\x1b[31mx", "x"),
    ("\x1b]0;" + "a" * 5000 + "b", "a" * 904 + "b"),
]  # fmt: skip


@pytest.mark.parametrize(("dirty", "tidy"), CASES)
def test_what_is_left(dirty: str, tidy: str) -> None:
    if "a" * 5000 in dirty:
        # After some thousand characters an unfinished sequence is taken for text again.
        assert 0 < len(clean(dirty)) < 1500
    else:
        assert clean(dirty) == tidy


@pytest.mark.parametrize("dirty", [dirty for dirty, _tidy in CASES])
def test_cut_anywhere_it_is_the_same(dirty: str) -> None:
    if len(dirty) > 200:
        return
    for place in range(len(dirty)):
        cleaner = Cleaner()
        pieces = cleaner.feed(dirty[:place]) + cleaner.feed(dirty[place:]) + cleaner.close()
        assert pieces == clean(dirty)


@given(st.lists(st.text(st.sampled_from("\x1b[]P\\;m0a \n\r\x07\x9b\x9d\x9c\u202e\ud800é"), max_size=12), max_size=8))
def test_nothing_that_a_terminal_obeys(pieces: list[str]) -> None:
    cleaner = Cleaner()
    out = "".join(cleaner.feed(piece) for piece in pieces) + cleaner.close()
    assert not [c for c in out if unicodedata.category(c) in ("Cc", "Cs") and c not in "\n\t"]
    assert not re.search("[\u202a-\u202e\u2066-\u2069]", out)
    assert out == clean("".join(pieces))


def test_a_line_is_one_line() -> None:
    assert clean_line("a\nb\t c\x1b[2K\rd") == "a b c d"
    assert clean_line("x" * 500, 10) == "x" * 9 + "…"


@given(
    st.lists(
        st.sampled_from(["\x1b[31m", "\x1b[0m", "\x1b[1;4m", "\x1b[2J", "\x1b]0;t", "\x07", "a", "é\n", "\r", "\x1b"]),
        max_size=20,
    ),
    st.integers(1, 6),
)
def test_colours_are_kept_beside_the_text(parts: list[str], size: int) -> None:
    whole = "".join(parts)
    cut, once = StyledCleaner(), StyledCleaner()
    pieces = join([*(cut.feed(whole[at : at + size]) for at in range(0, len(whole), size)), cut.close()])
    assert pieces.text == clean(whole)
    assert pieces == join([once.feed(whole), once.close()])
    assert re.sub(r"\x1b\[[0-9;]*m", "", pieces.coded()) == pieces.text


def test_a_red_word_between_other_codes() -> None:
    cleaner = StyledCleaner()
    assert cleaner.feed("\x1b[2Ka \x1b[3") == ("a ", ())
    assert cleaner.feed("1mred\x1b]0;t\x07") == ("red", ((0, "31"),))
    assert cleaner.feed(" on\x1b[m off") == (" on off", ((0, "31"), (3, "")))
