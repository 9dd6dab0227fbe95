"""Modules loaded, called, replaced: contracts, results, failures, and what the loom keeps."""

from __future__ import annotations

import hashlib

import pytest

from tests.gates.integration.loaded.conftest import FAIL_LINE, KIT, Loader, Make
from tests.sandbox.integration.conftest import both_back_ends


@both_back_ends
async def test_functions_become_gates(loader: Loader) -> None:
    result = await loader.loaded("textkit", KIT)
    assert result == {
        "module": "cantrip_acp.hot.textkit",
        "sha256": hashlib.sha256(KIT.encode()).hexdigest(),
        "gates": [
            {
                "name": "count_words",
                "signature": "count_words(text, least?, how?)",
                "description": "Count the words of a text.",
            },
            {"name": "fail", "signature": "fail(why)", "description": "A function of cantrip_acp.hot.textkit."},
        ],
        "how": "the gates are tools from the next query on",
    }
    gate = loader.entity.executor.dynamic_gates.gates["count_words"]
    assert gate.parameters == {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "least": {"type": "integer", "default": 1},
            "how": {"enum": ["all", "once"], "default": "all"},
        },
        "required": ["text"],
        "additionalProperties": False,
    }
    assert gate.description.startswith("Count the words of a text.\n\nThose of")
    record = await loader.call("count_words", text="a bb bb", least=2, how="once")
    assert record.result == {"words": 1, "calls": 1}
    assert record.annotations == {"module": "cantrip_acp.hot.textkit", "sha256": result["sha256"]}
    assert (await loader.call("count_words", text="")).result == {"words": 0, "calls": 2}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({}, "missing required argument 'text'"),
        ({"text": 3}, "not of type 'string'"),
        ({"text": "a", "how": "never"}, "how"),
        ({"text": "a", "more": 1}, "more"),
    ],
)
async def test_arguments_are_checked_before_the_worker_sees_them(
    loader: Loader, args: dict[str, object], said: str
) -> None:
    await loader.loaded("textkit", KIT)
    record = await loader.call("count_words", **args)
    assert record.is_error
    assert said in record.result
    assert (await loader.call("count_words", text="")).result["calls"] == 1


@both_back_ends
async def test_a_failure_has_the_modules_own_lines(loader: Loader) -> None:
    await loader.loaded("textkit", KIT)
    record = await loader.call("fail", why="no reason")
    assert record.is_error
    assert record.result == (
        "Traceback (most recent call last):\n"
        f'  File "<cantrip_acp.hot.textkit>", line {FAIL_LINE}, in fail\n'
        "    raise ValueError(why)\n"
        "ValueError: no reason\n"
        "[printed]\non the way"
    )


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("def f(:", "SyntaxError"),
        ("def f(): return 1\n1 / 0", 'File "<cantrip_acp.hot.other>", line 2'),
        ("x = 1", "offers no functions"),
        ("", "offers no functions"),
        ("def f(*args): ...", "*args or **kwargs"),
        ("__all__ = ['g']\ndef f(): ...", "'g', which is not a function"),
        ("__all__ = [len]\ndef f(): ...", "__all__ must be a list of names"),
        ("def done(): ...", "function done cannot be a gate: the circle has a gate of that name"),
        ("def compile_and_load(): ...", "the circle has a gate"),
        ("def read_file(path): ...", "a known gate has that name"),
        ("def call_agent(): ...", "a known gate has that name"),
        ("def context(): ...", "mediums use that name"),
        ("def submit_answer(x): ...", "mediums use that name"),
        ("def cantrip_done(x): ...", "must not begin with cantrip"),
        ("def gonе(): ...", "a name must be ASCII"),
        ("import os; os._exit(3)", "exit status 3"),
        ("raise SystemExit", "SystemExit"),
        ("import cantrip_acp.core.casting.loop", "No module named 'cantrip_acp.core'"),
        ("import no_such_module", "No module named 'no_such_module'"),
    ],
)
async def test_a_module_that_cannot_be_loaded(loader: Loader, source: str, said: str) -> None:
    await loader.loaded("textkit", KIT)
    record = await loader.load("other", source)
    assert record.is_error
    assert said in record.result, record.result
    assert list(loader.entity.executor.dynamic_gates.gates) == ["count_words", "fail"]
    assert not (await loader.call("count_words", text="a")).is_error


async def test_a_ward_that_removes_a_gate_holds_for_loaded_ones(make: Make) -> None:
    loader = await make(allow_compile_modules=["textkit"], remove_gate=["count_words"])
    record = await loader.load()
    assert record.is_error
    assert "the ward remove_gate removes that name" in record.result
    assert (await loader.call("count_words", text="a")).result.startswith("gate not available")


