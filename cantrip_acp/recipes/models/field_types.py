"""The base class of a recipe's parts, and the kinds of value that recipes hold, each with its check and its schema.

Check and JSON Schema must accept the same data. So texts are restricted by patterns that mean one thing in every regular expression
dialect (no end anchors, no ``\\s``), and 10.0 is a whole number, as JSON Schema has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationInfo, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

SHOWN = 60
"""Characters of a wrong value that an error shows."""

_PASSWORD = re.compile(r"(:/*[^/\s:@]*:)\S*@")
"""A password in an address, well written or not."""


def shown(value: Any) -> str:
    """A wrong value in an error: short, and never a whole document."""
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
    """The error of a value of the wrong kind; the text is ready to show, ``mend`` is what a `places.Mend` holds."""
    told: dict[str, Any] = {"wanted": f"must be {wanted}", "value": shown(value)}
    return PydanticCustomError("value", "{wanted}, not {value}", told | ({"mend": mend} if mend else {}))


@dataclass(frozen=True, eq=False)
class Kind:
    """A check that gives the value to keep, or raises, and the schema that takes the same data: `Annotated` with it."""

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
"""A boolean; YAML 1.2 reads ``on`` and ``off`` as texts, and they are taken for what they say."""


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
    """The same number, or null where it is not known."""
    schema = {**kind.schema, "type": [kind.schema["type"], "null"]}
    return Kind(lambda value: None if value is None else kind.check(value), schema)


def text(wanted: str = "a text", *, pattern: str | None = None, without: str | None = None) -> Kind:
    """A text in which ``pattern`` is found and ``without`` is not."""
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
"""A text that no error, repr or dump shows."""


def one_of(words: tuple[str, ...], what: str = "", *, known: tuple[str, ...] = ()) -> Kind:
    """One of some words; an error names the nearest of them, or of the wider set ``known``."""

    def check(value: Any) -> str:
        if isinstance(value, str) and value in words:
            return value
        raise unknown(value, known or words, f"{what} " if what else "")

    return Kind(check, {"enum": list(words)})


def unknown(value: Any, words: tuple[str, ...], what: str = "") -> PydanticCustomError:
    """The error of a word that is none of ``words``."""
    if not isinstance(value, str):
        return wrong(f"one of {', '.join(words)}", value)
    told: dict[str, Any] = {"text": f"unknown {what}{shown(value)}{nearest(value, words)}"}
    found = near(value, words)
    return PydanticCustomError(
        "unknown", "{text}", told | ({"mend": ("rename", found, value)} if found is not None else {})
    )


def nearest(word: str, words: tuple[str, ...]) -> str:
    """``; did you mean 'x'?`` where something is near, else all that is known."""
    found = near(word, words)
    return f"; did you mean {found!r}?" if found is not None else f" (known: {', '.join(words)})"


def near(word: str, words: tuple[str, ...]) -> str | None:
    """The known word that is nearest to another; None where none is near."""
    import difflib

    # A word within another (turns in max_turns) is nearer than letters say.
    found = difflib.get_close_matches(word, words, n=1)
    found = (
        found
        or [w for w in words if len(word) > 2 and word in w]
        or difflib.get_close_matches(word.lower(), words, 1, 0.5)
    )
    return found[0] if found else None


_ITEM = {"type": "string", "minLength": 1, "not": {"pattern": r"\x00"}}


def texts(wanted: str) -> Kind:
    """A list of texts that are not empty, or one text for a list of one."""

    def check(value: Any) -> list[str]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(i, str) and i and "\0" not in i for i in items):
            raise wrong(wanted, value)
        return list(items)

    return Kind(check, {"anyOf": [_ITEM, {"type": "array", "items": _ITEM}]})


def network() -> Kind:
    """true, false or host names."""
    hosts = texts("true, false or a list of host names")

    def check(value: Any) -> bool | list[str]:
        if isinstance(value, bool) or (isinstance(value, str) and value in _FLAGS):
            return flag(value)
        names: list[str] = hosts.check(value)
        return names

    return Kind(check, {"anyOf": [{"type": "boolean"}, *hosts.schema["anyOf"]]})


def _json_object(value: Any) -> Any:
    if isinstance(value, dict | str):
        return value
    raise wrong("a mapping, or a text that is sent as it stands", value)


Arguments = Annotated[Any, Kind(_json_object, {"type": ["object", "string"]})]


def _maybe_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise wrong("a text", value)


MaybeText = Annotated[str | None, Kind(_maybe_text, {"type": ["string", "null"]})]


TAG = "<"
"""Every union's tags begin with this, so that places can be told from tags in an error's path."""


@cache
def _fields(model: type[BaseModel]) -> tuple[str, ...]:
    """The keys of a mapping; asking the class each time is a sixth of a validation."""
    return tuple(model.model_fields)


class Model(BaseModel):
    """What all parts share: no unknown key, no conversion. Tells a validation's context which keys each mapping knows."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, defer_build=True, hide_input_in_errors=True)
    # A mapping's place among its parents, for errors: crystal, call, circle …
    noun: ClassVar[str] = "mapping"

    @model_validator(mode="before")
    @classmethod
    def _tell(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(data, dict) and info.context is not None:
            info.context[id(data)] = (cls.noun, _fields(cls))
        return data

    def __reduce__(self) -> NoReturn:
        raise TypeError("a recipe may hold secrets and is not pickled; load it again from its path")
