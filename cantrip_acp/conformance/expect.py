"""What must hold after a case: one function an ``expect`` key, each yielding what does not hold.

Lists under ``crystal_invocations``, ``messages`` and ``loom.turns`` match as prefixes, all others exactly; of a mapping that describes a
turn, a message or metadata only the keys that are given count, while answers and gate results are compared as wholes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cantrip_acp.conformance.case import Case, Problem
from cantrip_acp.conformance.evidence import (
    Evidence,
    call_data,
    message_text,
    observation_text,
    output_text,
    turn_data,
)
from cantrip_acp.conformance.matchers import contains, entity, equal, items, lacks, scalar, show, subset
from cantrip_acp.crystals.contract import Message, Query, ToolDefinition
from cantrip_acp.gates.contract import as_text
from cantrip_acp.loom.turn import Turn

Check = Callable[[Any, Evidence, str], Iterator[Problem]]


def judge(case: Case, evidence: Evidence) -> Iterator[Problem]:
    """Everything that does not hold. A failure that was not expected is reported alone: nothing after it means much."""
    performance = evidence.performance
    if performance.error is not None and case.expect.get("error") is None:
        yield Problem(performance.failed_at, f"failed: {type(performance.error).__name__}: {performance.error}")
        return
    for key, expected in case.expect.items():
        path = f"expect.{key}"
        check = CHECKS.get(key) or next((c for pattern, c in PATTERNS if re.fullmatch(pattern, key)), None)
        if check is None:
            yield Problem(path, "unknown key")
        else:
            yield from check(expected, evidence, path)


def _error(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    if expected is None:
        return
    if seen.performance.error is None:
        yield Problem(path, f"expected a failure that says {show(expected)}, but nothing failed")
    elif expected != "not_null":
        yield from contains(expected, str(seen.performance.error), path)


def _result(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    if not seen.performance.results:
        yield Problem(path, f"expected {show(expected)}, but no cast came to an end")
    else:
        yield from equal(expected, seen.performance.results[-1].result, path, seen.scope)


def _result_contains(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    if not seen.performance.results:
        yield Problem(path, f"expected {show(expected)}, but no cast came to an end")
    else:
        yield from contains(expected, as_text(seen.performance.results[-1].result), path)


def _results(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    yield from items(expected or [], [r.result for r in seen.performance.results], path, seen.scope)


def _turns(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    yield from equal(expected, len(seen.last_thread), path, seen.scope)


def _ended(flag: str) -> Check:
    def check(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
        if seen.last_end is None:
            yield Problem(path, f"expected {show(expected)}, but no cast came to an end")
        else:
            yield from equal(expected, getattr(seen.last_end, flag), path, seen.scope)

    return check


def _entities(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    yield from equal(expected, len(seen.entities), path, seen.scope)


def _entity_ids_unique(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    unique = len(set(seen.entities)) == len(seen.entities)
    yield from equal(expected, unique, path, seen.scope)


def _gate_names(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    called = [record.gate for turn in seen.last_turns for record in turn.observation.results]
    yield from items(expected or [], called, path, seen.scope)


def _gate_results(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    results = [record.result for turn in seen.last_turns for record in turn.observation.results]
    yield from items(expected or [], results, path, seen.scope)


def _turn_observation(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    number = int(path.split("_")[1])
    turns = seen.last_thread
    if number > len(turns):
        yield Problem(path, f"there is no turn {number}: the last cast's thread has {len(turns)}")
        return
    is_error, content = _first_result(turns[number - 1])
    if "is_error" in expected:
        yield from equal(expected["is_error"], is_error, f"{path}.is_error", seen.scope)
    if "content" in expected:
        yield from equal(expected["content"], content, f"{path}.content", seen.scope)
    if "content_contains" in expected:
        yield from contains(expected["content_contains"], as_text(content), f"{path}.content_contains")


def _first_result(turn: Turn) -> tuple[bool, Any]:
    """A turn's first gate result; where no gate ran, what the medium's own tool left behind."""
    if turn.observation.results:
        record = turn.observation.results[0]
        return record.is_error, record.result
    output = turn.observation.output
    if output is None:
        return False, None
    return output.error is not None or output.exit_code not in (0, None), output_text(output)


def _invocations(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    key = path.removeprefix("expect.").removesuffix("_invocations")
    crystal = seen.scene.crystals.get(key)
    if crystal is None and key == "crystal":
        crystal = seen.scene.main
    if crystal is None:
        # A cantrip without a crystal asks nobody.
        if key != "crystal" or not scalar(expected, 0, seen.scope):
            yield Problem(path, f"the case sets up no crystal {key!r}")
        return
    queries = crystal.invocations
    if not isinstance(expected, list):
        yield from equal(expected, len(queries), path, seen.scope)
        return
    wanted, length = _sized(expected)
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
    """A prefix of the messages. The circle's presentation is a message of its own in some mediums; a case may leave it out."""

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
    """What must hold at every query of the case's crystal; the first query where it does not is told."""

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


