"""Field types of recipes (text, path, number, flag, choice), each with its check and its JSON Schema; and `Model`.

The check and the JSON Schema must accept the same data. So patterns have the same meaning in every dialect of regular
expressions (no end anchors, no ``\\s``), and 10.0 is a whole number, as in JSON Schema.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from cantrip_acp.gates.wards import host_entry

SHOWN = 60
"""Maximum characters of a wrong value in an error text."""

_PASSWORD = re.compile(r"(:/*[^/\s:@]*:)\S*@")
"""A password in an address, even if the address is not valid."""


def show_value(value: Any) -> str:
    """The text of a wrong value in an error: short, without passwords, and without the content of lists and mappings."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = _PASSWORD.sub(r"\1***@", repr(value))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def wrong(wanted: str, value: Any, *mend: str) -> PydanticCustomError:
    """The error for a value of the wrong kind. ``mend`` are the arguments of the `problem_positions.Mend` that fixes it."""
    context: dict[str, Any] = {"wanted": f"must be {wanted}", "value": show_value(value)}
    return PydanticCustomError("value", "{wanted}, not {value}", context | ({"mend": mend} if mend else {}))


@dataclass(frozen=True, eq=False)
class Kind:
    """Metadata for `Annotated`: a function that returns the checked value or raises, and the matching JSON Schema."""

    check: Callable[[Any], Any]
    schema: dict[str, Any]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self.check)

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: Any) -> dict[str, Any]:
        return dict(self.schema)


_FLAGS = {word: truth for truth, words in ((True, "on On ON"), (False, "off Off OFF")) for word in words.split()}


FLAG_WORDS = list(_FLAGS)


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in _FLAGS:
        return _FLAGS[value]
    raise wrong("true or false", value, "boolean")


Flag = Annotated[bool, Kind(flag, {"anyOf": [{"type": "boolean"}, {"enum": FLAG_WORDS}]})]
"""A boolean. The texts ``on`` and ``off`` are accepted too, because YAML 1.2 does not read them as booleans."""


