"""Gates from functions: the decorator, what parameters may be, and what a function may return."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, TypedDict

import pytest
from pydantic import BaseModel, Field

from cantrip_acp import Cantrip, Circle, Gate, GateContext, ScriptedCrystal, gate
from cantrip_acp.types.errors import DefinitionError


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


class Item(BaseModel):
    name: str
    price: float = Field(gt=0, description="In euros.")


@dataclass
class Order:
    items: list[Item]
    day: date


class Address(TypedDict):
    town: str


def call(gates: list[Any], name: str, args: dict[str, Any]) -> tuple[Any, bool]:
    """What a gate answers in a cast, and whether that is an error."""
    script = [
        {"tool_calls": [{"gate": name, "args": args}]},
        {"tool_calls": [{"gate": "done", "args": {"answer": 1}}]},
    ]
    cantrip = Cantrip(ScriptedCrystal(script), circle=Circle(gates=["done", *gates], wards={"max_turns": 3}))
    assert cantrip.cast_sync("call it").result == 1
    [record] = [r for turn in cantrip.loom.turns() for r in turn.observation.results if r.gate != "done"]
    return record.result, record.is_error


def test_a_decorated_function_stays_a_function_and_is_a_gate() -> None:
    @gate
    def add(a: int, b: int = 2) -> int:
        """Add two numbers."""
        return a + b

    assert add(1) == 3
    assert call([add], "add", {"a": 4}) == (6, False)
    made = Circle(gates=["done", add]).gates["add"]
    assert (made.signature(), made.description, made.blocking) == ("add(a, b?)", "Add two numbers.", True)
    assert made.properties["b"] == {"type": "integer", "default": 2}


async def test_the_decorator_takes_the_options_of_a_gate() -> None:
    @gate(name="notes.save", description="Keep it.", pure=True, writes=True, kind="edit", ephemeral=True)
    async def save(text: str) -> str:
        return text

    assert await save("x") == "x"
    made = Circle(gates=["done", save]).gates["notes.save"]
    assert (made.pure, made.writes, made.kind, made.ephemeral) == (True, True, "edit", True)
    assert (made.description, made.blocking) == ("Keep it.", False)


def test_a_method_is_a_gate_of_its_object() -> None:
    class Shop:
        def __init__(self, stock: int) -> None:
            self.stock = stock

        @gate(name="shop.stock")
        def left(self, item: str) -> int:
            """How many are left."""
            return self.stock

        async def price(self, item: str) -> float:
            return 2.5

    assert call([Shop(7).left], "shop.stock", {"item": "pen"}) == (7, False)
    assert call([Shop(7).price], "price", {"item": "pen"}) == (2.5, False)


def test_a_function_may_return_models_and_dataclasses() -> None:
    def order() -> Order:
        return Order([Item(name="pen", price=2)], date(2026, 1, 2))

    def items() -> dict[str, Item]:
        return {"first": Item(name="pen", price=2)}

    def sizes() -> tuple[Size, Address]:
        return Size.SMALL, {"town": "Turin"}

    item = {"name": "pen", "price": 2.0}
    assert call([order], "order", {}) == ({"items": [item], "day": "2026-01-02"}, False)
    assert call([items], "items", {}) == ({"first": item}, False)
    assert call([sizes], "sizes", {}) == (["small", {"town": "Turin"}], False)


def test_what_no_json_can_hold_is_an_error_that_names_its_type() -> None:
    def thing() -> object:
        return object()

    result, is_error = call([thing], "thing", {})
    assert is_error
    assert "a value of type object is not JSON data" in result


def test_parameters_may_be_models_dataclasses_and_other_types() -> None:
    seen: list[Any] = []

    @gate
    def buy(
        order: Order,
        to: Address,
        size: Size = Size.SMALL,
        tags: set[str] | None = None,
        count: Annotated[int, Field(ge=1)] = 1,
        note: Annotated[str, "For the driver."] = "",
        how: Literal["fast", "cheap"] = "cheap",
    ) -> str:
        """Buy it."""
        seen.append((order, to, size, tags, count, note, how))
        return "bought"

    args = {"order": {"items": [{"name": "pen", "price": 2}], "day": "2026-01-02"}, "to": {"town": "Turin"}}
    assert call([buy], "buy", {**args, "size": "large", "tags": ["a", "b"]}) == ("bought", False)
    order = Order([Item(name="pen", price=2)], date(2026, 1, 2))
    assert seen.pop() == (order, {"town": "Turin"}, Size.LARGE, {"a", "b"}, 1, "", "cheap")
    schema = Gate.of(buy).parameters
    assert schema["$defs"]["Item"]["properties"]["price"]["description"] == "In euros."
    assert schema["properties"]["note"] == {"type": "string", "description": "For the driver.", "default": ""}
    assert schema["required"] == ["order", "to"]
    args["order"]["items"][0]["price"] = -1  # type: ignore[index]
    result, is_error = call([buy], "buy", args)
    assert is_error
    assert "order.items.0.price" in result
    assert not seen


def test_what_only_the_type_itself_can_check_is_told_to_the_entity() -> None:
    def plan(day: date) -> str:
        return day.isoformat()

    assert call([plan], "plan", {"day": "2026-01-02"}) == ("2026-01-02", False)
    result, is_error = call([plan], "plan", {"day": "tomorrow"})
    assert is_error
    assert result.startswith("argument 'day' is not valid: Input should be a valid date")


def test_data_in_a_text_of_json_are_taken_where_the_text_itself_does_not_fit() -> None:
    def total(items: list[Item], factor: int = 1) -> float:
        """Add the prices."""
        return sum(item.price for item in items) * factor

    def keep(text: str) -> str:
        """Keep a text."""
        return text

    pen = '{"name": "pen", "price": 2}'
    assert call([total], "total", {"items": f"[{pen}, {pen}]"}) == (4.0, False)
    assert call([total], "total", {"items": [pen, {"name": "ink", "price": 1}]}) == (3.0, False)
    assert call([keep], "keep", {"text": pen}) == (pen, False), "a text that fits stays a text"
    result, is_error = call([total], "total", {"items": "[{"})
    assert is_error
    assert "'[{' is not of type 'array'" in result
    result, is_error = call([total], "total", {"items": '[{"name": "pen"}]'})
    assert is_error
    assert "is not of type" in result, "the error is about what was sent"


def test_keyword_only_parameters_are_not_for_the_entity() -> None:
    def greet(name: str, *, context: GateContext, greeting: str = "Hello") -> str:
        return f"{greeting} {name} of {context.entity_id[:2]}"

    assert Gate.of(greet).signature() == "greet(name)"
    assert call([greet], "greet", {"name": "Ann"}) == ("Hello Ann of e_", False)
    assert call([Gate.of(greet).bind(greeting="Bye")], "greet", {"name": "Ann"}) == ("Bye Ann of e_", False)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: gate(pur=True), "gate\\(\\) has no option 'pur' \\(options: name, description, pure"),
        (lambda: gate(5), "@gate is for functions, not for a value of type int"),
        (lambda: Circle(gates=["done", lambda *args: 1]), "must name its parameters"),
        (lambda: Circle(gates=["done", 5]), "a gate must be a name, a mapping, a function or a Gate, not 5"),
        (
            lambda: Circle(gates=["done", _opaque]),
            "parameter 'x' of gate function '_opaque': Opaque has no JSON Schema",
        ),
        (lambda: Circle(gates=["done", _unknown]), "'_unknown' has an annotation that cannot be read: .*Nowhere"),
    ],
)
def test_what_cannot_be_a_gate_is_said(make: Any, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        make()


class Opaque:
    pass


def _opaque(x: Opaque) -> int:
    return 1


def _unknown(x: Nowhere) -> int:  # type: ignore[name-defined]  # noqa: F821
    return 1


def test_a_context_that_the_model_would_have_to_write_is_refused() -> None:
    def count(path: str, context: GateContext) -> int:
        """Count."""
        return 0

    with pytest.raises(DefinitionError, match=r"put a \* before it: def gate\(\.\.\., \*, context: GateContext\)"):
        Gate.of(count)
