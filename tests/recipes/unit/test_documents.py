"""YAML 1.2 to plain data: what values mean, and where they stand."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from cantrip_acp.recipes.parse.document import parse
from cantrip_acp.types.errors import RecipeError


def data(text: str, name: str = "r.yaml") -> Any:
    return parse(text.encode(), Path(name)).data


def verdict(text: str, name: str) -> tuple[Any, str | None]:
    """The data, or the first line of why there is none."""
    try:
        return data(text, name), None
    except RecipeError as error:
        return None, error.places[0]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("on", "on"),
        ("yes", "yes"),
        ("No", "No"),
        ("true", True),
        ("TRUE", True),
        ("False", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("12", 12),
        ("-3", -3),
        ("+4", 4),
        ("012", 12),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("0b11", "0b11"),
        ("1.5", 1.5),
        (".5", 0.5),
        ("1.", 1.0),
        ("1e3", 1000.0),
        (".", "."),
        ("2001-01-01", "2001-01-01"),
        ("'12'", "12"),
        ('"true"', "true"),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ("|\n  a\n  b\n", "a\nb\n"),
        (">\n  a\n  b\n", "a b\n"),
        ("=", "="),
        ('"\\ud83d\\ude00"', "😀"),
        ("'\u00e4\u00f6'", "äö"),
    ],
)
def test_yaml_values_are_those_of_version_1_2(text: str, value: Any) -> None:
    found = data(f"k: {text}")["k"]
    assert found == value
    assert type(found) is type(value)


def test_a_byte_order_mark_is_passed_over() -> None:
    assert parse(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n", Path("r.yaml")).data == {"a": 1, "b": 2}


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs", "Cc", "Co", "Cn"], exclude_characters="\u2028\u2029\ufeff")),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text("abc<-. é", min_size=1, max_size=6), inner, max_size=4)
    ),
    max_leaves=15,
)


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(st.text("abz", min_size=1), _JSON, min_size=1))
def test_json_is_yaml(value: dict[str, Any]) -> None:
    assert data(json.dumps(value, ensure_ascii=False)) == value
    assert data(json.dumps(value, indent=2)) == value


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text("abz", min_size=1), _JSON, min_size=1))
def test_what_another_writer_wrote_is_read_back(value: dict[str, Any]) -> None:
    import io

    out = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_unicode = True
    yaml.width = 1_000_000  # its folded keys are more than it can read back itself
    yaml.dump(value, out)
    try:
        again = yaml.load(out.getvalue())
    except YAMLError:
        again = None
    # It writes some texts (":0" among braces) that it cannot read back itself.
    assume(again == value)
    assert data(out.getvalue()) == value


@settings(max_examples=300, deadline=None)
@given(st.text("ab:-[]{}#&*!|>'\"%@`,? \n\t01~.", max_size=40))
def test_no_yaml_text_crashes(text: str) -> None:
    _, refused = verdict(text, "r.yaml")
    assert refused is None or refused.startswith("r.yaml:")


def test_yaml_places() -> None:
    text = "a:\n  - b: 1\n    c: &x\n      - d\n  - {e: *x}\n"
    document = parse(text.encode(), Path("r.yaml"))
    assert document.places.key(("a", 0, "c")) == (3, 5)
    assert document.places.value(("a", 0, "c", 0)) == (4, 9)
    assert document.places.value(("a", 1, "e")) == (5, 9)
    # What is not there: the nearest thing around it.
    assert document.places.value(("a", 0, "missing", 3)) == (2, 5)


def test_very_many_brackets_end_soon() -> None:
    with pytest.raises(RecipeError, match="nested more than 100"):
        data("[" * 200_000)
