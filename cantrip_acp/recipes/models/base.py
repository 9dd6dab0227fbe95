"""What every part of a recipe shares."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict, ValidationInfo, model_validator

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
