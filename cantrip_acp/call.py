"""The call: who the entity is and how it thinks, fixed for good (CALL-1).

A call holds a system prompt and hyperparameters and nothing else: gates are the circle's (CALL-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NoReturn

from cantrip_acp.errors import CallImmutable, DefinitionError

ToolChoice = Literal["auto", "required", "none"]

_TOOL_CHOICES = ("auto", "required", "none")


@dataclass(frozen=True, slots=True)
class Call:
    """System prompt and hyperparameters.

    ``temperature`` 0 to 2, ``top_p`` 0 to 1, ``max_tokens`` of one response, ``stop`` sequences,
    ``tool_choice`` auto | required | none (CRYSTAL-5), ``require_done_tool``: prose alone does not end a cast (LOOP-6).
    None leaves the provider's default. Any attempt to set a field raises `CallImmutable`.
    """

    system_prompt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    require_done_tool: bool = False

    def __post_init__(self) -> None:
        if self.tool_choice is not None and self.tool_choice not in _TOOL_CHOICES:
            raise DefinitionError(f"tool_choice is {self.tool_choice!r}; it is one of {', '.join(_TOOL_CHOICES)}")
        if self.system_prompt is not None and not isinstance(self.system_prompt, str):
            raise DefinitionError(f"system_prompt must be text, not {type(self.system_prompt).__name__}")
        object.__setattr__(self, "stop", tuple(self.stop))

    @classmethod
    def of(cls, value: Call | Mapping[str, Any]) -> Call:
        """A call from a mapping of its fields; an unknown key is a `DefinitionError`."""
        if isinstance(value, Call):
            return value
        known = {f.name for f in fields(cls)}
        for key in value:
            if key not in known:
                raise DefinitionError(f"unknown key {key!r} in call; known: {', '.join(sorted(known))}")
        return cls(**value)

    def record(self) -> dict[str, Any]:
        """What the loom keeps of it: the fields that are set (CALL-4)."""
        out: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            if value not in (None, (), False):
                out[f.name] = list(value) if isinstance(value, tuple) else value
        return out


def _refuse_set(self: Call, name: str, value: object) -> NoReturn:
    raise CallImmutable(f"the call is immutable: {name!r} was fixed when the cantrip was made; make a new Call")


def _refuse_delete(self: Call, name: str) -> NoReturn:
    raise CallImmutable(f"the call is immutable: {name!r} cannot be removed; make a new Call")


# A frozen dataclass raises FrozenInstanceError, which says nothing of what to do instead.
Call.__setattr__ = _refuse_set  # type: ignore[assignment, method-assign]
Call.__delattr__ = _refuse_delete  # type: ignore[assignment, method-assign]