async def test_a_new_version_replaces_the_old_one(loader: Loader) -> None:
    first = await loader.loaded("textkit", KIT)
    new = "def count_words(text: str) -> int: return -1\ndef more(): return 'more'"
    second = await loader.loaded("textkit", new)
    assert second["replaced"] == first["sha256"]
    assert second["removed"] == ["fail"]
    assert (await loader.call("count_words", text="a")).result == -1
    assert (await loader.call("more")).result == "more"
    assert (await loader.call("fail", why="")).result.startswith("gate not available")
    assert (await loader.call("count_words", text="a", least=1)).is_error


@both_back_ends
async def test_a_broken_new_version_leaves_the_old_one(loader: Loader) -> None:
    await loader.loaded("textkit", KIT)
    for broken in ("def count_words(text: str): return 0\n1 / 0", "def (", "def done(): ..."):
        assert (await loader.load("textkit", broken)).is_error
        assert (await loader.call("count_words", text="a")).result["words"] == 1
        assert f"line {FAIL_LINE}" in (await loader.call("fail", why="x")).result
    assert (await loader.load("textkit", "import os; os._exit(1)")).is_error
    assert (await loader.call("count_words", text="a")).result == {"words": 1, "calls": 1}


async def test_modules_see_each_other_and_not_each_others_names(loader: Loader) -> None:
    await loader.loaded("textkit", KIT)
    source = "from cantrip_acp.hot.textkit import count_words as count\ndef twice(text: str): return 2 * count(text)['words']"
    await loader.loaded("other", source)
    assert (await loader.call("twice", text="a b")).result == 4
    taken = await loader.load("other", "def count_words(): ...")
    assert "cantrip_acp.hot.textkit offers a gate of that name" in taken.result


@pytest.mark.parametrize(
    ("body", "result"),
    [
        ("return (1, {'a': None}, 'ü\\ud800')", [1, {"a": None}, "ü?"]),
        ("return {3, 1}", [1, 3]),
        ("yield 1\n  yield 2", [1, 2]),
        ("return None", None),
        ("return 2**53 + 0.5", 2.0**53),
    ],
)
async def test_results_are_plain_data(loader: Loader, body: str, result: object) -> None:
    await loader.loaded("other", f"def f():\n  {body}")
    assert (await loader.call("f")).result == result


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("return object()", "not JSON data"),
        ("return float('nan')", "not JSON data"),
        ("a = []; a.append(a); return a", "not JSON data"),
        ("return 'x' * 2_000_000", "the limit is 1,048,576"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import json; json.loads('{')", "JSONDecodeError"),
        ("open('/etc/shadow')", "Error"),
        ("return done(1)", "NameError"),
    ],
)
async def test_what_a_function_cannot_give(loader: Loader, body: str, said: str) -> None:
    await loader.load("other", f"def f():\n  {body}")
    record = await loader.call("f")
    assert record.is_error
    assert said in record.result


@pytest.mark.parametrize("args", [{"text": "a", "least": 10**30}, {"text": "\ud800"}])
async def test_arguments_that_cannot_be_sent_lose_nothing(loader: Loader, args: dict[str, object]) -> None:
    await loader.loaded("textkit", KIT)
    await loader.call("count_words", text="a")
    await loader.call("count_words", **args)
    assert (await loader.call("count_words", text="a")).result["calls"] in (2, 3)


async def test_coroutines_classes_and_odd_signatures(loader: Loader) -> None:
    source = """
import asyncio, dataclasses, os.path
from collections.abc import Sequence
from typing import Annotated, Any, Optional
__all__ = ["later", "place"]

@dataclasses.dataclass
class Point:
    x: int

async def later(n: float = 0.001) -> str:
    await asyncio.sleep(n)
    return "now"

def place(
    p: "dict[str, int]", /, q: Optional[list[int]] = None, *, r: Annotated[bool, "x"] = True, s: Any = ...,
    t: Sequence[str | None] = (), u: Point | None = None, v: "Nowhere" = 1
):
    return [Point(**p).x, q, r, list(t)]
"""
    await loader.loaded("other", source)
    assert (await loader.call("later")).result == "now"
    assert (await loader.call("place", p={"x": 3}, q=[1], t=["a"])).result == [3, [1], True, ["a"]]
    kinds = loader.entity.executor.dynamic_gates.gates["place"].properties
    assert set(kinds) == {"p", "q", "r", "s", "t", "u", "v"}
    assert list(loader.entity.executor.dynamic_gates.gates) == ["later", "place"]


async def test_annotations_that_can_be_read_make_the_schema(loader: Loader) -> None:
    source = (
        "from typing import Annotated, Optional\nfrom collections.abc import Sequence, Mapping\n"
        "def f(p: dict[str, int], /, q: Optional[list[int]] = None, *, r: Annotated[bool, 1] = True, "
        "t: Sequence[str | None] = (), u: Mapping[str, int] = {}, v: object = ...): return 1"
    )
    await loader.loaded("other", source)
    assert loader.entity.executor.dynamic_gates.gates["f"].properties == {
        "p": {"type": "object"},
        "q": {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "null"}], "default": None},
        "r": {"type": "boolean", "default": True},
        "t": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "default": []},
        "u": {"type": "object", "default": {}},
        "v": {},
    }
