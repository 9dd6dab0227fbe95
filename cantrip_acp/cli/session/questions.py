"""Questions of an ACP agent, asked at this process's terminal: permissions with one key, plans, and forms.

A question is asked in the thread of the protocol, where it ends when the agent withdraws it or the turn is cancelled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import anyio.to_thread

from cantrip_acp.cli.render.from_acp import get_list, get_mapping, get_text
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.text.sanitize import clean, clean_line

Answer = tuple[str, Mapping[str, str]]
"""The id of the chosen option, and what the user wrote next to the choice: a ``reason``, or an edited ``plan``."""

_WHICH: Final = "    which? "
_NUMBERS: Final = "123456789bfghijlmptvwxz"
"""The keys of the options, in their order: numbers, then letters that no other key has."""
_REASON: Final = "r"
_LETTERS: Final[Mapping[str, str]] = {"allow_once": "y", "allow_always": "a", "reject_once": "n"}
"""The keys of options by their kind."""
_OWN_LETTERS: Final[Mapping[str, str]] = {
    "allow_step": "s", "each": "e", "keep": "k", "overwrite": "o", "cancel": "c",
    "allow_project": "p", "allow_registries": "g", "undo": "u", "skip": "s", "keep_file": "a", "undo_file": "d", "quit": "q",
}  # fmt: skip
"""The keys of options of our own agent by their id."""
_PLANS: Final[Mapping[str, str]] = {
    "ask": "yes, and ask before each change",
    "trusted": "yes, and do not ask",
    "sandboxed": "yes, and change files in the sandbox freely",
}
"""The ways to carry out an approved plan: the id of the option (a mode of our own agent), and words for it."""


def option_name(choice: str | None, options: Sequence[Mapping[str, Any]]) -> str:
    """The name of the chosen option, for people."""
    for option in options:
        if choice is not None and option.get("optionId") == choice:
            return clean_line(get_text(option, "name"), 60) or clean_line(choice, 60)
    return "no answer"


class Questions:
    """Asks on a screen. ``in_terminal`` runs a program that needs the whole terminal, such as an editor. The methods raise
    `CrystalError` at the end of input."""

    def __init__(self, screen: Screen, in_terminal: Callable[[Callable[[], str]], str] = lambda work: work()) -> None:
        self._screen, self._in_terminal = screen, in_terminal

    async def permission(self, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]) -> Answer:
        """Ask which option the user wants. Enter alone allows nothing."""
        usable = [option for option in options if isinstance(option.get("optionId"), str)]
        plan, ids = get_text(get_mapping(call, "rawInput"), "plan"), [str(option["optionId"]) for option in usable]
        if plan and get_text(call, "kind") == "switch_mode" and ids and any(mode in ids for mode in _PLANS):
            return await self._plan(plan, [mode for mode in _PLANS if mode in ids], ids[-1])
        keys: dict[str, str] = {}
        parts: list[str | tuple[str, str]] = []
        for number, option in zip(_NUMBERS, usable, strict=False):
            kind, chosen = get_text(option, "kind"), str(option["optionId"])
            key = _OWN_LETTERS.get(chosen) or _LETTERS.get(kind, number)
            key = number if key in keys else key
            keys[number] = keys[key] = chosen
            style = "green" if kind.startswith("allow") else "red"
            parts += [(key, f"bold {style}"), f" {option_name(chosen, usable)}   "]
            if kind == "reject_once" and chosen not in _OWN_LETTERS:
                keys.setdefault(_REASON, chosen)
        if _REASON in keys:
            parts += [(_REASON, "bold red"), " no, with a reason"]
        self._screen.line(*parts, indent=4)
        self._screen.flush()
        from cantrip_acp.crystals.human import terminal

        with terminal() as typed:
            pressed = await typed.key(_WHICH, "".join(keys))
            reason = (await typed.line("    reason: ")).strip() if pressed == _REASON else ""
        return keys[pressed], {"reason": reason} if reason else {}

    async def _plan(self, plan: str, modes: Sequence[str], returned: str) -> Answer:
        from cantrip_acp.crystals.human import terminal

        ways = "".join(f"{number} {_PLANS[mode]}   " for number, mode in enumerate(modes, 1))
        now = plan
        with terminal() as typed:
            while True:
                self._show(f"carry out this plan?  {ways}e edit it   n COMMENTS return it")
                words = (await typed.line("plan? ")).strip()
                if words.isdecimal() and 1 <= int(words) <= len(modes):
                    return modes[int(words) - 1], {"plan": now} if now != plan else {}
                if words == "e":
                    now = await anyio.to_thread.run_sync(self._in_terminal, partial(_edit, now))
                    self._show(now)
                elif re.match(r"no?\b", words, re.IGNORECASE):
                    comments = words.partition(" ")[2].strip()
                    return returned, {"reason": comments} if comments else {}
                else:
                    self._show(
                        f"type {', '.join(str(number) for number in range(1, len(modes) + 1))}, e, or n and your comments"
                    )

    async def form(self, message: str, schema: Mapping[str, Any]) -> dict[str, Any] | None:
        """Ask for the fields of a form (ACP, Elicitation). None if the user leaves a required one empty."""
        from cantrip_acp.crystals.human import terminal

        self._screen.blank()
        for line in clean(message).splitlines():
            self._screen.line(("? ", "bold yellow"), line)
        found: dict[str, Any] = {}
        fields = get_mapping(schema, "properties")
        with terminal() as typed:
            for name, field in fields.items():
                label = "answer" if len(fields) == 1 else clean_line(get_text(field, "title") or name, 60)
                choices = _choices(field)
                for number, (_, shown) in enumerate(choices, 1):
                    self._screen.line((f"{number}", "bold green"), f" {clean_line(shown, 400)}", indent=4)
                self._screen.flush()
                while True:
                    words = (await typed.line(f"    {label}: ")).strip()
                    if not words and not choices:
                        break
                    value = _value(words, field, choices)
                    if value is not None:
                        found[name] = value
                        break
                    self._show(f"type a number from 1 to {len(choices)}" if choices else f"type a {field['type']}", 4)
                if name not in found and name in get_list(schema, "required"):
                    return None
        return found

    def _show(self, text: str, indent: int = 2) -> None:
        for line in text.splitlines():
            self._screen.line((clean_line(line, 300), "dim"), indent=indent)
        self._screen.flush()


def _choices(field: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The values of a field that allows only some, with their names."""
    named = [each for each in get_list(field, "oneOf") if isinstance(each, Mapping)]
    if named:
        return [(get_text(each, "const"), get_text(each, "title") or get_text(each, "const")) for each in named]
    if get_text(field, "type") == "boolean":
        return [("true", "yes"), ("false", "no")]
    return [(str(each), str(each)) for each in get_list(field, "enum")]


def _value(words: str, field: Mapping[str, Any], choices: Sequence[tuple[str, str]]) -> Any:
    """Convert typed text to a value of the field. None if it does not fit."""
    kind = get_text(field, "type")
    if choices:
        if words.isdecimal() and 1 <= int(words) <= len(choices):
            words = choices[int(words) - 1][0]
        else:
            words = next((value for value, shown in choices if words and shown.lower() == words.lower()), "")
        return words == "true" if kind == "boolean" and words else words or None
    try:
        return int(words) if kind == "integer" else float(words) if kind == "number" else words
    except ValueError:
        return None


def _edit(plan: str) -> str:
    """Open the plan in the user's editor ($VISUAL, $EDITOR). Returns the saved text; the plan itself if that is empty."""
    import click

    changed = click.edit(plan, extension=".md")
    return changed.strip() if changed is not None and changed.strip() else plan