def _usage(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    if seen.last_end is None:
        yield Problem(path, "no cast came to an end")
    else:
        yield from subset(expected or {}, dict(seen.last_end.usage), path, seen.scope)


def _cumulative_usage(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    """An invoked entity's own count over all its casts; the entity of a single cast has that cast's."""
    entity = seen.performance.entity
    if entity is not None:
        yield from subset(expected or {}, entity.usage.record(), path, seen.scope)
    else:
        yield from _usage(expected, seen, path)


def _thread(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    extracted = seen.performance.extracted
    turns = seen.seen(extracted) if extracted is not None else seen.last_thread
    if isinstance(expected, Mapping):
        wanted, length = list(expected.get("turns") or []), expected.get("length")
        whole = "turns" in expected
    else:
        wanted, length = _sized(expected or [])
        whole = bool(wanted) or length is None
    if wanted and all(isinstance(w, Mapping) and w.get("role") in ("entity", "circle") for w in wanted):
        roles = ["entity", "circle"] * len(turns)
        if length is not None:
            yield from equal(length, len(roles), f"{path}.length", seen.scope)
        yield from items([w["role"] for w in wanted], roles, path, seen.scope)
        return
    if length is not None:
        yield from equal(length, len(turns), f"{path}.length", seen.scope)
    if whole and len(wanted) != len(turns):
        yield Problem(path, f"expected {len(wanted)} turns, got {len(turns)}")
    for number, (want, turn) in enumerate(zip(wanted, turns, strict=False)):
        yield from _turn(want or {}, turn, f"{path}[{number}]", seen)


def _threads(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    yield from equal(expected, len(seen.threads), path, seen.scope)


def _numbered_thread(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    number = int(path.rpartition("_")[2])
    if number >= len(seen.threads):
        yield Problem(path, f"there is no thread {number}: the loom has {len(seen.threads)} (counted from 0)")
        return
    turns = seen.threads[number]
    for key in ("turns", "length"):
        if key in (expected or {}):
            yield from equal(expected[key], len(turns), f"{path}.{key}", seen.scope)
    if "result" in (expected or {}):
        yield from equal(expected["result"], seen.result_of(turns), f"{path}.result", seen.scope)
    if "last_turn" in (expected or {}):
        yield from _turn(expected["last_turn"] or {}, turns[-1], f"{path}.last_turn", seen)


def _loom(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    if "turn_count" in expected:
        yield from equal(expected["turn_count"], len(seen.turns), f"{path}.turn_count", seen.scope)
    if "call" in expected:
        yield from _root_call(expected["call"], seen, f"{path}.call")
    if "turns" in expected:
        wanted, length = _sized(expected["turns"] or [])
        if length is not None:
            yield from equal(length, len(seen.turns), f"{path}.turns.length", seen.scope)
        if len(wanted) > len(seen.turns):
            yield Problem(f"{path}.turns", f"expected at least {len(wanted)} turns, got {len(seen.turns)}")
        for number, (want, turn) in enumerate(zip(wanted, seen.turns, strict=False)):
            yield from _turn(want or {}, turn, f"{path}.turns[{number}]", seen)


def _root_call(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    """The call that stands at the root of the loom (CALL-4)."""
    root = next((turn for turn in seen.loom.turns() if turn.role == "call"), None)
    record = seen.loom.cantrip(root.cantrip_id) if root is not None else None
    if record is None:
        yield Problem(path, "no call stands in the loom")
    elif expected is None or expected == "not_null":
        yield from equal(expected, record.call, path, seen.scope)
    else:
        yield from subset(expected, dict(record.call), path, seen.scope)


def _turn(want: Mapping[str, Any], turn: Turn, path: str, seen: Evidence) -> Iterator[Problem]:
    data = turn_data(turn)
    for key, expected in want.items():
        where = f"{path}.{key}"
        match key:
            case "entity_id":
                yield from entity(expected, turn.entity_id, where, seen.scope)
            case "gate_calls":
                yield from _gate_calls(expected or [], turn, where, seen)
            case "observation_contains":
                yield from contains(expected, observation_text(turn), where)
            case "utterance" if isinstance(expected, str) and expected not in ("not_null", "null"):
                yield from equal(expected, turn.utterance.content or turn.utterance.code, where, seen.scope)
            case "observation" if isinstance(expected, str) and expected not in ("not_null", "null"):
                yield from equal(expected, observation_text(turn), where, seen.scope)
            case "observation" if isinstance(expected, Mapping):
                yield from _observation(expected, data["observation"], where, seen)
            case _:
                yield from subset(expected, data.get(key), where, seen.scope)


def _observation(
    expected: Mapping[str, Any], actual: Mapping[str, Any], path: str, seen: Evidence
) -> Iterator[Problem]:
    for key, want in expected.items():
        where = f"{path}.{key}"
        got = actual.get(key)
        if key == "results" and isinstance(want, list):
            results = got or []
            if len(want) != len(results):
                yield Problem(where, f"expected {len(want)} results, got {len(results)}")
            for number, (wanted, result) in enumerate(zip(want, results, strict=False)):
                yield from subset(wanted, result, f"{where}[{number}]", seen.scope)
        elif key in actual or key == "outputs":
            yield from subset(want, got, where, seen.scope)
        else:
            yield Problem(where, f"unknown key; an observation has {', '.join(actual)}")


def _gate_calls(expected: Sequence[Any], turn: Turn, path: str, seen: Evidence) -> Iterator[Problem]:
    names = [want.get("gate") if isinstance(want, Mapping) else want for want in expected]
    problems = list(items(names, list(turn.gate_calls), path, seen.scope))
    yield from problems
    if problems:
        return
    for number, (want, record) in enumerate(zip(expected, turn.observation.results, strict=False)):
        if isinstance(want, Mapping):
            data = {"gate": record.gate, "args": record.args, "result": record.result, "is_error": record.is_error}
            yield from subset(want, data, f"{path}[{number}]", seen.scope)


def _sized(expected: Sequence[Any]) -> tuple[list[Any], Any]:
    """A list's items, and the ``length`` that may stand before them."""
    wanted = list(expected)
    if wanted and isinstance(wanted[0], Mapping) and set(wanted[0]) == {"length"}:
        return wanted[1:], wanted[0]["length"]
    return wanted, None


def _received_tools(expected: Any, query: Query, path: str, seen: Evidence) -> Iterator[Problem]:
    yield from _tools(expected or [], query.tools, path, seen)


def _received_choice(expected: Any, query: Query, path: str, seen: Evidence) -> Iterator[Problem]:
    yield from equal(expected, query.tool_choice, path, seen.scope)


CHECKS: Mapping[str, Check] = {
    "error": _error,
    "result": _result,
    "result_contains": _result_contains,
    "results": _results,
    "turns": _turns,
    "terminated": _ended("terminated"),
    "truncated": _ended("truncated"),
    "entities": _entities,
    "entity_ids_unique": _entity_ids_unique,
    "gate_calls_executed": _gate_names,
    "gate_call_order": _gate_names,
    "gate_results": _gate_results,
    "crystal_invocations": _invocations,
    "crystal_received_tools": _every_query(_received_tools),
    "crystal_received_tool_choice": _every_query(_received_choice),
    "usage": _usage,
    "cumulative_usage": _cumulative_usage,
    "thread": _thread,
    "threads": _threads,
    "loom": _loom,
}
PATTERNS: Sequence[tuple[str, Check]] = (
    (r"turn_[1-9]\d*_observation", _turn_observation),
    (r"thread_\d+", _numbered_thread),
    (r"\w+_invocations", _invocations),
)
