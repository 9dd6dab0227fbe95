"""Script parser for `cantrip client --script`: reads prompts and expectations from YAML or JSON lines.
A YAML file is a mapping with `steps`. A `.jsonl` file has one step per line; its first line may hold the settings.
An unknown key is refused, with its place.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from cantrip_acp.cli.command_table import unknown
from cantrip_acp.cli.script.match import CONDITIONS, is_condition
from cantrip_acp.core.errors import DefinitionError
from cantrip_acp.recipes.parse.source_map import KeyPath, Places
from cantrip_acp.recipes.parse.yaml_text import read

ACTIONS: Final = {
    "prompt": "send a prompt: a text, or a list of content blocks",
    "new": "open a session and go on in it; true, or a folder",
    "load": "load a session: its id, or `first` for the script's first one",
    "resume": "resume a session, in the same way",
    "list": "list sessions: true, or a folder",
    "close": "close the session: true, or an id",
    "delete": "delete the session: true, or an id",
    "mode": "set the mode: its id",
    "option": "set config options: a mapping of ids to values",
    "restart": "true: start the agent anew, with no session open",
}

SETTINGS: Final = ("cwd", "files", "buffers", "allow", "timeout", "auth", "steps", "name")
STEP: Final = (*ACTIONS, "name", "allow", "buffers", "files", "cancel_after", "timeout", "expect")
EXPECTED: Final = (
    "stop_reason", "text", "thought", "user_text", "tool_calls", "updates", "never", "permissions", "plan", "commands",
    "options", "mode", "title", "usage", "usage_update", "meta", "files", "file_requests", "sessions", "session", "error",
    "stderr", "junk", "seconds",
)  # fmt: skip

ANSWERS: Final = {
    "once": ("allow_once", "allow_always"),
    "always": ("allow_always", "allow_once"),
    "never": ("reject_once", "reject_always"),
    "allow_once": ("allow_once",),
    "allow_always": ("allow_always",),
    "reject_once": ("reject_once",),
    "reject_always": ("reject_always",),
    "cancelled": (),
    "wait": (),
}
"""How a permission request is answered: the kinds of option to choose, best first. `wait` answers when the turn is over."""


@dataclass(frozen=True)
class Step:
    """One action and what is expected of it. `where` is file and line."""

    where: str
    action: str
    value: Any
    name: str = ""
    allow: Any = None
    buffers: Mapping[str, str | None] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)
    cancel_after: Any = None
    timeout: float | None = None
    expect: Mapping[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        if self.name:
            return self.name
        value = self.value if isinstance(self.value, str) else "" if self.value is True else json.dumps(self.value)
        return f"{self.action} {value}".strip()


@dataclass(frozen=True)
class Script:
    """A whole script. `folder` is the session's folder, if the file names one."""

    name: str
    steps: tuple[Step, ...]
    folder: Path | None = None
    files: Mapping[str, str | None] = field(default_factory=dict)
    buffers: Mapping[str, str | None] = field(default_factory=dict)
    allow: Any = None
    timeout: float | None = None
    auth: str | None = None


def load(path: Path) -> Script:
    """Read a script. Raises DefinitionError with file, line and what to do; OSError if the file cannot be read."""
    text = path.read_text("utf-8")
    if path.suffix == ".jsonl":
        data, lines = _json_lines(text, str(path))
        return _script(path, data, lambda at: f"{path}:{lines[at[1] if len(at) > 1 and at[0] == 'steps' else 0]}")
    data, places = read(text, str(path))
    return _script(path, data, lambda at: _line(path, places, at))


def _line(path: Path, places: Places, at: KeyPath) -> str:
    line, column = places.key(at)
    return f"{path}:{line}:{column}"


