"""Checks a crystal's queries: how many there were, and the messages and tools of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cantrip_acp.conformance.evidence import Evidence, call_data, message_text
from cantrip_acp.conformance.grammar import Problem
from cantrip_acp.conformance.matchers import contains, equal, items, lacks, scalar, show, sized, subset
from cantrip_acp.crystals.contract import Query
from cantrip_acp.types.messages import Message, ToolDefinition

Check = Callable[[Any, Evidence, str], Iterator[Problem]]


def invocations(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    key = path.removeprefix("expect.").removesuffix("_invocations")
    crystal = seen.scene.crystals.get(key)
    if crystal is None and key == "crystal":
        crystal = seen.scene.main
    if crystal is None:
        # A cantrip without a crystal makes no queries.
        if key != "crystal" or not scalar(expected, 0, seen.scope):
            yield Problem(path, f"the case sets up no crystal {key!r}")
        return
    queries = crystal.invocations
    if not isinstance(expected, list):
        yield from equal(expected, len(queries), path, seen.scope)
        return
    wanted, length = sized(expected)
    if length is not None:
        yield from equal(length, len(queries), f"{path}.length", seen.scope)
    if len(wanted) > len(queries):
        yield Problem(path, f"expected at least {len(wanted)} queries, got {len(queries)}")
    for number, (want, query) in enumerate(zip(wanted, queries, strict=False)):
        yield from _invocation(want or {}, query, f"{path}[{number}]", seen)


def _invocation(want: Mapping[str, Any], query: Query, path: str, seen: Evidence) -> Iterator[Problem]:
    messages = list(query.messages)
    text = "\n".join(message_text(m) for m in messages)
    for key, expected in want.items():
        where = f"{path}.{key}"
        match key:
            case "message_count":
                yield from equal(expected, len(messages), where, seen.scope)
            case "messages":
                yield from _messages(expected or [], messages, where, seen)
            case "first_message":
                if not messages:
                    yield Problem(where, "there were no messages")
                else:
                    yield from _message(expected or {}, messages[0], where, seen)
            case "messages_include" | "message_count_includes":
                yield from contains(expected, text, where)
            case "messages_exclude" | "message_count_excludes":
                yield from lacks(expected, text, where)
            case "tools":
                yield from _tools(expected or [], query.tools, where, seen)
            case "tool_choice":
                yield from equal(expected, query.tool_choice, where, seen.scope)
            case _:
                yield Problem(where, "unknown key")


def _messages(expected: Sequence[Any], messages: list[Message], path: str, seen: Evidence) -> Iterator[Problem]:
    """Compare a prefix of the messages. In some mediums the circle's presentation is its own message; a case may leave
    it out."""

    def compare(actual: list[Message]) -> list[Problem]:
        found: list[Problem] = []
        for number, want in enumerate(expected):
            where = f"{path}[{number}]"
            if number < len(actual):
                found.extend(_message(want or {}, actual[number], where, seen))
            else:
                found.append(Problem(where, f"expected {show(want)}, but there are only {len(actual)} messages"))
        return found

    problems = compare(messages)
    if problems:
        problems = min(problems, compare([m for m in messages if m.kind != "capabilities"]), key=len)
    yield from problems


def _message(want: Mapping[str, Any], message: Message, path: str, seen: Evidence) -> Iterator[Problem]:
    for key in ("role", "content", "tool_call_id"):
        if key in want:
            yield from equal(want[key], getattr(message, key), f"{path}.{key}", seen.scope)
    if "tool_calls" in want:
        calls = want["tool_calls"] or []
        where = f"{path}.tool_calls"
        if len(calls) != len(message.tool_calls):
            yield Problem(where, f"expected {len(calls)} calls, got {len(message.tool_calls)}")
        for number, (expected, call) in enumerate(zip(calls, message.tool_calls, strict=False)):
            yield from subset(expected, call_data(call), f"{where}[{number}]", seen.scope)


def _tools(expected: Sequence[Any], tools: Sequence[ToolDefinition], path: str, seen: Evidence) -> Iterator[Problem]:
    names = [tool.get("name") if isinstance(tool, Mapping) else tool for tool in expected]
    problems = list(items(names, [tool.name for tool in tools], path, seen.scope))
    yield from problems
    if problems:
        return
    for number, (want, tool) in enumerate(zip(expected, tools, strict=True)):
        if not isinstance(want, Mapping):
            continue
        for key in ("description", "parameters"):
            if key in want:
                yield from equal(want[key], getattr(tool, key), f"{path}[{number}].{key}", seen.scope)


def _every_query(check: Callable[[Any, Query, str, Evidence], Iterator[Problem]]) -> Check:
    """Make a check of every query of the case's crystal. Only the first query that fails is reported."""

    def checked(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
        crystal = seen.scene.main
        if crystal is None or not crystal.invocations:
            yield Problem(path, "the crystal was never asked")
            return
        for query in crystal.invocations:
            problems = list(check(expected, query, path, seen))
            if problems:
                yield from problems
                return

    return checked


def _received_tools(expected: Any, query: Query, path: str, seen: Evidence) -> Iterator[Problem]:
    yield from _tools(expected or [], query.tools, path, seen)


def _received_choice(expected: Any, query: Query, path: str, seen: Evidence) -> Iterator[Problem]:
    yield from equal(expected, query.tool_choice, path, seen.scope)


received_tools = _every_query(_received_tools)
received_tool_choice = _every_query(_received_choice)