def whole(low: int, high: int | None = None, *, what: str = "a whole number") -> Kind:
    """A whole number from ``low`` to ``high``."""
    span = f"from {low} to {high}" if high is not None else f"of at least {low}"

    def check(value: Any) -> int:
        good = (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
        if not good or value < low or (high is not None and value > high):
            raise wrong(f"{what} {span}", value, "number", str(low) if high is None else "")
        return int(value)

    return Kind(check, {"type": "integer", "minimum": low} | ({"maximum": high} if high is not None else {}))


def number(low: float, high: float | None = None, *, above: bool = False) -> Kind:
    """A number from ``low`` (or above it) to ``high``."""
    span = f"above {low:g}" if above else f"from {low:g} to {high:g}" if high is not None else f"of at least {low:g}"

    def check(value: Any) -> int | float:
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or (value <= low if above else value < low) or (high is not None and value > high):
            raise wrong(f"a number {span}", value, "number", f"{low:g}" if high is None and not above else "")
        number: int | float = value
        return number

    schema = {"type": "number", "exclusiveMinimum" if above else "minimum": low}
    return Kind(check, schema | ({"maximum": high} if high is not None else {}))


def or_unknown(kind: Kind) -> Kind:
    """A number like `whole` or `number`, or null if it is not known."""
    schema = {**kind.schema, "type": [kind.schema["type"], "null"]}
    return Kind(lambda value: None if value is None else kind.check(value), schema)


def text(wanted: str = "a text", *, pattern: str | None = None, without: str | None = None) -> Kind:
    """A text that matches ``pattern`` somewhere and ``without`` nowhere."""
    found = re.compile(pattern) if pattern else None
    absent = re.compile(without) if without else None

    def check(value: Any) -> str:
        good = (
            isinstance(value, str) and (found is None or found.search(value)) and not (absent and absent.search(value))
        )
        if not good:
            raise wrong(wanted, value)
        held: str = value
        return held

    schema: dict[str, Any] = {"type": "string"}
    if pattern:
        schema["pattern"] = pattern
    if without:
        schema["not"] = {"pattern": without}
    return Kind(check, schema)


Text = Annotated[str, text()]
Line = Annotated[str, text("a text that is not blank", pattern=r"[^ \t\r\n]")]
PathText = Annotated[str, text("a path", pattern=r"[^ \t\r\n]", without=r"\x00")]


def _secret(value: Any) -> SecretStr:
    if not isinstance(value, str):
        raise PydanticCustomError("value", "must be a text")
    return SecretStr(value)


Secret = Annotated[SecretStr, Kind(_secret, {"type": "string"})]
"""A text that is never shown in an error, a repr or a dump."""


def one_of(words: tuple[str, ...], what: str = "", *, known: tuple[str, ...] = ()) -> Kind:
    """One of ``words``. An error suggests the nearest word, or the nearest one in the larger set ``known``."""

    def check(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise unknown(value, known or words, f"{what} " if what else "")

    return Kind(check, {"enum": list(words)})


def unknown(value: Any, words: tuple[str, ...], what: str = "") -> PydanticCustomError:
    """The error for a word that is not in ``words``."""
    if not isinstance(value, str):
        return wrong(f"one of {', '.join(words)}", value)
    context: dict[str, Any] = {"text": f"unknown {what}{show_value(value)}{nearest(value, words)}"}
    found = near(value, words)
    return PydanticCustomError(
        "unknown", "{text}", context | ({"mend": ("rename", found, value)} if found is not None else {})
    )


def nearest(word: str, words: tuple[str, ...]) -> str:
    """``; did you mean 'x'?`` if one of the words is similar, else the list of all words."""
    found = near(word, words)
    return f"; did you mean {found!r}?" if found is not None else f" (known: {', '.join(words)})"


def near(word: str, words: tuple[str, ...]) -> str | None:
    """The most similar known word. None if no word is similar."""
    import difflib

    from cantrip_acp.mediums.registry import MEANT

    if (meant := MEANT.get(word.lower())) in words:
        return meant
    # Prefer a word that contains the other one (turns in max_turns) to a word with similar letters.
    found = difflib.get_close_matches(word, words, n=1)
    found = (
        found
        or [w for w in words if len(word) > 2 and word in w]
        or difflib.get_close_matches(word.lower(), words, 1, 0.5)
    )
    return found[0] if found else None


_ITEM = {"type": "string", "minLength": 1, "not": {"pattern": r"\x00"}}


def texts(wanted: str) -> Kind:
    """A list of texts that are not empty. One text is accepted as a list with one item."""

    def check(value: Any) -> list[str]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(i, str) and i and "\0" not in i for i in items):
            raise wrong(wanted, value)
        return list(items)

    return Kind(check, {"anyOf": [_ITEM, {"type": "array", "items": _ITEM}]})


def network() -> Kind:
    """true, false or a list of hosts, each a name or a mapping such as ``{host: mirror.corp, private: true}``."""
    hosts = texts("true, false or a list of hosts")

    def check(value: Any) -> bool | list[str]:
        if isinstance(value, bool) or (isinstance(value, str) and value in _FLAGS):
            return flag(value)
        items = [value] if isinstance(value, dict) else value
        names: list[str] = hosts.check([host_entry(i) for i in items] if isinstance(items, list) else items)
        return names

    entry = {
        "type": "object",
        "properties": {
            "host": _ITEM | {"description": "A host, such as mirror.corp."},
            "private": {"type": "boolean", "description": "The name may lead to an address of a private network."},
        },
        "required": ["host"],
        "additionalProperties": False,
    }
    one = {"anyOf": [_ITEM, entry]}
    return Kind(check, {"anyOf": [{"type": "boolean"}, _ITEM, entry, {"type": "array", "items": one}]})


def _json_object(value: Any) -> Any:
    if isinstance(value, dict | str):
        return value
    raise wrong("a mapping, or a text that is sent unchanged", value)


Arguments = Annotated[Any, Kind(_json_object, {"type": ["object", "string"]})]


def _maybe_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise wrong("a text", value)


MaybeText = Annotated[str | None, Kind(_maybe_text, {"type": ["string", "null"]})]


TAG = "<"
"""The tags of all unions begin with this, so that they can be removed from the path of an error."""


@cache
def _fields(model: type[BaseModel]) -> tuple[str, ...]:
    """The keys that a model accepts. Cached, because computing them takes a sixth of the time of a validation."""
    return tuple(model.model_fields)


class Model(BaseModel):
    """Base class of all models: no unknown keys, no conversion. Adds the known keys of each mapping to the context."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True, hide_input_in_errors=True)
    # The name of this mapping in error texts: crystal, call, circle …
    noun: ClassVar[str] = "mapping"

    @model_validator(mode="before")
    @classmethod
    def _record_known_keys(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, dict) and info.context is not None:
            info.context[id(data)] = (cls.noun, _fields(cls))
        return data

    def __reduce__(self) -> NoReturn:
        raise TypeError("a recipe may contain secrets, so it cannot be pickled; load it again from its path")
