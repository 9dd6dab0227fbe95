"""Permission requests of an agent: answered by a rule from the command line, or by asking the user."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from cantrip_acp.cli.render.from_acp import get_text
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.text.sanitize import clean_line

Allow = Literal["ask", "once", "always", "never"]

# The kinds of option (ACP, PermissionOptionKind) that a rule chooses, best first.
_WANTED: Final[Mapping[str, tuple[str, ...]]] = {
    "once": ("allow_once", "allow_always"),
    "always": ("allow_always", "allow_once"),
    "never": ("reject_once", "reject_always"),
}


RULES: Final = ("ask", "once", "always", "never")
KINDS: Final = ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other")
"""The kinds of tool calls (ACP, ToolKind)."""


@dataclass(frozen=True)
class Policy:
    """The rule for permission requests: one for all, and others for some kinds of tool calls."""

    rule: Allow = "ask"
    kinds: Mapping[str, Allow] = field(default_factory=dict)

    @classmethod
    def of(cls, given: Sequence[str]) -> Policy:
        """Parse `RULE` and `KIND=RULE` options. Raises ValueError, which says what is wrong."""
        rule: Allow = "ask"
        kinds: dict[str, Allow] = {}
        for each in given:
            kind, equals, value = each.rpartition("=")
            if value not in RULES:
                raise ValueError(f"{each!r}: {value!r} is not one of {', '.join(RULES)}")
            if not equals:
                rule = cast("Allow", value)
            elif kind in KINDS:
                kinds[kind] = cast("Allow", value)
            else:
                raise ValueError(f"{each!r}: {kind!r} is no kind of tool call; there are {', '.join(KINDS)}")
        return cls(rule, kinds)

    def rule_for(self, call: Mapping[str, Any]) -> Allow:
        """The rule for a tool call. A call without a kind counts as `other`."""
        return self.kinds.get(get_text(call, "kind") or "other", self.rule)

    def said(self, call: Mapping[str, Any]) -> str:
        """The command line option that gave the answer."""
        kind = get_text(call, "kind") or "other"
        return f"--allow {kind}={self.kinds[kind]}" if kind in self.kinds else f"--allow {self.rule}"


def choose(rule: Allow, options: Sequence[Mapping[str, Any]]) -> str | None:
    """The option that a rule chooses; None (answered as "cancelled") if no offered option fits.
    The rule `ask` means no here, because nobody can be asked.
    """
    for kind in _WANTED["never" if rule == "ask" else rule]:
        for option in options:
            if option.get("kind") == kind and isinstance(option.get("optionId"), str):
                return str(option["optionId"])
    return None


def name_of(choice: str | None, options: Sequence[Mapping[str, Any]]) -> str:
    """The name of the chosen option, for people."""
    for option in options:
        if choice is not None and option.get("optionId") == choice:
            return clean_line(get_text(option, "name"), 60) or clean_line(choice, 60)
    return "no answer"


def ask(screen: Screen, options: Sequence[Mapping[str, Any]], read: Callable[[str], str]) -> str:
    """Ask until the user names one option, by number or by the beginning of its name.
    There is no default, so that an accidental Enter grants nothing. Raises EOFError at the end of input and
    KeyboardInterrupt for Ctrl-C.
    """
    usable = [option for option in options if isinstance(option.get("optionId"), str)]
    names = [name_of(str(option["optionId"]), usable) for option in usable]
    parts: list[str | tuple[str, str]] = []
    for number, (name, option) in enumerate(zip(names, usable, strict=True), 1):
        style = "green" if get_text(option, "kind").startswith("allow") else "red"
        parts += [(f"{number}", f"bold {style}"), f" {name}   "]
    screen.line(*parts, indent=4)
    while True:
        try:
            answer = read("    which? ").strip().lower()
        except (EOFError, KeyboardInterrupt):
            # The cursor is still behind the question.
            screen.blank()
            raise
        if answer.isdecimal() and 1 <= int(answer) <= len(usable):
            return str(usable[int(answer) - 1]["optionId"])
        fitting = [n for n, name in enumerate(names) if answer and name.lower().startswith(answer)]
        if len(fitting) == 1:
            return str(usable[fitting[0]]["optionId"])
        screen.line((f"type a number from 1 to {len(usable)}; Ctrl-C cancels the turn", "dim"), indent=4)
