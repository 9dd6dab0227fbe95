"""The three-way merge of texts: both changes or a conflict, never a loss. Held against git where git can decide."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.checkpoints.merge import is_text, merge, without

LINES = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"d\n", b"e\n"]), max_size=12).map(b"".join)


@given(LINES, LINES)
def test_a_side_without_changes_yields_the_other(base: bytes, changed: bytes) -> None:
    assert merge(base, base, changed) == changed
    assert merge(base, changed, base) == changed
    assert merge(base, changed, changed) == changed


@given(LINES, LINES, LINES)
def test_it_does_not_matter_who_is_who(base: bytes, ours: bytes, theirs: bytes) -> None:
    assert merge(base, ours, theirs) == merge(base, theirs, ours)


@given(st.lists(st.integers(0, 9), min_size=3, max_size=30), st.data())
def test_changes_that_are_apart_are_both_in_the_result(numbers: list[int], data: st.DataObject) -> None:
    lines = [f"{place}: {number}\n".encode() for place, number in enumerate(numbers)]
    first = data.draw(st.integers(0, len(lines) - 3))
    second = data.draw(st.integers(first + 2, len(lines) - 1))
    ours, theirs = list(lines), list(lines)
    ours[first], theirs[second] = b"ours\n", b"theirs\n"
    both = list(ours)
    both[second] = b"theirs\n"
    assert merge(b"".join(lines), b"".join(ours), b"".join(theirs)) == b"".join(both)


def test_the_same_place_is_a_conflict_and_so_is_its_neighbour() -> None:
    base = b"1\n2\n3\n4\n"
    assert merge(base, b"1\nX\n3\n4\n", b"1\nY\n3\n4\n") is None
    assert merge(base, b"1\nX\n3\n4\n", b"1\n2\nY\n4\n") is None
    assert merge(base, b"1\nX\n3\n4\n", b"1\n2\n3\nY\n") == b"1\nX\n3\nY\n"
    assert merge(b"\0a", b"\0b", b"\0c") is None


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
@pytest.mark.parametrize("ends", ["\n", "\r", "\r\n"])
def test_texts_in_utf_16_are_merged_by_lines(codec: str, ends: str) -> None:
    """Letters may have a byte that is a line end in other encodings."""

    def wide(text: str) -> bytes:
        return ("\ufeff" + text.replace("\n", ends)).encode(codec)

    base, ours, theirs = "one\nĊ 日\nthree\nfour\n", "one\nĊ 日\nthree\nFOUR\n", "ONE\nĊ 日\nthree\nfour\n"
    assert merge(wide(base), wide(ours), wide(theirs)) == wide("ONE\nĊ 日\nthree\nFOUR\n")
    assert merge(wide(base), wide("1\nĊ 日\nthree\nfour\n"), wide(theirs)) is None
    assert without(wide(theirs), wide("ONE\nĊ 日\nthree\nFOUR\n"), wide(base)) == wide(ours)
    # Of another encoding now.
    assert merge(wide(base), ours.encode(), wide(theirs)) is None
    assert is_text(wide(base))
    assert not is_text(b"a\0b")
