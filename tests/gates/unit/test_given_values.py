"""Arguments as models and servers write them, and what gates return: a gate gets the types that it declares."""

from __future__ import annotations

import ipaddress
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field

from cantrip_acp import Cantrip, Circle, Gate, ScriptedCrystal
from cantrip_acp.gates.contract import Gate as DeclaredGate


class Point(BaseModel):
    x: int
    y: int = 0


class Person(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    first_name: str = Field(alias="firstName")
    photo: bytes = b""


@dataclass
class Host:
    address: ipaddress.IPv4Address
    home: Path
    last: deque[int]


def call(gate: Any, args: dict[str, Any], name: str = "") -> tuple[Any, bool]:
    script = [
        {"tool_calls": [{"gate": name or getattr(gate, "__name__", ""), "args": args}]},
        {"tool_calls": [{"gate": "done", "args": {"answer": 1}}]},
    ]
    cantrip = Cantrip(ScriptedCrystal(script), circle=Circle(gates=["done", gate], wards={"max_turns": 3}))
    assert cantrip.cast_sync("call it").result == 1
    [record] = [r for turn in cantrip.loom.turns() for r in turn.observation.results if r.gate != "done"]
    return record.result, record.is_error


@pytest.mark.parametrize(
    ("kind", "given", "got"),
    [
        (int, 3.0, "3"),
        (int | None, 3.0, "3"),
        (list[int], [1.0, 2.0], "[1, 2]"),
        (dict[str, int], {"a": 1.0}, "{'a': 1}"),
        (Literal[1, 2], 1.0, "1"),
        (int | str, 3.0, "3"),
        (float, 3.0, "3.0"),
        (int | float, 3.0, "3.0"),
        (Any, 3.0, "3.0"),
        (Point, {"x": 3.0}, "Point(x=3, y=0)"),
        (list[Point], [{"x": 3.0, "y": None}], "[Point(x=3, y=0)]"),
        (int, "2", "2"),
        (float, "2.5", "2.5"),
        (bool, "true", "True"),
        (list[int], ["1", "2"], "[1, 2]"),
        (list[int], "[1, 2.0]", "[1, 2]"),
        (int | None, "null", "None"),
        (str, "2", "'2'"),
        (int | str, "2", "'2'"),
        (Literal["2", 3], "2", "'2'"),
    ],
)
def test_a_gate_gets_the_type_that_it_declares(kind: Any, given: Any, got: str) -> None:
    def take(value: kind) -> str:
        return repr(value)

    take.__annotations__["value"] = kind
    assert call(take, {"value": given}) == (got, False)


@pytest.mark.parametrize(
    ("kind", "given"), [(int, 3.5), (int, "two"), (bool, "yes"), (int, ""), (int, True), (dict[str, int], {"a": "x"})]
)
def test_what_may_mean_something_else_is_refused(kind: Any, given: Any) -> None:
    def take(value: kind) -> str:
        return repr(value)

    take.__annotations__["value"] = kind
    said, is_error = call(take, {"value": given})
    assert is_error
    assert "arguments do not fit gate take(value)" in said


@pytest.mark.parametrize("deep", [190, 400, 900])
def test_deeply_nested_arguments_are_an_answer_and_no_crash(deep: int) -> None:
    nested: Any = 1.5
    for _ in range(deep):
        nested = [nested]

    def take(value: list[Any], n: int = 1) -> str:
        return "taken"

    assert call(take, {"value": nested})[0] == "taken" or call(take, {"value": nested})[1]
    assert call(take, {"value": nested, "n": "x"})[1]


def test_null_for_an_optional_parameter_means_not_given() -> None:
    def take(text: str, n: int = 5, point: Point = Point(x=1), either: int | None = 7, none: int = None) -> str:  # type: ignore[assignment]  # noqa: B008, RUF013
        return repr((text, n, point, either, none))

    args = {"text": "a", "n": None, "point": None, "either": None, "none": None}
    assert call(take, args) == ("('a', 5, Point(x=1, y=0), None, None)", False)
    said, is_error = call(take, {"text": None})
    assert is_error
    assert "text: None is not of type 'string'" in said


def test_gates_with_a_schema_of_their_own_get_the_same() -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}, "limit": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    echo = DeclaredGate("echo", "Says it.", schema, lambda args, context: repr(dict(args)))
    assert call(echo, {"n": 3.0, "limit": None}, "echo") == ("{'n': 3}", False)
    assert call(echo, {"n": "3"}, "echo") == ("{'n': 3}", False)


def test_paths_addresses_and_deques_come_back() -> None:
    def path() -> Path:
        return Path("/tmp/a")

    def many() -> dict[str, Any]:
        return {
            "ip": ipaddress.ip_address("10.0.0.1"),
            "net": ipaddress.ip_network("10.0.0.0/8"),
            "queue": deque([1, Path("b")]),
            "host": Host(ipaddress.IPv4Address("10.0.0.2"), Path("c"), deque([1])),
        }

    assert call(path, {}) == ("/tmp/a", False)
    host = {"address": "10.0.0.2", "home": "c", "last": [1]}
    assert call(many, {}) == (
        {"ip": "10.0.0.1", "net": "10.0.0.0/8", "queue": [1, "b"], "host": host},
        False,
    )


def test_a_returned_model_has_the_names_of_its_schema() -> None:
    def hire(person: Person) -> Person:
        return person

    properties = Gate.of(hire).properties["person"]["properties"]
    assert list(properties) == ["firstName", "photo"]
    result, is_error = call(hire, {"person": {"firstName": "Ada", "photo": "abc"}})
    assert not is_error
    assert result == {"firstName": "Ada", "photo": "abc"}
    assert call(hire, {"person": result}) == (result, False)


def test_bytes_in_a_model_that_are_no_text_become_base64() -> None:
    def person() -> list[Person]:
        return [Person(firstName="Ada", photo=b"\xff\xfe")]

    assert call(person, {}) == ([{"firstName": "Ada", "photo": "//4="}], False)


@pytest.mark.parametrize(
    "name",
    [
        "functions.look",
        "default_api.look",
        "functions:look",
        "tools.look",
        "look<|channel|>commentary",
        "functions.look<|channel|>analysis",
        "to=functions.look",
        " look ",
        "look(",
        "'look'",
        "loook",
    ],
)
def test_a_name_in_the_form_of_another_format_is_suggested(name: str) -> None:
    def look() -> str:
        return "seen"

    said, is_error = call(look, {}, name)
    assert is_error
    assert "Did you mean 'look'?" in said
