"""Prompt of the code medium: describes a circle to the crystal, reads calls, and renders outputs."""

from __future__ import annotations

import keyword
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.gates.contract import NOTHING
from cantrip_acp.gates.registry import child_functions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cantrip_acp.gates.contract import CircleView, Gate
    from cantrip_acp.gates.wards import Wards
    from cantrip_acp.types.records import Output

TOOL = "python"
PARAMETERS: Mapping[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code, one cell; several lines are fine."}},
    "required": ["code"],
    "additionalProperties": False,
}
DESCRIPTION = (
    "Run one cell of Python in a process that lives on: variables, functions and imports are there in the next cell. You see "
    "what it prints, the value of its last expression, and its errors."
)
_KINDS = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
    "null": "None",
}


class Malformed:
    """The error for arguments that hold no program."""

    def __init__(self, text: str) -> None:
        self.text = text


def program(args: str) -> str | Malformed:
    try:
        value = msgspec.json.decode(args) if args.strip() else {}
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        return Malformed(f"the arguments of python are not valid JSON: {error}")
    if not isinstance(value, dict):
        return Malformed(f'python takes a JSON object such as {{"code": "1 + 1"}}, not {type(value).__name__}')
    code = value.get("code")
    if code is None:
        return Malformed("missing required argument 'code' of python")
    if not isinstance(code, str):
        return Malformed(f"argument 'code' of python must be text, not {type(code).__name__}")
    unknown = sorted(set(value) - {"code"})
    if unknown:
        return Malformed(f"python takes 'code' alone; unknown: {', '.join(map(repr, unknown))}")
    if not code.strip():
        return Malformed("the code is empty")
    return code


def observe(output: Output) -> str:
    """An output as text for the crystal."""
    parts = []
    if output.stdout:
        parts.append(output.stdout)
    if output.stderr:
        parts.append(f"[stderr]\n{output.stderr}")
    if output.value is not None:
        value = output.value if isinstance(output.value, str) else msgspec.json.encode(output.value).decode()
        parts.append(f"=> {value}" if parts or output.error else value)
    if output.error:
        parts.append(output.error)
    if output.truncated:
        parts.append("[printed output was shortened in the middle; keep large data in variables and print parts of it]")
    return "\n".join(p.rstrip("\n") for p in parts) or "(no output)"


def present(circle: CircleView, *, loom: bool) -> str:
    """The capability block. It depends only on the circle, so it is the same on every query (CIRCLE-11)."""
    wards = circle.wards
    lines = [
        "You act by running Python with the `python` tool. Each call is one cell, and all cells run in one process, so "
        "variables, functions, classes and imports stay until the end.",
        "",
        "You see what a cell prints, the value of its last expression, and a traceback where it fails. Large values are "
        "shown as a summary: keep data in variables and look at the parts that you need. Top-level `await` works.",
        "",
        "What holds there:",
        f"- {_files(circle)}",
        f"- There is no network, not even to this machine{_closed(wards)}. Standard input is empty.",
        "- The standard library is there, and what is installed beside it; `subprocess` works. What a cell starts and "
        "leaves running is ended with the cell; temporary files (`tempfile`) are private and last as long as the process.",
        f"- A cell may run {seconds(wards.code_timeout_ms)}, not counting the time in the functions below; then it gets "
        "KeyboardInterrupt, and its variables are kept. All processes together may use "
        f"{wards.code_memory_mb:,} MiB of memory. Of printed output you see up to {wards.code_max_output_bytes:,} bytes.",
    ]
    functions = functions_of(circle)
    if functions:
        lines += [
            "",
            "These functions are defined. They reach outside of the sandbox for you, take positional or keyword "
            "arguments, return plain data at once (no `await`), and raise `GateError` when they fail; `help(NAME)` tells more:",
            *functions,
        ]
    lines += construction_lines(circle)
    lines += ["", context_line(circle)]
    if loom:
        lines += [
            "`loom` is your own history, read-only: `len(loom)`, `loom[-1]`, `for turn in loom`, each turn a dict."
        ]
    if "done" in circle.gates:
        lines += [
            "",
            f"When the task is finished, call `done(answer)` in a cell, with {answer_words(circle)}: it stops the cell and "
            "ends the task at once. `submit_answer(answer)` is the same.",
        ]
    return "\n".join(lines)


