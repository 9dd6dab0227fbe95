"""Prompt of the monty medium: describes a circle to the crystal, and what the language lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cantrip_acp.mediums.code.prompt import answer_words, construction_lines, context_line, functions_of, seconds

if TYPE_CHECKING:
    from cantrip_acp.gates.contract import CircleView
    from cantrip_acp.gates.wards import Wards

DESCRIPTION = (
    "Run one cell of restricted Python: variables, functions and imports are there in the next cell. You see what it prints, "
    "the value of its last expression, and its errors."
)
MODULES = (
    "asyncio", "base64", "binascii", "bisect", "collections", "copy", "csv", "dataclasses", "datetime", "decimal",
    "functools", "hashlib", "itertools", "json", "math", "os", "pathlib", "posixpath", "random", "re", "sys", "time",
    "tomllib", "typing", "unicodedata",
)  # fmt: skip
"""Modules that can be imported from pydantic-monty 1.4 on. A test checks the installed version."""
LACKING = {
    "class inheritance, so no exceptions of your own": "class A(Exception):\n    pass",
    "`yield`": "def f():\n    yield 1",
    "`@property`, `@classmethod`, `@staticmethod`": "class A:\n    @property\n    def x(self):\n        return 1",
    "`del`": "x = 1\ndel x",
    "`except*`": "try:\n    pass\nexcept* ValueError:\n    pass",
    "`async for`": "async def f():\n    async for x in y:\n        pass",
    "`from m import *`": "from math import *",
    "`type X = ...`": "type X = int",
    "`super`": "super",
    "`vars`": "vars",
    "`globals`": "globals",
    "`dir`": "dir",
    "`callable`": "callable",
    "`compile`": "compile",
    "`input`": "input",
    "`bytearray`": "bytearray",
    "`memoryview`": "memoryview",
    "`delattr`": "delattr",
}
"""The features that the language lacks, each with a cell that fails because of it."""


def heap_mb(wards: Wards) -> int:
    """MiB that the variables of a session may use.

    The rest of the ward's limit is for a copy of them, which is needed if a cell must be undone.
    """
    return max(16, wards.code_memory_mb // 2 - 32)


def present(circle: CircleView) -> str:
    """The capability block. It depends only on the circle, so it is the same on every query (CIRCLE-11)."""
    wards = circle.wards
    lines = [
        "You act by running restricted Python (Monty) with the `python` tool. Each call is one cell, and variables, "
        "functions, classes and imports stay until the end.",
        "",
        "You see what a cell prints, the value of its last expression, and a traceback where it fails. Large values are "
        "shown as a summary: keep data in variables and look at the parts that you need.",
        "",
        "What holds there:",
        "- There are no files, no network, no processes and no environment: `open`, `os` and `pathlib` can only work on "
        "paths as text. Whatever is outside is reached by the functions below alone.",
        f"- Modules: {', '.join(MODULES)}. No others can be imported or installed.",
        f"- Not in this language: {', '.join(LACKING)}. Write such things with plain functions, lists and dicts.",
        f"- A cell may run {seconds(wards.code_timeout_ms)}, not counting the time in the functions below; a cell that is "
        "stopped, or has no memory left, is undone: variables are then as they were before it. They may use "
        f"{heap_mb(wards):,} MiB of memory. Of printed output you see up to {wards.code_max_output_bytes:,} bytes.",
    ]
    functions = functions_of(circle)
    if functions:
        lines += [
            "",
            "These functions are defined. They take positional or keyword arguments, return plain data at once (no `await`), "
            "and raise `GateError` when they fail (here another name for RuntimeError):",
            *functions,
        ]
    lines += construction_lines(circle)
    lines += ["", context_line(circle)]
    if "done" in circle.gates:
        lines += [
            "",
            f"When the task is finished, call `done(answer)` in a cell, with {answer_words(circle)}: it stops the cell and "
            "ends the task at once. `submit_answer(answer)` is the same.",
        ]
    return "\n".join(lines)
