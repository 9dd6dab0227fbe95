"""The call: system prompt and model parameters of a cantrip. It cannot be changed (CALL-1).

It holds nothing else. Gates belong to the circle (CALL-3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from dataclasses import replace as changed
from typing import Any, Literal

from cantrip_acp.types.checked_values import (
    check_choice,
    check_flag,
    check_keys,
    check_mapping,
    check_number,
    check_text,
    check_whole,
    refuse_change,
    short_repr,
)
from cantrip_acp.types.errors import DefinitionError

ToolChoice = Literal["auto", "required", "none"]

_TOOL_CHOICES = ("auto", "required", "none")


@dataclass(frozen=True, slots=True)
class Call:
    """System prompt and model parameters.

    ``temperature`` is 0 to 2, ``top_p`` and ``min_p`` are 0 to 1, ``top_k`` is the number of tokens to sample from,
    ``max_tokens`` the limit of one response, ``seed`` the sampling seed, ``stop`` the stop sequences, ``tool_choice``
    auto | required | none (CRYSTAL-5). With ``require_done_tool``, prose alone does not end a cast (LOOP-6).
    None means the provider's default. Every field is checked. Setting a field later raises `errors.Immutable`.
    """

    system_prompt: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    tool_choice: ToolChoice | None = None
    require_done_tool: bool = False
    seed: int | None = None
    top_k: int | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        if self.system_prompt is not None:
            check_text(self.system_prompt, "call.system_prompt")
        if self.temperature is not None:
            check_number(self.temperature, "call.temperature", 0, 2)
        if self.top_p is not None:
            check_number(self.top_p, "call.top_p", 0, 1)
        if self.top_k is not None:
            check_whole(self.top_k, "call.top_k", 1)
        if self.min_p is not None:
            check_number(self.min_p, "call.min_p", 0, 1)
        if self.max_tokens is not None:
            check_whole(self.max_tokens, "call.max_tokens", 1)
        if self.seed is not None:
            check_whole(self.seed, "call.seed", -(2**31), 2**31 - 1)
        if self.tool_choice is not None:
            check_choice(self.tool_choice, _TOOL_CHOICES, "call.tool_choice")
        check_flag(self.require_done_tool, "call.require_done_tool")
        given: Any = self.stop
        stop = (given,) if isinstance(given, str) else given
        if not isinstance(stop, list | tuple) or not all(isinstance(each, str) and each for each in stop):
            raise DefinitionError(
                f"call.stop must be a text or a list of texts that are not empty, not {short_repr(stop)}"
            )
        object.__setattr__(self, "stop", tuple(stop))

    @classmethod
    def of(cls, value: Call | Mapping[str, Any]) -> Call:
        """Make a call from a mapping of its fields. Raises `DefinitionError` for an unknown key.

        ``require_done`` is an older name of ``require_done_tool``.
        """
        if isinstance(value, Call):
            return value
        given = dict(check_mapping(value, "call"))
        check_keys(given, (*_FIELDS, "require_done"), "call")
        if "require_done" in given:
            if "require_done_tool" in given:
                raise DefinitionError(
                    "call: require_done_tool and require_done exclude each other; keep one", rule="exclusive-keys"
                )
            given["require_done_tool"] = given.pop("require_done")
        return cls(**given)

    def replace(self, **changes: Any) -> Call:
        """A new call with these fields changed."""
        check_keys(changes, _FIELDS, "Call.replace", what="field")
        return changed(self, **changes)

    def record(self) -> dict[str, Any]:
        """The fields that are set, as the loom stores them (CALL-4)."""
        out: dict[str, Any] = {}
        for name in _FIELDS:
            value = getattr(self, name)
            # A temperature of 0 counts as set.
            if value is not None and value != () and value is not False:
                out[name] = list(value) if isinstance(value, tuple) else value
        return out


_FIELDS = tuple(f.name for f in fields(Call))

# Without this a frozen dataclass raises FrozenInstanceError, which does not say what to do instead.
Call.__setattr__ = refuse_change  # type: ignore[method-assign]
Call.__delattr__ = refuse_change  # type: ignore[method-assign]