def answer_words(circle: CircleView) -> str:
    """Describe the answer that ``done`` takes."""
    free = circle.gates["done"].properties.get("answer", {}).keys() <= {"description"}
    return "any JSON value" if free else "a value that fits its schema"


def construction_lines(circle: CircleView) -> list[str]:
    """Explain how to make children from values, if the circle allows it."""
    functions = child_functions(circle)
    if not functions:
        return []
    lines = [
        "",
        "Children can be values too. `Cantrip(crystal=…, system_prompt=…, medium=…, gates=[…], wards={…}, max_depth=…)` "
        "describes a kind of child; what is left out is as here.",
        "- `r = cast(cantrip, intent, context=data)` runs one, once: `r.result`, `r.reason`, `r.usage`, `r.turns`.",
    ]
    if "cantrip.cast_batch" in functions:
        lines.append(
            "- `cast_batch([(cantrip, intent, data), …])` runs several beside each other; results come in order, and one "
            "that failed has `r.is_error` and `r.error`."
        )
    lines.append(
        "- `child = summon(cantrip)` lives on and remembers: `send(child, intent)` as often as you like, then "
        "`dismiss(child)`."
    )
    return lines


def context_line(circle: CircleView) -> str:
    """Describe the variable ``context``."""
    if circle.data is NOTHING:
        return "`context` is a list of what was given with the task: dicts with title, text, source and uri."
    return (
        "`context` is the data that was given with the task: text, a list or a dict, and possibly far too much to print. "
        "Look at its type and size first, then at the parts that you need."
    )


def functions_of(circle: CircleView) -> list[str]:
    """A line for each gate: how to call it and what it does."""
    functions = []
    for shown, name in circle.tool_names.items():
        gate = circle.gates[name]
        first = gate.description.split("\n")[0].strip()
        call = shown if not keyword.iskeyword(shown) else f'globals()["{shown}"]'
        functions.append(f"- `{call}({_signature(gate)})`" + (f": {first}" if first else ""))
    return functions


def _closed(wards: Wards) -> str:
    """A note that `bash_network` does not apply here, because models may know it from other mediums."""
    return " (bash_network is for shell commands alone)" if wards.bash_network else ""


def _files(circle: CircleView) -> str:
    wards = circle.wards
    written = wards.code_writable_paths
    shown = [p for p in wards.code_readable_paths if p not in written]
    own = str(circle.workspace) if circle.workspace is not None else None

    def named(paths: Iterable[str]) -> str:
        return ", ".join(f"{p} (the workspace, where cells begin)" if p == own else p for p in paths)

    parts = []
    if shown:
        parts.append(f"Readable: {named(shown)}.")
    if written:
        parts.append(
            f"Readable and writable: {named(written)}; version control data (.git) and editor, agent and shell "
            "configuration (.vscode, .cantrip, .bashrc …) are read-only there, and show as empty folders where there is none."
        )
    where = f" ({circle.workspace})" if circle.workspace is not None else ""
    if not parts:
        return (
            f"Files of the workspace{where} are not visible to Python; the functions below reach what may be reached."
        )
    return " ".join(parts) + " No other file of the user's is visible to Python."


def _signature(gate: Gate) -> str:
    parts = []
    for name, schema in gate.properties.items():
        kind = _kind(schema)
        text = f"{name}: {kind}" if kind else name
        if name not in gate.required:
            default = schema.get("default", ...)
            text += f" = {'...' if default is ... else repr(default)}"
        parts.append(text)
    return ", ".join(parts)


def _kind(schema: Mapping[str, Any]) -> str:
    kind = schema.get("type")
    if isinstance(kind, str):
        return _KINDS.get(kind, "")
    if isinstance(kind, list):
        return " | ".join(_KINDS[k] for k in kind if k in _KINDS)
    options = schema.get("anyOf")
    if isinstance(options, list):
        return " | ".join(dict.fromkeys(k for o in options if (k := _kind(o))))
    return ""


def seconds(ms: int) -> str:
    """A time limit in words: 300 ms, 1 second, 2.5 seconds."""
    if ms < 1000:
        return f"{ms} ms"
    return f"{ms / 1000:g} second{'s' * (ms != 1000)}"
