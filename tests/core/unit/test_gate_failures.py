"""What a third party's code does wrong is an observation, and never the end of a cast or a traceback on stderr."""

from __future__ import annotations

import asyncio
import json
import logging
import math
from pathlib import Path
from typing import Any

import anyio
import pytest

from cantrip_acp import CantripError, DefinitionError, Gate, GateError, GateReply, Loom
from cantrip_acp.types.errors import GateFault
from cantrip_acp.types.records import Diff, Location
from tests.support.fixtures.core import done, make

SECRET = "sk-live-0123456789abcdef0123456789"


class _Odd(BaseException):
    pass


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def _raises(error: Any) -> Any:
    def handler(args: Any, context: Any) -> Any:
        raise error if not callable(error) else error()

    return handler


def _encode(args: Any, context: Any) -> Any:
    return "\ud800".encode()


async def _cancelled_elsewhere(args: Any, context: Any) -> Any:
    task = asyncio.ensure_future(asyncio.sleep(60))
    await asyncio.sleep(0)
    task.cancel()
    await task


async def _group(args: Any, context: Any) -> Any:
    async def fail(text: str) -> None:
        raise ValueError(text)

    async with anyio.create_task_group() as group:
        group.start_soon(fail, "left")


def _deep(args: Any, context: Any) -> Any:
    def down(n: int) -> int:
        return down(n + 1) + 1

    return down(0)


def _nested(levels: int) -> Any:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def _cycle() -> Any:
    value: dict[str, Any] = {}
    value["self"] = value
    return value


async def _coroutine() -> int:
    return 1


def _returns(value: Any) -> Any:
    return lambda args, context: value() if callable(value) else value


FAILURES = {
    "unicode": (_encode, "UnicodeEncodeError"),
    "exit": (_raises(SystemExit(3)), "SystemExit: 3"),
    "generator_exit": (_raises(GeneratorExit()), "GeneratorExit"),
    "odd": (_raises(_Odd("odd one")), "_Odd: odd one"),
    "mute": (_raises(_Mute()), "_Mute"),
    "stop": (_raises(StopIteration(1)), "StopIteration"),
    "memory": (_raises(MemoryError()), "MemoryError"),
    "group": (_group, "ValueError: left"),
    "base_group": (_raises(BaseExceptionGroup("g", [_Odd("a"), GateError("b")])), "_Odd: a; b"),
    "cancelled_elsewhere": (_cancelled_elsewhere, "CancelledError"),
    "cancelled": (_raises(asyncio.CancelledError), "CancelledError"),
    "recursion": (_deep, "RecursionError"),
    "surrogate_error": (_raises(GateError("bad \udcff")), "bad ?"),
    "object": (_returns(lambda: object()), "type object is not JSON data"),
    "generator": (_returns(lambda: (i for i in range(3))), "type generator is not JSON data"),
    "cycle": (_returns(_cycle), "contains itself"),
    "nested": (_returns(lambda: _nested(5_000)), "nested deeper than"),
    "coroutine_in_reply": (lambda args, context: GateReply(_coroutine()), "coroutine that nobody awaited"),
    "secret": (_raises(lambda: ValueError("no")), "ValueError: no"),
}


