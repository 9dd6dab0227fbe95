"""Types of Python as JSON Schema, and JSON data as values of them: for results of casts and arguments of gates.

pydantic does the work. Its import takes as long as the start of an agent, so it waits for the first type that needs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic

import msgspec

from cantrip_acp.text.codecs import json_decoder
from cantrip_acp.text.json_data import FrozenDict, freeze, thaw
from cantrip_acp.text.json_schema import Schema
from cantrip_acp.types.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import TypeVar

    Value = TypeVar("Value", default=Any)
else:
    from typing import TypeVar

    Value = TypeVar("Value")

_SHOWN_ERRORS = 5


class PythonType(Generic[Value]):
    """A type whose values are made of JSON data: a pydantic model, a dataclass, a TypedDict, ``list[int]`` and so on.

    Raises `DefinitionError` for a type that has no JSON Schema. ``where`` names its place in that error.
    """

    __slots__ = ("_load", "_schema", "kind")

    def __init__(self, kind: Any, where: str) -> None:
        import pydantic

        self.kind = kind
        self._load: Callable[[bytes], Any]
        try:
            adapter = pydantic.TypeAdapter(kind)
            self._schema, self._load = adapter.json_schema(), adapter.validate_json
        except pydantic.PydanticUserError as error:
            if error.code != "typed-dict-version":
                raise DefinitionError(f"{where}: {self.name} has no JSON Schema: {_first_line(error)}") from None
            # Before Python 3.12 pydantic cannot read `typing.TypedDict`, and msgspec can.
            self._schema, self._load = _msgspec_schema(kind), json_decoder(kind).decode
        except (TypeError, ValueError, NameError) as error:
            raise DefinitionError(f"{where}: {self.name} has no JSON Schema: {_first_line(error)}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return PythonType, (self.kind, "type")

    @property
    def name(self) -> str:
        """The type as people write it, such as ``Review`` or ``list[int]``."""
        return self.kind.__name__ if type(self.kind) is type or _is_class(self.kind) else str(self.kind)

    def schema(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The JSON Schema, and the definitions to which its references ``#/$defs/NAME`` point."""
        schema = thaw(self._schema)
        return schema, schema.pop("$defs", {})

    def load(self, data: Any) -> Value:
        """The value of JSON data. Raises `ValueError`, whose text says for each wrong part where it is and what is wrong."""
        import pydantic

        try:
            value: Value = self._load(msgspec.json.encode(data))
        except pydantic.ValidationError as error:
            raise ValueError("; ".join(_problems(error))) from None
        except msgspec.ValidationError as error:
            raise ValueError(str(error)) from None
        return value


class SchemaType(PythonType[Any]):
    """JSON data that fits a JSON Schema. Its values are the data.

    Raises `DefinitionError` for a schema that is not valid, or that refers to anything but its own ``$defs``.
    """

    __slots__ = ("_schema_check",)

    def __init__(self, schema: Mapping[str, Any], where: str) -> None:
        problem = schema_problem(schema)
        if problem is not None:
            raise DefinitionError(problem, where=where)
        self.kind = FrozenDict(freeze(dict(schema)))
        self._schema = thaw(self.kind)
        self._schema_check = Schema(self._schema)

    def __reduce__(self) -> tuple[Any, ...]:
        return SchemaType, (thaw(self.kind), "result_schema")

    @property
    def name(self) -> str:
        """The title of the schema, or ``result``."""
        title = self._schema.get("title")
        return title if isinstance(title, str) and title.strip() else "result"

    def load(self, data: Any) -> Any:
        try:
            problems = self._schema_check.problems(thaw(data), _SHOWN_ERRORS)
        except (TypeError, RecursionError) as error:
            raise ValueError(f"it is not JSON data ({error})") from None
        if problems:
            raise ValueError("; ".join(each[:500] for each in problems))
        return thaw(data)


def schema_problem(schema: Any) -> str | None:
    """Why this cannot be the JSON Schema of results; None if it can."""
    if not isinstance(schema, Mapping):
        return "must be a JSON Schema: a mapping such as {type: object, properties: {…}}"
    data = thaw(schema)
    for reference in _references(data):
        if not reference.startswith("#/$defs/"):
            return f"refers to {reference[:80]!r}; a schema of results can only refer to its own #/$defs/NAME"
    try:
        Schema(data).problems(None, 1)
    except (ValueError, RecursionError) as error:
        return f"is not a valid JSON Schema: {_first_line(error)[:300]}"
    return None


def _references(data: Any) -> Iterator[str]:
    if isinstance(data, Mapping):
        for key, value in data.items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            else:
                yield from _references(value)
    elif isinstance(data, list | tuple):
        for each in data:
            yield from _references(each)


def _problems(error: Any) -> list[str]:
    found = []
    for each in error.errors(include_url=False, include_context=False, include_input=False)[:_SHOWN_ERRORS]:
        place = ".".join(map(str, each["loc"]))
        found.append(f"{place}: {each['msg']}" if place else str(each["msg"]))
    return found


def _msgspec_schema(kind: Any) -> dict[str, Any]:
    (schema,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    return {**schema, "$defs": parts} if parts else schema


def _is_class(kind: Any) -> bool:
    return isinstance(kind, type) and not getattr(kind, "__args__", None)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
