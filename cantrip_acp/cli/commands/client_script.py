"""`cantrip client --script FILE`: sends the prompts of a script to an agent and checks what the script expects.

A script is a YAML file with `steps`. Each step sends one prompt. Its `expect` contains patterns:

- A mapping matches a mapping that has at least the same keys with matching values.
- A list matches a list of the same length whose items match.
- A mapping with one of these keys is a condition: `contains` (part of a text, or an item of a list), `matches` (a
  regular expression that is searched in a text), `not` (a pattern that must not fit).
- Any other value matches an equal value.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import click

from cantrip_acp.acp.client.agent_process import AgentMissing
from cantrip_acp.acp.client.client import AgentClient, AgentDied, AgentError, AgentRefused, connect
from cantrip_acp.cli.command_table import unknown_name
from cantrip_acp.cli.render.from_acp import get_list, get_mapping, get_text
from cantrip_acp.cli.render.terminal import Screen
from cantrip_acp.cli.session.permissions import Policy, choose_option
from cantrip_acp.recipes.parse.problem_positions import KeyPath
from cantrip_acp.recipes.parse.yaml_text import read
from cantrip_acp.text.sanitize import clean
from cantrip_acp.types.errors import DefinitionError
from cantrip_acp.types.styled import SGR

SETTINGS: Final = ("name", "allow", "timeout", "steps")
STEP: Final = ("prompt", "name", "allow", "timeout", "cancel_after", "expect")
EXPECTED: Final = ("stop_reason", "text", "tool_calls", "updates", "never", "permissions", "error")
ANSWERS: Final = ("once", "always", "never", "cancelled", "wait")
"""The answers to permission requests. `wait` gives the answer only after the turn has ended."""
CONDITIONS: Final = ("contains", "matches", "not")

_REMOVED: Final = (
    "cwd", "files", "buffers", "auth", "new", "load", "resume", "list", "close", "delete", "mode", "option", "restart", "thought",
    "user_text", "plan", "commands", "options", "title", "usage", "usage_update", "meta", "file_requests", "sessions", "session",
    "stderr", "junk", "seconds",
)  # fmt: skip
"""Keys of the script language that earlier versions had."""
_TIMEOUT_SECONDS: Final = 60.0
_LONGEST_VALUE: Final = 4000


# --- The script.


@dataclass(frozen=True)
class Step:
    """One prompt, with the patterns that its turn must fit. `where` is the step's file, line and column."""

    where: str
    prompt: Any
    name: str
    allow: str | None
    timeout: float
    cancel_after: Any
    expect: Mapping[str, Any]


@dataclass(frozen=True)
class Script:
    name: str
    steps: tuple[Step, ...]


