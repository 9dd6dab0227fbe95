"""What a gate record keeps of a changed file: enough to show the same change again, and no more than the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.types.file_changes import LIMIT, changes_of, diffs_of
from cantrip_acp.types.records import Diff


def test_a_change_in_a_file_keeps_the_old_text_once() -> None:
    old = "".join(f"line {number}\n" for number in range(1000))
    diff = Diff("/a", old, old.replace("line 500", "line five hundred"))
    (change,) = changes_of([diff], {})
    assert change.new_text == "five hundred"
    assert list(diffs_of([change], {})) == [diff]


@given(st.text("ab\n"), st.text("ab\n"), st.booleans())
def test_every_diff_comes_back(old: str, new: str, is_new: bool) -> None:
    diff = Diff("/a", None if is_new else old, new)
    args = {"path": "/a", "content": "abba"}
    assert list(diffs_of(changes_of([diff], args), args)) == [diff]


def test_a_text_that_is_an_argument_is_not_kept_twice() -> None:
    args = {"path": "a", "content": "whole\n" * 100_000}
    (change,) = changes_of([Diff("/a", None, args["content"])], args)
    assert (change.new_argument, change.new_text) == ("content", "")
    assert list(diffs_of([change], args)) == [Diff("/a", None, args["content"])]


def test_of_a_large_file_the_changed_lines_are_kept() -> None:
    old = "".join(f"line {number}\n" for number in range(60_000))
    (change,) = changes_of([Diff("/a", old, old.replace("line 5000\n", "five\nthousand\n"))], {})
    assert change.excerpt
    (shown,) = diffs_of([change], {})
    assert shown.old_text is not None
    assert shown.old_text.splitlines()[0] == "line 4997"
    assert shown.new_text == shown.old_text.replace("line 5000\n", "five\nthousand\n")


@pytest.mark.parametrize("old", [None, "b" * LIMIT])
def test_a_change_beyond_the_limit_keeps_the_path_alone(old: str | None) -> None:
    first = Diff("/first", None, "x")
    changes = changes_of([first, Diff("/large", old, "a" * LIMIT)], {})
    assert [change.omitted for change in changes] == [False, True]
    assert changes[1].old_text is None
    assert list(diffs_of(changes, {})) == [first]