@pytest.mark.parametrize("blocking", [False, True], ids=["loop", "thread"])
@pytest.mark.parametrize("name", FAILURES)
async def test_a_failing_handler_is_an_observation(
    name: str, blocking: bool, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    handler, text = FAILURES[name]
    gate = Gate("boom", "Fail.", {"type": "object"}, handler, blocking=blocking)
    with Loom.open(tmp_path / "a.jsonl") as loom, caplog.at_level(logging.INFO):
        cantrip = make({"tool_calls": [{"gate": "boom", "args": {}}]}, done(), gates=["done", gate], loom=loom)
        assert (await cantrip.cast("go")).reason == "done"
        (record,) = loom.threads()[0].acted[0].observation.results
    assert record.is_error
    assert text in record.result, record
    assert not caplog.records
    assert capfd.readouterr().err == ""


RESULTS = {
    "nan": ([math.nan, math.inf, -math.inf], ["NaN", "Infinity", "-Infinity"]),
    "surrogates": ({"\ud800": ["a\udfff"]}, {"?": ["a?"]}),
    "text": ("a\ud83d", "a?"),
    "keys": ({1: 2, None: 3, False: 4}, {"1": 2, "null": 3, "false": 4}),
    "set": ({7}, [7]),
    "tuple": ((1, (2,)), [1, [2]]),
    "large": (2**80, 2**80),
}


@pytest.mark.parametrize("name", RESULTS)
async def test_a_result_is_json_for_everybody(name: str, tmp_path: Any) -> None:
    given, wanted = RESULTS[name]
    gate = Gate("odd", "Return.", {"type": "object"}, _returns(lambda: given))
    calls = [{"gate": "odd", "args": {}}]
    for loom in (Loom.memory(), Loom.open(tmp_path / "a.jsonl")):
        cantrip = make({"tool_calls": calls}, done(), gates=["done", gate], loom=loom)
        await cantrip.cast("go")
        record = loom.threads()[0].acted[0].observation.results[0]
        assert (record.result, record.is_error) == (wanted, False)
        loom.close()


async def test_what_stands_beside_a_result_is_checked() -> None:
    def reply(args: Any, context: Any) -> Any:
        return GateReply(
            "ok",
            title="a\ud800",
            locations=(Location("/x\udcff", 1),),
            diffs=(Diff("/x", None, "\ud800"),),
            annotations={"n": math.nan},
        )

    gate = Gate("odd", "Reply.", {"type": "object"}, reply)
    cantrip = make({"tool_calls": [{"gate": "odd", "args": {}}]}, done(), gates=["done", gate])
    async with cantrip.cast_stream("go") as stream:
        (finished,) = [e async for e in stream if type(e).__name__ == "GateFinished" and e.record.gate == "odd"]
    record = finished.record
    assert (record.title, record.locations[0].path, finished.diffs[0].new_text) == ("a?", "/x?", "?")
    assert cantrip.loom.threads()[0].acted[0].observation.results[0].annotations == {"n": "NaN"}


async def test_a_handler_cannot_change_the_recorded_arguments() -> None:
    def spoil(args: Any, context: Any) -> Any:
        args["list"].append("spoiled")
        return args["list"]

    gate = Gate("spoil", "Spoil.", {"type": "object"}, spoil)
    cantrip = make({"tool_calls": [{"gate": "spoil", "args": {"list": [1]}}]}, done(), gates=["done", gate])
    await cantrip.cast("go")
    record = cantrip.loom.threads()[0].acted[0].observation.results[0]
    assert (record.args, record.result) == ({"list": [1]}, [1, "spoiled"])


async def test_other_parts_of_a_gate_may_fail_too(capfd: pytest.CaptureFixture[str]) -> None:
    def fail(*args: Any) -> Any:
        raise RuntimeError("inside")

    class Session:
        def call(self, args: Any, context: Any) -> Any:
            return "called"

        async def close(self) -> None:
            raise RuntimeError("never closes")

    schema = {"type": "object"}
    gates = [
        "done",
        Gate("opens", "", schema, fail, opens=fail),
        Gate("previews", "", schema, lambda a, c: 1, preview=fail),
        Gate("records", "", schema, lambda a, c: 1, recorded=fail),
        Gate("closes", "", schema, fail, opens=lambda overlay, circle: Session()),
        Gate("schema", "", {"type": "object", "properties": {"a": {"type": "nonsense"}}}, lambda a, c: 1),
    ]
    calls = [{"gate": g.name, "args": {}} for g in gates[1:]]  # type: ignore[union-attr]
    cantrip = make({"tool_calls": calls}, done(), gates=gates)
    async with cantrip.cast_stream("go") as stream:
        async for _ in stream:
            pass
    results = cantrip.loom.threads()[0].acted[0].observation.results
    assert [r.is_error for r in results] == [True, False, False, False, True]
    assert results[0].result == "RuntimeError: inside"
    assert "not a valid JSON Schema" in results[4].result
    assert capfd.readouterr().err == ""


async def test_a_failing_interceptor_is_an_observation() -> None:
    async def answers_nothing(invocation: Any, proceed: Any) -> Any:
        return None

    class Raises:
        async def __call__(self, invocation: Any, proceed: Any) -> Any:
            if invocation.gate.name == "echo":
                raise KeyError("gone")
            return await proceed(invocation)

    echo = {"tool_calls": [{"gate": "echo", "args": {"text": "a"}}]}
    cantrip = make(echo, done(), interceptors=[Raises()])
    assert (await cantrip.cast("go")).reason == "done"
    assert cantrip.loom.threads()[0].acted[0].observation.results[0].result == "KeyError: 'gone'"
    cantrip = make(echo, wards=[{"max_turns": 1}], interceptors=[answers_nothing])
    await cantrip.cast("go")
    assert "must return a GateReply" in cantrip.loom.threads()[0].acted[0].observation.results[0].result


async def test_a_cancel_of_the_cast_is_no_observation() -> None:
    async def slow(args: Any, context: Any) -> Any:
        await anyio.sleep(60)

    gate = Gate("slow", "", {"type": "object"}, slow)
    cantrip = make({"tool_calls": [{"gate": "slow", "args": {}}]}, done(), gates=["done", gate])
    async with cantrip.invoke() as entity, anyio.create_task_group() as group:
        results = []

        async def cast() -> None:
            results.append(await entity.cast("go"))

        group.start_soon(cast)
        await anyio.sleep(0.05)
        assert entity.cancel()
    assert results[0].reason == "cancelled"
    again = make({"tool_calls": [{"gate": "slow", "args": {}}]}, done(), gates=["done", gate])
    task = asyncio.ensure_future(again.cast("go"))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failing_contributor_says_that_the_cast_did_not_start() -> None:
    async def contribute(info: Any) -> Any:
        raise KeyError("nothing")

    cantrip = make(done(), contributors=[contribute])
    with pytest.raises(CantripError, match=r"did not start: .*contribute failed: KeyError: 'nothing'"):
        await cantrip.cast("go")
    assert cantrip.loom.casts() == []


async def test_a_scorer_may_raise_anything() -> None:
    from cantrip_acp import Cantrip, Circle, ScriptedCrystal

    def score(turn: Any) -> float:
        raise _Odd("unfair")

    cantrip = Cantrip(ScriptedCrystal([done()]), circle=Circle(wards={"max_turns": 2}, score=score))
    assert (await cantrip.cast("go")).reason == "done"
    (reward,) = cantrip.loom.assigned()
    assert (reward.reward, reward.note) == (None, "_Odd: unfair")


async def test_the_debug_log_has_the_traceback_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
    gate = Gate("boom", "", {"type": "object"}, _raises(lambda: ValueError(f"key {SECRET}")))
    cantrip = make({"tool_calls": [{"gate": "boom", "args": {}}]}, done(), gates=["done", gate])
    with caplog.at_level(logging.DEBUG, logger="cantrip_acp"):
        await cantrip.cast("go")
    text = "\n".join(r.getMessage() for r in caplog.records if r.levelno == logging.DEBUG)
    assert "Traceback" in text
    assert SECRET not in text


def test_an_entry_point_that_cannot_be_loaded_is_a_definition_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from importlib.metadata import EntryPoint

    from cantrip_acp.gates import registry

    entry = EntryPoint("strange", "no_such_module_here:GATE", "cantrip_acp.gates")
    monkeypatch.setattr(registry, "installed", lambda: {"strange": entry})
    with pytest.raises(DefinitionError, match=r"'strange' cannot be loaded.*ModuleNotFoundError"):
        registry.find("strange")


ROWS = {"a": 1}


def _inner(key: str) -> int:
    return ROWS[key]  # the fault


def look_up(key: str) -> int:
    """Look up."""
    return _inner(key)


async def look_up_late(key: str) -> int:
    """Look up."""
    return json.loads(f"{_inner('a')} {key}")


def refuse(key: str) -> int:
    """Refuse."""
    raise GateError("there is no such key")


async def test_a_fault_in_a_gate_is_shown_with_its_file_and_line(anyio_backend: str) -> None:
    calls = [
        {"gate": "look_up", "args": {"key": f"Bearer {SECRET}"}},
        {"gate": "look_up", "args": {"key": f"Bearer {SECRET}"}},
        {"gate": "look_up_late", "args": {"key": "x"}},
        {"gate": "refuse", "args": {"key": "x"}},
    ]
    cantrip = make({"tool_calls": calls}, done(), gates=("done", look_up, look_up_late, refuse))
    with pytest.warns(GateFault) as caught:
        result = await cantrip.cast("Look.")
    line = next(n for n, text in enumerate(Path(__file__).read_text().splitlines(), 1) if text.endswith("# the fault"))
    first, second = result.warnings
    assert first.startswith("gate look_up failed: KeyError: ")
    assert first.endswith(f"({__file__}:{line}, in _inner)")
    assert second.startswith("gate look_up_late failed: JSONDecodeError: Extra data")
    assert "in look_up_late)" in second
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)
    observed = str([record.result for record in cantrip.loom.threads()[0].acted[0].observation.results])
    assert "KeyError" in observed
    assert __file__ not in observed
    assert SECRET not in f"{first}{caught[0].message}"
    assert (await make(done(), gates=("done", look_up)).cast("Look.")).warnings == ()