def _json_lines(text: str, name: str) -> tuple[dict[str, Any], list[int]]:
    steps: list[Any] = []
    lines: list[int] = []
    settings: dict[str, Any] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as problem:
            raise DefinitionError(f"no JSON: {problem}", where=f"{name}:{number}") from None
        if not steps and not settings and isinstance(value, dict) and not set(value) & set(ACTIONS):
            settings = value
            continue
        steps.append(value)
        lines.append(number)
    return {**settings, "steps": steps}, lines or [1]


def _script(path: Path, data: Any, where: Any) -> Script:
    def check(holder: Any, known: tuple[str, ...], at: KeyPath, what: str) -> Mapping[str, Any]:
        if not isinstance(holder, Mapping):
            raise DefinitionError(
                f"{what} must be a mapping, not {json.dumps(holder, default=str)[:80]}", where=where(at)
            )
        for key in holder:
            if key not in known:
                raise DefinitionError(unknown("key", str(key), list(known)), where=where((*at, key)))
        return holder

    def texts(holder: Mapping[str, Any], key: str, at: KeyPath) -> Mapping[str, str | None]:
        value = holder.get(key) or {}
        if not isinstance(value, Mapping) or not all(isinstance(v, str | None) for v in value.values()):
            raise DefinitionError("must map paths to texts, or to null", where=where((*at, key)))
        return value

    def seconds(holder: Mapping[str, Any], at: KeyPath) -> float | None:
        value = holder.get("timeout")
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise DefinitionError("must be a number of seconds above 0", where=where((*at, "timeout")))
        return float(value)

    def allow(holder: Mapping[str, Any], at: KeyPath) -> Any:
        value = holder.get("allow")
        given = value if isinstance(value, list) else value.values() if isinstance(value, Mapping) else [value]
        for each in given:
            if each is not None and each not in ANSWERS:
                raise DefinitionError(unknown("answer", str(each), list(ANSWERS)), where=where((*at, "allow")))
        return value

    top = check(data, SETTINGS, (), "a script")
    given = top.get("steps")
    if not isinstance(given, list) or not given:
        raise DefinitionError(
            "needs steps: a list of at least one, such as `- prompt: Hello.`", where=where(("steps",))
        )
    steps: list[Step] = []
    for number, raw in enumerate(given):
        at: KeyPath = ("steps", number)
        step = check(raw, STEP, at, "a step")
        actions = [key for key in step if key in ACTIONS]
        if len(actions) != 1:
            raise DefinitionError(f"a step does one thing: one of {', '.join(ACTIONS)}", where=where(at))
        expect = check(step.get("expect") or {}, EXPECTED, (*at, "expect"), "expect")
        _conditions(expect, (*at, "expect"), where)
        steps.append(
            Step(
                where(at),
                actions[0],
                step[actions[0]],
                str(step.get("name") or ""),
                allow(step, at),
                texts(step, "buffers", at),
                texts(step, "files", at),
                step.get("cancel_after"),
                seconds(step, at),
                expect,
            )
        )
    folder = top.get("cwd")
    return Script(
        str(top.get("name") or path.name),
        tuple(steps),
        None if folder is None else path.parent / str(folder),
        texts(top, "files", ()),
        texts(top, "buffers", ()),
        allow(top, ()),
        seconds(top, ()),
        top.get("auth"),
    )


def _conditions(pattern: Any, at: KeyPath, where: Any) -> None:
    """Check regular expressions now: one that does not compile is the script's mistake, not the agent's."""
    import re

    if is_condition(pattern) and "matches" in pattern:
        try:
            re.compile(pattern["matches"])
        except (re.error, TypeError) as problem:
            raise DefinitionError(f"no regular expression ({problem})", where=where((*at, "matches"))) from None
    items = pattern.items() if isinstance(pattern, Mapping) else enumerate(pattern) if isinstance(pattern, list) else ()
    for key, value in items:
        _conditions(value, (*at, key), where)


__all__ = ["ACTIONS", "ANSWERS", "CONDITIONS", "Script", "Step", "load"]
