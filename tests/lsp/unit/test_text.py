"""Texts and positions: any edits in any encoding come to what a plain text comes to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lsprotocol import types

from cantrip_acp.lsp.server.positions import TextDocument

WORDS = st.text(alphabet="ab:- #é𝄞\u2028\x0c\r\n", max_size=12)


def partial(text: TextDocument, start: int, end: int, new: str) -> types.TextDocumentContentChangePartial:
    return types.TextDocumentContentChangePartial(range=text.range(start, end), text=new)


@given(st.data(), st.sampled_from(["utf-8", "utf-16", "utf-32"]))
@settings(max_examples=150, deadline=None)
def test_edits_in_any_encoding(data: st.DataObject, encoding: str) -> None:
    text = TextDocument(data.draw(WORDS), encoding)
    for _ in range(data.draw(st.integers(1, 6))):
        start = data.draw(st.integers(0, len(text.source)))
        end = data.draw(st.integers(start, len(text.source)))
        new = data.draw(WORDS)
        # Between CR and LF no position points.
        if any(text.source[at - 1 : at + 1] == "\r\n" for at in (start, end)):
            continue
        wanted = text.source[:start] + new + text.source[end:]
        text = text.changed(partial(text, start, end, new))
        assert text.source == wanted


UNITS = st.lists(st.sampled_from(["a", "\n", "é", "\ud834", "\udd1e", "\ud83d", "\ude00"]), max_size=8).map("".join)


def units(text: str) -> str:
    """A text whose characters are 16-bit units."""
    return "".join(chr(unit) for unit in memoryview(text.encode("utf-16-le", "surrogatepass")).cast("H"))


def paired(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


@given(UNITS, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40), UNITS), max_size=8))
@settings(max_examples=300, deadline=None)
def test_edits_between_the_halves_of_a_character(begin: str, edits: list[tuple[int, int, str]]) -> None:
    """A client that counts 16-bit units may cut a character in two, and bring halves together again."""
    text, wanted = TextDocument(paired(begin), "utf-16"), units(begin)
    for one, other, new in edits:
        start, end = sorted((min(one, len(wanted)), min(other, len(wanted))))
        places = [types.Position(wanted.count("\n", 0, at), at - wanted.rfind("\n", 0, at) - 1) for at in (start, end)]
        wanted = wanted[:start] + units(new) + wanted[end:]
        text = text.changed(types.TextDocumentContentChangePartial(types.Range(*places), paired(new)))
        # Opened anew it would be the same text.
        assert ascii(text.source) == ascii(paired(wanted))


@pytest.mark.parametrize(("encoding", "column"), [("utf-8", 6), ("utf-16", 3), ("utf-32", 2)])
def test_columns_count_units(encoding: str, column: int) -> None:
    text = TextDocument("é𝄞x\n", encoding)
    assert text.position(2) == types.Position(0, column)
    assert text.offset(types.Position(0, column)) == 2
    # In the middle of a character means before it, beyond a line its end, beyond the text its end.
    assert text.offset(types.Position(0, 999)) == 3
    assert text.offset(types.Position(9, 0)) == 4


def test_only_the_protocols_line_ends_count() -> None:
    text = TextDocument("a\x0cb\u2028c\x85d\r\ne\rf\n")
    assert [text.line(n) for n in range(5)] == ["a\x0cb\u2028c\x85d", "e", "f", "", ""]


def test_a_reversed_range_is_taken_as_it_is_meant() -> None:
    text = TextDocument("hello")
    reversed_range = types.Range(types.Position(0, 4), types.Position(0, 1))
    assert text.changed(types.TextDocumentContentChangePartial(reversed_range, "")).source == "ho"
