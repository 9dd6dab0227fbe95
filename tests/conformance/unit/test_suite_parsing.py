"""Reading suites: case by case, with two liberties of YAML, and one broken case by itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.conformance.suite import read_suite
from cantrip_acp.types.errors import DefinitionError


def read(write, text: str) -> list[dict]:
    return [dict(case.data) for case in read_suite(write(text))]


LIBERTIES = [
    ("unquoted reference", "expect: { a: turns[0].id }", {"a": "turns[0].id"}),
    ("first in the mapping", "expect: {a: turns[12].id, b: null}", {"a": "turns[12].id", "b": None}),
    ("in a flow list", "expect: [turns[0].id, turns[1].id]", ["turns[0].id", "turns[1].id"]),
    (
        "quoted references stay",
        "expect: { a: 'turns[0].id', b: \"turns[1].id\", c: turns[2].id }",
        {"a": "turns[0].id", "b": "turns[1].id", "c": "turns[2].id"},
    ),
    (
        "text that holds one stays",
        'expect: { a: "see turns[0].id", c: turns[2].id }',
        {"a": "see turns[0].id", "c": "turns[2].id"},
    ),
    ("comment with an apostrophe", "expect: { a: turns[0].id } # the entity's, isn't it", {"a": "turns[0].id"}),
    (
        "apostrophe in plain text",
        "expect: { n: the entity's own, a: turns[0].id }",
        {"n": "the entity's own", "a": "turns[0].id"},
    ),
    ("block style needs nothing", "expect:\n    a: turns[0].id", {"a": "turns[0].id"}),
    ("length before items", "expect:\n    length: 2\n    - a\n    - b", [{"length": 2}, "a", "b"]),
    (
        "length before deeper items",
        "expect:\n    length: 2\n      - { a: 1 }\n      - b",
        [{"length": 2}, {"a": 1}, "b"],
    ),
    (
        "length with a comment",
        "expect:\n    length: 2  # two\n    # really\n\n    - a\n    - b",
        [{"length": 2}, "a", "b"],
    ),
    ("length of a mapping stays", "expect: { thread: { length: 2 } }", {"thread": {"length": 2}}),
    (
        "both at once",
        "expect:\n    length: 1\n    - { parent_id: turns[0].id }",
        [{"length": 1}, {"parent_id": "turns[0].id"}],
    ),
]


@pytest.mark.parametrize(("yaml", "value"), [pytest.param(y, v, id=i) for i, y, v in LIBERTIES])
def test_liberties(write, yaml: str, value: object) -> None:
    text = f"- rule: A\n  name: before\n- rule: B\n  {yaml}\n- rule: C\n  name: after\n"
    assert read(write, text) == [
        {"rule": "A", "name": "before"},
        {"rule": "B", "expect": value},
        {"rule": "C", "name": "after"},
    ]


def test_block_scalars_are_left_alone(write) -> None:
    code = "x = {a: turns[0].id}\nlength: 3\n- y\n"
    text = """
- rule: A
  setup:
    - code: |
        x = {a: turns[0].id}
        length: 3
        - y
    - folded: >-
        a
        turns[0].id
  expect: { a: turns[1].id }
