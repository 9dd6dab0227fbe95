"""Checks a case's expectations: one function for each ``expect`` key, which yields what does not hold.

Lists under ``crystal_invocations``, ``messages`` and ``loom.turns`` match as prefixes; all other lists match exactly.
For a turn, a message or metadata, only the given keys count. Answers and gate results are compared as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from cantrip_acp.conformance import expect_queries, expect_turns
from cantrip_acp.conformance.case import Case
from cantrip_acp.conformance.evidence import Evidence
from cantrip_acp.conformance.grammar import Problem
from cantrip_acp.conformance.matchers import contains, equal, items, show, subset
from cantrip_acp.gates.contract import as_text
from cantrip_acp.types.errors import ScriptExhausted

Check = Callable[[Any, Evidence, str], Iterator[Problem]]


def check_expectations(case: Case, evidence: Evidence) -> Iterator[Problem]:
    """Yield everything that does not hold.

    An unexpected failure is reported alone, because the rest then means little. A script without further responses is
    an exception: what happened before is complete, so all other expectations are checked too.
    """
    performance = evidence.performance
    if performance.error is not None and case.expect.get("error") is None:
        yield Problem(performance.failed_at, f"failed: {type(performance.error).__name__}: {performance.error}")
        if not isinstance(performance.error, ScriptExhausted):
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


def _usage(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    if seen.last_end is None:
        yield Problem(path, "no cast came to an end")
    else:
        yield from subset(expected or {}, dict(seen.last_end.usage), path, seen.scope)


def _cumulative_usage(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    """The usage of an invoked entity over all its casts; without one, the usage of the last cast."""
    entity = seen.performance.entity
    if entity is not None:
        yield from subset(expected or {}, entity.usage.record(), path, seen.scope)
    else:
        yield from _usage(expected, seen, path)


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
    "crystal_invocations": expect_queries.invocations,
    "crystal_received_tools": expect_queries.received_tools,
    "crystal_received_tool_choice": expect_queries.received_tool_choice,
    "usage": _usage,
    "cumulative_usage": _cumulative_usage,
    "thread": expect_turns.thread,
    "threads": expect_turns.threads,
    "loom": expect_turns.loom,
}
PATTERNS: Sequence[tuple[str, Check]] = (
    (r"turn_[1-9]\d*_observation", expect_turns.turn_observation),
    (r"thread_\d+", expect_turns.numbered_thread),
    (r"\w+_invocations", expect_queries.invocations),
)