def load_script(path: Path) -> Script:
    """Read a script. Raises DefinitionError with file, line and what to do; OSError if the file cannot be read."""
    data, places = read(path.read_text("utf-8"), str(path))

    def where(at: KeyPath) -> str:
        line, column = places.key(at)
        return f"{path}:{line}:{column}"

    def check_keys(mapping: Any, known: tuple[str, ...], at: KeyPath, what: str) -> Mapping[str, Any]:
        if not isinstance(mapping, Mapping):
            raise DefinitionError(f"{what} must be a mapping, not {_one_line(mapping)[:80]}", where=where(at))
        for key in mapping:
            if key in _REMOVED and key not in known:
                raise DefinitionError(
                    f"{key!r} is no longer part of the script language (docs/client.md)", where=where((*at, key))
                )
            if key not in known:
                raise DefinitionError(unknown_name("key", str(key), list(known)), where=where((*at, key)))
        return mapping

    def read_allow(mapping: Mapping[str, Any], at: KeyPath) -> str | None:
        value = mapping.get("allow")
        if value is not None and value not in ANSWERS:
            raise DefinitionError(unknown_name("answer", str(value), list(ANSWERS)), where=where((*at, "allow")))
        return value

    def read_timeout(mapping: Mapping[str, Any], at: KeyPath, default: float) -> float:
        value = mapping.get("timeout", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise DefinitionError("must be a number of seconds above 0", where=where((*at, "timeout")))
        return float(value)

    def check_conditions(pattern: Any, at: KeyPath) -> None:
        # Report an invalid regular expression when the script is read, not as a failure of the agent.
        if isinstance(pattern, Mapping) and len(pattern) == 1 and (key := next(iter(pattern))) in ("equals", "any"):
            raise DefinitionError(
                f"{key!r} is no longer part of the script language (docs/client.md)", where=where((*at, key))
            )
        if _is_condition(pattern) and "matches" in pattern:
            try:
                re.compile(pattern["matches"])
            except (re.error, TypeError) as error:
                raise DefinitionError(
                    f"not a valid regular expression ({error})", where=where((*at, "matches"))
                ) from None
        inner = (
            pattern.items() if isinstance(pattern, Mapping) else enumerate(pattern if isinstance(pattern, list) else ())
        )
        for key, value in inner:
            check_conditions(value, (*at, key))

    top = check_keys(data, SETTINGS, (), "a script")
    if not isinstance(top.get("steps"), list) or not top["steps"]:
        raise DefinitionError(
            "needs steps: a list with at least one step, such as `- prompt: Hello.`", where=where(("steps",))
        )
    allow, timeout = read_allow(top, ()), read_timeout(top, (), _TIMEOUT_SECONDS)
    steps: list[Step] = []
    for number, raw in enumerate(top["steps"]):
        at: KeyPath = ("steps", number)
        step = check_keys(raw, STEP, at, "a step")
        if "prompt" not in step:
            raise DefinitionError("a step needs a prompt", where=where(at))
        expect = check_keys(step.get("expect") or {}, EXPECTED, (*at, "expect"), "expect")
        check_conditions(expect, (*at, "expect"))
        prompt = step["prompt"]
        steps.append(
            Step(
                where(at),
                prompt,
                str(step.get("name") or f"prompt {prompt if isinstance(prompt, str) else _one_line(prompt)}"),
                read_allow(step, at) or allow,
                read_timeout(step, at, timeout),
                step.get("cancel_after"),
                expect,
            )
        )
    return Script(str(top.get("name") or path.name), tuple(steps))


# --- Patterns.


def _is_condition(pattern: Any) -> bool:
    return isinstance(pattern, Mapping) and len(pattern) == 1 and next(iter(pattern)) in CONDITIONS


def mismatches(pattern: Any, value: Any, where: str) -> Iterator[str]:
    """Yield a message for each mismatch, with its position. Yields nothing if the value matches."""
    if _is_condition(pattern):
        ((name, wanted),) = pattern.items()
        if not _condition_holds(name, wanted, value):
            words = {"contains": "does not contain", "matches": "does not match", "not": "must not fit"}[name]
            expected = f"/{wanted}/" if name == "matches" else _one_line(wanted)
            yield f"{where}: {words} {expected}; it is {_one_line(value)}"
    elif isinstance(pattern, Mapping):
        if not isinstance(value, Mapping):
            yield f"{where}: expected an object, and it is {_one_line(value)}"
            return
        for key, wanted in pattern.items():
            if key not in value and wanted is not None and not (_is_condition(wanted) and "not" in wanted):
                yield f"{where}.{key}: is missing; there are {', '.join(map(str, value)) or 'no keys'}"
            else:
                yield from mismatches(wanted, value.get(key), f"{where}.{key}")
    elif isinstance(pattern, list) and isinstance(value, list):
        if len(value) != len(pattern):
            yield f"{where}: expected {len(pattern)} entries, and there are {len(value)}: {_one_line(value)}"
        for place, (wanted, found) in enumerate(zip(pattern, value, strict=False)):
            yield from mismatches(wanted, found, f"{where}[{place}]")
    elif pattern != value or isinstance(pattern, bool) != isinstance(value, bool):
        # In Python True equals 1. In a pattern they are different.
        yield f"{where}:\n    - {_one_line(pattern)}\n    + {_one_line(value)}"


def matches(pattern: Any, value: Any) -> bool:
    return next(mismatches(pattern, value, ""), None) is None


def _condition_holds(name: str, wanted: Any, value: Any) -> bool:
    if name == "not":
        return not matches(wanted, value)
    if name == "matches":
        return isinstance(value, str) and re.search(wanted, value) is not None
    if isinstance(value, str):
        return isinstance(wanted, str) and wanted in value
    return isinstance(value, list) and any(matches(wanted, each) for each in value)


def mismatches_in_order(patterns: Sequence[Any], values: Sequence[Any], where: str, what: str) -> Iterator[str]:
    """Each pattern must fit a value that comes after the value of the pattern before it. Other values may come between."""
    start = 0
    for place, pattern in enumerate(patterns):
        found = next((n for n in range(start, len(values)) if matches(pattern, values[n])), None)
        if found is None:
            after = " after the previous one" if start else ""
            had = "".join(f"\n    {n}  {_describe(value)}" for n, value in enumerate(values)) or " none"
            yield f"{where}[{place}]: no {what}{after} matches {_one_line(pattern)}; there were:{had}"
            nearest = max(range(start, len(values)), key=lambda n: _fitting_keys(pattern, values[n]), default=start)
            if nearest < len(values) and _fitting_keys(pattern, values[nearest]):
                yield from mismatches(pattern, values[nearest], f"the nearest, {nearest}")
            return
        start = found + 1


def _fitting_keys(pattern: Any, value: Any) -> int:
    """The number of keys of a pattern that fit. It selects the most similar value for the error report."""
    if not isinstance(pattern, Mapping) or not isinstance(value, Mapping) or _is_condition(pattern):
        return 0
    return sum(key in value and matches(wanted, value[key]) for key, wanted in pattern.items())


def _one_line(value: Any) -> str:
    """A value on one line, cut if it is long."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}… ({len(text)} characters)"


def _describe(value: Mapping[str, Any]) -> str:
    """A tool call or an update on one line."""
    if "sessionUpdate" not in value:
        return "  ".join(str(value.get(key, "")) for key in ("kind", "status", "title"))
    rest = str({key: each for key, each in value.items() if key != "sessionUpdate"})
    return f"{value['sessionUpdate']}  {rest if len(rest) <= 160 else rest[:160] + '…'}"


# --- What happens in a turn.


class TurnObserver:
    """Collects the agent's actions in the current step, and answers its permission requests (`ClientObserver`)."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._allow: str | None = None
        self._news = anyio.Event()
        self._ended = anyio.Event()
        self.updates: list[Mapping[str, Any]] = []
        self.permissions: list[dict[str, Any]] = []
        self._checked = 0

    def begin(self, allow: str | None) -> None:
        """Begin a step. Updates that came after the end of the previous step belong to the new step."""
        self.updates = self.updates[self._checked :]
        self.permissions = []
        self._allow = allow
        self._ended = anyio.Event()

    def end(self) -> None:
        """End a step, after the reply to its prompt. Permission requests that waited for the end are answered."""
        self._checked = len(self.updates)
        self._ended.set()

    async def wait_for(self, pattern: Any) -> None:
        """Wait for an update that matches."""
        checked = 0
        while True:
            news = self._news
            if any(matches(pattern, update) for update in self.updates[checked:]):
                return
            checked = len(self.updates)
            await news.wait()

    def as_data(self) -> dict[str, Any]:
        """The step as data for patterns, without the values of the reply."""
        return {
            "text": self._text(),
            "tool_calls": self._tool_calls(),
            "updates": list(self.updates),
            "permissions": list(self.permissions),
        }

    def _text(self) -> str:
        """The text of the agent's messages, without interrupted messages and the marks for them."""
        marks = [get_mapping(get_mapping(update, "_meta"), "cantrip") for update in self.updates]
        void = {get_text(mark, "void") for mark in marks if "void" in mark}
        return "".join(
            get_text(get_mapping(update, "content"), "text")
            for update, mark in zip(self.updates, marks, strict=True)
            if update.get("sessionUpdate") == "agent_message_chunk"
            and "void" not in mark
            and get_text(update, "messageId") not in void
        )

    def _tool_calls(self) -> list[dict[str, Any]]:
        """The tool calls with their last state, in the order of their start. `output` is text, `diffs` are file changes."""
        calls: dict[str, dict[str, Any]] = {}
        terminals: dict[str, str] = {}
        for update in self.updates:
            if update.get("sessionUpdate") in ("tool_call", "tool_call_update"):
                call_id = get_text(update, "toolCallId")
                news = {k: v for k, v in update.items() if k not in ("sessionUpdate", "_meta") and v is not None}
                calls.setdefault(call_id, {}).update(news)
                piece = get_text(get_mapping(get_mapping(update, "_meta"), "terminal_output"), "data")
                terminals[call_id] = terminals.get(call_id, "") + SGR.sub("", piece)
        return [_with_output(call, terminals[call_id]) for call_id, call in calls.items()]

    async def on_update(self, session_id: str, update: Mapping[str, Any]) -> None:
        self.updates.append(update)
        self._news.set()
        self._news = anyio.Event()

    async def request_permission(
        self, session_id: str, call: Mapping[str, Any], options: Sequence[Mapping[str, Any]]
    ) -> tuple[str, Mapping[str, str]] | None:
        request: dict[str, Any] = {"tool_call": call, "options": options, "answer": None}
        self.permissions.append(request)
        if self._allow == "wait":
            await self._ended.wait()
        if self._allow in ("wait", "cancelled"):
            return None
        rule: Any = self._allow or self._policy.rule_for(call)
        chosen = choose_option(rule, options)
        request["answer"] = next((each.get("kind") for each in options if each.get("optionId") == chosen), None)
        return (chosen, {}) if chosen is not None else None

    async def request_form(self, message: str, schema: Mapping[str, Any]) -> None:
        """Return None: the agent was not told that a form can be shown."""

    async def on_file_access(self, action: str, path: str, refused: str | None, missing: bool) -> None:
        """Do nothing: scripts have no expectations about files."""

    async def on_line(self, source: str, line: str) -> None:
        """Do nothing: scripts have no expectations about stderr."""


def _with_output(call: dict[str, Any], terminal: str) -> dict[str, Any]:
    contents = [each for each in get_list(call, "content") if isinstance(each, Mapping)]
    diffs = [{key: each.get(key) for key in ("path", "oldText", "newText")} for each in contents if "newText" in each]
    parts = [terminal] if terminal else [get_text(get_mapping(each, "content"), "text") for each in contents]
    raw = call.get("rawOutput")
    if not any(parts) and raw is not None:
        parts = [get_text(raw, "output") if isinstance(raw, Mapping) else str(raw)]
    return {**call, "output": "\n".join(filter(None, parts)), "diffs": diffs}


# --- Playing.


@dataclass
class StepResult:
    """The result of a step. `problems` is empty if all expectations were met. `happened` is the turn as data."""

    step: Step
    seconds: float
    problems: list[str] = field(default_factory=list)
    happened: Mapping[str, Any] = field(default_factory=dict)


async def play(
    script: Script,
    argv: Sequence[str],
    *,
    folder: Path,
    policy: Policy,
    auth: str | None,
    report: Callable[[StepResult], None],
) -> list[StepResult]:
    """Run every step in one session. Stops if the agent ends. Raises AgentMissing if the agent cannot be started."""
    observer = TurnObserver(policy)
    results: list[StepResult] = []
    session_id: str | None = None
    async with connect(argv, observer) as agent:
        for step in script.steps:
            observer.begin(step.allow)
            reply: dict[str, Any] = {}
            alive = True
            started = time.monotonic()
            try:
                if session_id is None:
                    session_id = await _open_session(agent, folder, auth, max(step.timeout, _TIMEOUT_SECONDS))
                started = time.monotonic()
                reply = await _prompt(agent, observer, session_id, step)
            except AgentError as error:
                code, data = (error.code, error.data) if isinstance(error, AgentRefused) else (None, None)
                reply = {"error": {"code": code, "message": str(error), "data": data}}
                alive = not isinstance(error, AgentDied)
            observer.end()
            seconds = time.monotonic() - started
            happened = {"stop_reason": None, "error": None, **observer.as_data(), **reply, "seconds": round(seconds, 3)}
            results.append(StepResult(step, seconds, list(_problems(step, happened)), happened))
            report(results[-1])
            if not alive:
                break
    return results


async def _open_session(agent: AgentClient, folder: Path, auth: str | None, timeout: float) -> str:
    await agent.initialize(timeout=timeout)
    if auth:
        await agent.authenticate(auth, timeout=timeout)
    return (await agent.new_session(folder, timeout=timeout)).id


async def _prompt(agent: AgentClient, observer: TurnObserver, session_id: str, step: Step) -> dict[str, Any]:
    after = step.cancel_after
    failure: AgentError | None = None
    async with anyio.create_task_group() as tasks:

        async def cancel() -> None:
            if isinstance(after, int | float) and not isinstance(after, bool):
                await anyio.sleep(after)
            else:
                await observer.wait_for(after if isinstance(after, Mapping) else {"sessionUpdate": after})
            await agent.cancel(session_id)

        if after is not None:
            tasks.start_soon(cancel)
        try:
            outcome = await agent.prompt(session_id, step.prompt, timeout=step.timeout)
        except AgentError as error:
            # Raise it later, outside the task group, which would wrap it in an exception group.
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return {"stop_reason": outcome.stop_reason}


def _problems(step: Step, happened: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message for each expectation that was not met."""
    if happened["error"] is not None and "error" not in step.expect:
        yield f"it failed: {happened['error']['message']}"
    for key, pattern in step.expect.items():
        if key in ("tool_calls", "updates") and isinstance(pattern, list):
            yield from mismatches_in_order(pattern, happened[key], key, key[:-1].replace("_", " "))
        elif key == "never":
            for each in pattern if isinstance(pattern, list) else [pattern]:
                wanted = {"sessionUpdate": each} if isinstance(each, str) else each
                if (found := next((u for u in happened["updates"] if matches(wanted, u)), None)) is not None:
                    yield f"never: an update matches {_one_line(each)}: {_describe(found)}"
        elif key == "error" and isinstance(pattern, str):
            yield from mismatches({"message": {"contains": pattern}}, happened["error"] or {}, "error")
        elif key == "text" and isinstance(pattern, str):
            yield from mismatches({"contains": pattern}, happened["text"], key)
        else:
            yield from mismatches(pattern, happened[key], key)


# --- Output.


def run_script(
    path: Path,
    argv: Sequence[str],
    *,
    folder: Path,
    policy: Policy,
    auth: str | None = None,
    as_json: bool = False,
    verbose: bool = False,
) -> int:
    """Run a script and return the exit status. `policy` answers the permission requests that the script does not answer."""
    try:
        script = load_script(path)
    except (DefinitionError, OSError, UnicodeDecodeError) as error:
        raise click.UsageError(str(error)) from None
    output = _JsonReport() if as_json else _TextReport(Screen(), verbose)
    try:
        results = anyio.run(
            lambda: play(script, argv, folder=folder, policy=policy, auth=auth, report=output.show_step)
        )
    except AgentMissing as error:
        print(f"cantrip: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    failed = sum(bool(result.problems) for result in results)
    output.show_summary(script, len(results), failed)
    return int(bool(failed) or len(results) < len(script.steps))


class _TextReport:
    """Output for people: one line for each step, and below it the expectations that were not met."""

    def __init__(self, screen: Screen, verbose: bool) -> None:
        self._screen = screen
        self._verbose = verbose

    def show_step(self, result: StepResult) -> None:
        passed = not result.problems
        mark = self._screen.marks.done if passed else self._screen.marks.failed
        self._screen.line(
            (f"{mark} ", "green" if passed else "red"), clean(result.step.name), (f"  {result.seconds:.2f} s", "dim")
        )
        if not passed:
            self._screen.line((result.step.where, "dim"), indent=2, whole=True)
        for problem in result.problems:
            for line in clean(problem).splitlines():
                style = {"-": "red", "+": "green"}.get(line.lstrip()[:1], "")
                self._screen.line((line, style), indent=2, whole=True)
        if self._verbose:
            for line in clean(result.happened["text"]).splitlines():
                self._screen.line((f"| {line}", "dim"), indent=2)

    def show_summary(self, script: Script, played: int, failed: int) -> None:
        parts = [f"{played - failed} passed", f"{failed} failed"]
        if left := len(script.steps) - played:
            parts.append(f"{left} not run, because the agent had ended")
        self._screen.line((f"{script.name}: {', '.join(parts)}", "bold red" if failed or left else "bold green"))


class _JsonReport:
    """Output for programs: one line of JSON for each step, and one at the end."""

    def show_step(self, result: StepResult) -> None:
        self._print(
            "step",
            name=result.step.name,
            where=result.step.where,
            passed=not result.problems,
            problems=result.problems,
            seconds=round(result.seconds, 3),
            happened=result.happened,
        )

    def show_summary(self, script: Script, played: int, failed: int) -> None:
        left = len(script.steps) - played
        self._print("script", name=script.name, passed=played - failed, failed=failed, not_played=left)

    def _print(self, event: str, **fields: object) -> None:
        sys.stdout.write(json.dumps({"event": event, **fields}, default=str) + "\n")
        sys.stdout.flush()
