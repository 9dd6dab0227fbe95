"""Checks turns: single ones, threads, and the whole loom."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from cantrip_acp.conformance.evidence import Evidence, observation_text, output_text, turn_data
from cantrip_acp.conformance.grammar import Problem
from cantrip_acp.conformance.matchers import contains, entity, equal, items, sized, subset
from cantrip_acp.gates.contract import as_text
from cantrip_acp.types.call import Call
from cantrip_acp.types.records import Turn


def turn_observation(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
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
    """A turn's first gate result; if no gate ran, the output of the medium's own tool."""
    if turn.observation.results:
        record = turn.observation.results[0]
        return record.is_error, record.result
    output = turn.observation.output
    if output is None:
        return False, None
    return output.failed, output_text(output)


def thread(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    extracted = seen.performance.extracted
    turns = seen.seen(extracted) if extracted is not None else seen.last_thread
    if isinstance(expected, Mapping):
        wanted, length = list(expected.get("turns") or []), expected.get("length")
        whole = "turns" in expected
    else:
        wanted, length = sized(expected or [])
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


def threads(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    yield from equal(expected, len(seen.threads), path, seen.scope)


def numbered_thread(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
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


def loom(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    if "turn_count" in expected:
        yield from equal(expected["turn_count"], len(seen.turns), f"{path}.turn_count", seen.scope)
    if "call" in expected:
        yield from _root_call(expected["call"], seen, f"{path}.call")
    if "turns" in expected:
        wanted, length = sized(expected["turns"] or [])
        if length is not None:
            yield from equal(length, len(seen.turns), f"{path}.turns.length", seen.scope)
        if len(wanted) > len(seen.turns):
            yield Problem(f"{path}.turns", f"expected at least {len(wanted)} turns, got {len(seen.turns)}")
        for number, (want, turn) in enumerate(zip(wanted, seen.turns, strict=False)):
            yield from _turn(want or {}, turn, f"{path}.turns[{number}]", seen)


def _root_call(expected: Any, seen: Evidence, path: str) -> Iterator[Problem]:
    """Check the call at the root of the loom (CALL-4)."""
    root = next((turn for turn in seen.loom.turns() if turn.role == "call"), None)
    record = seen.loom.cantrip(root.cantrip_id) if root is not None else None
    if record is None:
        yield Problem(path, "no call stands in the loom")
    elif expected is None or expected == "not_null":
        yield from equal(expected, record.call, path, seen.scope)
    else:
        # The loom stores only what differs from a call's defaults.
        kept = {**{f.name: f.default for f in fields(Call)}, **record.call}
        kept["require_done"] = kept["require_done_tool"]
        yield from subset(expected, kept, path, seen.scope)


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
        else:
            yield from subset(want, got, where, seen.scope)


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
