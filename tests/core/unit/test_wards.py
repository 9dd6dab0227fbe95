"""Wards: values, composition as a pure function (WARD-1, D-009), and that no composition loosens anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp import DefinitionError, Wards
from cantrip_acp.gates.wards import WARDS, compose

NUMBERS = [n for n, s in WARDS.items() if s["rule"] == "min"]
PATHS = ["/w", "/w/a", "/w/a/b", "/w/ab", "/x", "/"]
VALUES: dict[str, Any] = {
    "number": st.one_of(st.just(None), st.integers(16, 40)),
    "boolean": st.booleans(),
    "network": st.one_of(st.booleans(), st.lists(st.sampled_from(["a", "b", "c"]), unique=True).map(tuple)),
    "paths": st.lists(st.sampled_from(PATHS), unique=True, max_size=3).map(tuple),
    "names": st.lists(st.sampled_from("abc"), unique=True).map(tuple),
    "protected": st.lists(st.sampled_from([".helix", ".zed", "opencode.json"]), unique=True).map(tuple),
    "home": st.sampled_from(["private", "persistent"]),
}


@st.composite
def wards(draw: Any) -> Wards:
    values = {}
    for name, spec in WARDS.items():
        kind = "number" if spec["kind"] in ("integer", "number") else spec["kind"]
        value = draw(VALUES[kind])
        if value is None and spec["default"] is not None:
            value = spec["default"]
        values[name] = value
    return Wards(**values)


def looser(rule: str, a: Any, b: Any) -> bool:
    """Whether value a allows anything that value b does not."""
    match rule:
        case "min":
            return b is not None and (a is None or a > b)
        case "or":
            return b and not a
        case "and":
            return (set() if a is False else {"*"} if a is True else set(a)) > set() and not (
                b is True or (a is not True and b is not False and set(a) <= set(b))
            )
        case "paths":
            return any(not any(p == q or q == "/" or p.startswith(q + "/") for q in b) for p in a)
        case "allow":
            return b is not None and (a is None or not set(a) <= set(b))
        case "deny":
            return not set(a) >= set(b)
        case _:
            return a == "persistent" and b == "private"


@given(wards(), wards())
def test_a_child_is_never_looser_than_either(parent: Wards, child: Wards) -> None:
    both = compose(parent, child)
    for name, spec in WARDS.items():
        for one in (parent, child):
            assert not looser(spec["rule"], getattr(both, name), getattr(one, name)), name


@given(wards(), wards(), wards())
def test_composition_is_idempotent_and_associative(a: Wards, b: Wards, c: Wards) -> None:
    def plain(w: Wards) -> dict[str, Any]:
        return {n: set(v) if isinstance(v := getattr(w, n), tuple) else v for n in WARDS}

    # Paths: two equal lists may compose to a shorter one, without folders that lie in another of the list.
    values = [n for n in WARDS if WARDS[n]["rule"] != "paths"]
    assert {n: plain(compose(a, a))[n] for n in values} == {n: plain(a)[n] for n in values}
    assert {n: plain(compose(compose(a, b), c))[n] for n in NUMBERS} == {
        n: plain(compose(a, compose(b, c)))[n] for n in NUMBERS
    }
    swapped, straight = plain(compose(b, a)), plain(compose(a, b))
    assert swapped == straight


@pytest.mark.parametrize(
    ("name", "parent", "child", "both"),
    [
        ("max_turns", 5, 10, 5),
        ("max_seconds", None, 3.5, 3.5),
        ("require_done_tool", False, True, True),
        ("bash_network", True, ("a",), ("a",)),
        ("bash_network", ("a", "b"), ("b", "c"), ("b",)),
        ("bash_network", False, True, False),
        ("bash_submit", True, False, False),
        ("bash_writable_paths", ("/w",), ("/w/src", "/etc"), ("/w/src",)),
        ("bash_writable_paths", ("/w",), ("/wide",), ()),
        ("bash_writable_paths", (), ("/w",), ()),
        ("remove_gate", ("a",), ("b",), ("a", "b")),
        ("child_gate_allowlist", None, ("a",), ("a",)),
        ("child_gate_allowlist", ("a", "b"), ("b", "c"), ("b",)),
        ("bash_home", "persistent", "private", "private"),
        ("bash_timeout_ms", 120_000, 900_000, 120_000),
    ],
)
def test_the_table(name: str, parent: Any, child: Any, both: Any) -> None:
    assert getattr(compose(Wards(**{name: parent}), Wards(**{name: child})), name) == both


def test_reading_wards() -> None:
    wards = Wards.of(
        [{"max_turns": 10}, {"max_turns": 4}, {"bash_writable_paths": ["src", "workspace", "/x/../y"]}], base=Path("/w")
    )
    assert wards.max_turns == 4
    assert wards.bash_writable_paths == ("/w/src", "/w", "/y")
    assert Wards.of({"remove_gate": "echo"}).remove_gate == ("echo",)
    assert wards.declared() == {"max_turns": 4, "bash_writable_paths": ["/w/src", "/w", "/y"]}


@pytest.mark.parametrize(
    ("ward", "text"),
    [
        ({"max_turn": 3}, "did you mean 'max_turns'"),
        ({"max_turns": 0}, "at least 1"),
        ({"max_turns": "3"}, "integer"),
        ({"max_turns": True}, "integer"),
        ({"max_turns": None}, "integer"),
        ({"max_seconds": 0}, "above 0"),
        ({"max_seconds": float("nan")}, "number"),
        ({"require_done_tool": 1}, "true or false"),
        ({"bash_network": "on"}, None),
        ({"bash_network": 3}, "hosts"),
        ({"bash_network": [{"host": "a.corp", "private": 1}]}, "hosts"),
        ({"bash_network": [{"host": "a.corp", "port": 1}]}, "hosts"),
        ({"bash_network": [{"private": True}]}, "hosts"),
        ({"bash_home": "big"}, "private or persistent"),
        ({"remove_gate": [1]}, "list of texts"),
        ("max_turns", "mapping"),
    ],
)
def test_values_that_do_not_fit(ward: Any, text: str | None) -> None:
    if text is None:
        assert Wards.of([ward]).bash_network == ("on",)
        return
    with pytest.raises(DefinitionError, match=text):
        Wards.of([ward])


@pytest.mark.parametrize(
    ("value", "hosts"),
    [
        ({"host": "Mirror.corp", "private": True}, ("private:mirror.corp",)),
        (["b", {"host": "a.corp"}, {"host": "c.corp", "private": False}], ("b", "a.corp", "c.corp")),
    ],
)
def test_hosts_that_are_mappings(value: Any, hosts: tuple[str, ...]) -> None:
    assert Wards.of([{"bash_network": value}]).bash_network == hosts
