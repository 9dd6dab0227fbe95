"""Texts and positions: any edits in any encoding come to what a plain text comes to."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lsprotocol import types

from cantrip_acp.lsp.text import Text

WORDS = st.text(alphabet="ab:- #é𝄞\u2028\x0c\r\n", max_size=12)


def partial(text: Text, start: int, end: int, new: str) -> types.TextDocumentContentChangePartial:
    return types.TextDocumentContentChangePartial(range=text.range(start, end), text=new)


@given(st.data(), st.sampled_from(["utf-8", "utf-16", "utf-32"]))
@settings(max_examples=150, deadline=None)
def test_edits_in_any_encoding(data: st.DataObject, encoding: str) -> None:
    text = Text(data.draw(WORDS), encoding)
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


@pytest.mark.parametrize(("encoding", "column"), [("utf-8", 6), ("utf-16", 3), ("utf-32", 2)])
def test_columns_count_units(encoding: str, column: int) -> None:
    text = Text("é𝄞x\n", encoding)
    assert text.position(2) == types.Position(0, column)
    assert text.offset(types.Position(0, column)) == 2
    # In the middle of a character means before it, beyond a line its end, beyond the text its end.
    assert text.offset(types.Position(0, 999)) == 3
    assert text.offset(types.Position(9, 0)) == 4


def test_only_the_protocols_line_ends_count() -> None:
    text = Text("a\x0cb\u2028c\x85d\r\ne\rf\n")
    assert [text.line(n) for n in range(5)] == ["a\x0cb\u2028c\x85d", "e", "f", "", ""]


def test_a_reversed_range_is_taken_as_it_is_meant() -> None:
    text = Text("hello")
    reversed_range = types.Range(types.Position(0, 4), types.Position(0, 1))
    assert text.changed(types.TextDocumentContentChangePartial(reversed_range, "")).source == "ho"