"""
    assert read(write, text) == [
        {"rule": "A", "setup": [{"code": code}, {"folded": "a turns[0].id"}], "expect": {"a": "turns[1].id"}}
    ]


BROKEN = [
    ("unclosed flow", "  setup: { a: ["),
    ("unclosed quote", '  name: "never closed'),
    ("tab", "  setup:\n\t- a"),
    ("duplicate key", "  name: b\n  rule: again"),
    ("bad indentation", "  setup:\n      a: 1\n    b: 2"),
    ("a colon too many", "  name: a: b"),
    ("an unknown alias", "  setup: *nobody"),
    ("a tag of Python's", "  setup: !!python/object/apply:os.getcwd []"),
    ("binary", "  setup: !!binary aGVsbG8="),
]


@pytest.mark.parametrize("body", [pytest.param(b, id=i) for i, b in BROKEN])
def test_a_broken_case_is_alone(write, body: str) -> None:
    path = write(f"- rule: A\n  name: before\n\n- rule: B\n{body}\n\n- rule: C\n  name: after\n")
    before, broken, after = read_suite(path)
    assert before.data == {"rule": "A", "name": "before"}
    assert after.data == {"rule": "C", "name": "after"}
    assert broken.problem is not None
    assert f"{path}:" in str(broken.problem)
    assert broken.line == 4
    assert broken.problems()[0] == broken.problem


def test_the_place_of_a_fault_is_the_file_s_own(write) -> None:
    path = write("# one\n# two\n- rule: A\n  name: x\n- rule: B\n  name: y\n  setup: { a: 1, a: 2 }\n")
    (_, broken) = read_suite(path)
    assert str(broken.problem).startswith(f"{path}:7:18: not YAML: found duplicate key")


def test_anchors_reach_later_cases(write) -> None:
    text = "- rule: A\n  setup: &s { x: 1 }\n- rule: B\n  setup: *s\n- rule: C\n  setup: { <<: *s, y: turns[0].id }\n"
    assert [case["setup"] for case in read(write, text)] == [{"x": 1}, {"x": 1}, {"x": 1, "y": "turns[0].id"}]


def test_an_anchor_in_a_broken_case_breaks_what_uses_it_and_nothing_else(write) -> None:
    cases = read_suite(write("- rule: A\n  setup: &s { x: [ }\n- rule: B\n  setup: *s\n- rule: C\n  name: fine\n"))
    assert [case.problem is None for case in cases] == [False, False, True]


def test_marks_comments_and_indentation_between_cases(write) -> None:
    text = "\ufeff# head\n---\n# more\n  - rule: A\n    name: a\n\n--- # second\n  - rule: B\n    name: b\n...\n"
    assert read(write, text) == [{"rule": "A", "name": "a"}, {"rule": "B", "name": "b"}]


def test_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "crlf.yaml"
    path.write_bytes(b"- rule: A\r\n  expect: { a: turns[0].id }\r\n- rule: B\r\n  name: b\r\n")
    assert [dict(c.data) for c in read_suite(path)] == [
        {"rule": "A", "expect": {"a": "turns[0].id"}},
        {"rule": "B", "name": "b"},
    ]


def test_json_is_a_suite_too(write) -> None:
    cases = [{"rule": "A", "name": "a"}, {"rule": "B", "name": "b"}]
    assert read(write, json.dumps(cases, indent=2)) == cases


def test_dates_and_odd_keys_are_text(write) -> None:
    text = "- rule: A\n  setup: { on: 2024-05-06, 7: one, true: yes, null: no, f: 1.5 }\n"
    assert read(write, text)[0]["setup"] == {"on": "2024-05-06", "7": "one", "true": "yes", "null": "no", "f": 1.5}


def test_an_item_that_is_no_case(write) -> None:
    text, listed, case = read_suite(write("- just text\n- [a, b]\n- rule: A\n  name: a\n"))
    assert "a case must be a mapping" in str(text.problem)
    assert "a case must be a mapping" in str(listed.problem)
    assert case.problem is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the suite is empty"),
        (b"# only a comment\n---\n", "the suite is empty"),
        (b"rule: A\nname: a\n", "a suite is a YAML list of cases"),
        (b"\xff\xfe- rule", "a suite is UTF-8 text"),
        (b"[{", "not YAML"),
        (b"[] # nothing\n- rule: A\n", "not YAML"),
    ],
)
def test_files_that_are_no_suites(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "no.yaml"
    path.write_bytes(content)
    with pytest.raises(DefinitionError, match=message):
        read_suite(path)


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing.yaml"):
        with pytest.raises(DefinitionError, match="cannot read the suite"):
            read_suite(path)


@given(st.lists(st.text(max_size=60), max_size=8))
def test_no_text_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Whatever stands in a case, the cases around it are read."""
    path = tmp_path_factory.mktemp("fuzz") / "suite.yaml"
    inner = "\n".join("  " + " ".join(line.splitlines()) for line in lines)
    path.write_bytes(
        f"- rule: A\n  name: before\n- rule: B\n{inner}\n- rule: C\n  name: after\n".encode("utf-8", "replace")
    )
    cases = read_suite(path)
    assert cases[0].data == {"rule": "A", "name": "before"}
    assert cases[-1].data == {"rule": "C", "name": "after"}
