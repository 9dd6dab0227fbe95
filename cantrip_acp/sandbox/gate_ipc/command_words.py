"""Words of a gate command, on the host: parses them into arguments, prints ``--help``, renders the result as output.

    read_file notes.txt --limit 20      words in the schema's order, flags by name
    write_file out.txt -  <draft        '-' or no word for the main text: it is read from standard input
    search --json '{"pattern": "a b"}'  every argument as one JSON object

Text arguments are used unchanged. Arguments of all other types are parsed as JSON. `--` ends the flags.
"""

from __future__ import annotations

import difflib
import json
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


class Gate(Protocol):
    """The facts about a gate that its command needs."""

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str: ...

    @property
    def properties(self) -> Mapping[str, Any]:
        """The JSON Schema of each argument, in the order of words on a command line."""
        ...

    @property
    def required(self) -> Sequence[str]: ...

    @property
    def main_text(self) -> str | None:
        """The argument that standard input fills."""
        ...

    @property
    def json_input(self) -> bool:
        """Whether standard input may be a JSON object with all arguments."""
        ...


class UsageError(Exception):
    """The words are not a valid call. The text says why, and what would be valid."""


@dataclass(slots=True)
class ParsedCall:
    """A parsed command line. ``stdin_for``: the name of the argument that standard input fills, or None."""

    args: dict[str, Any] = field(default_factory=dict)
    help: bool = False
    stdin_for: str | None = None


def parse(gate: Gate, words: Sequence[str], *, shown: str | None = None) -> ParsedCall:
    """Parse words into arguments. ``shown``: the name of the command if it is not the gate's name. Raises `UsageError`."""
    properties = gate.properties
    result = ParsedCall()
    positional = list(properties)
    queue = list(words)
    flags_end = False
    whole: dict[str, Any] | None = None
    while queue:
        word = queue.pop(0)
        if not flags_end and word == "--":
            flags_end = True
        elif not flags_end and word == "--help":
            result.help = True
            return result
        elif not flags_end and word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            if name == "json" and "json" not in properties:
                text = value if equals else _next_word(queue, word)
                whole = _object(text)
                continue
            key, negated = _flag(gate, name)
            schema = properties[key]
            if negated:
                result.args[key] = False
            elif _only(schema, "boolean") and not equals:
                result.args[key] = True
            else:
                text = value if equals else _next_word(queue, word)
                _set_flag(result.args, key, schema, text, again=key in result.args)
        else:
            open_names = [p for p in positional if p not in result.args]
            if not open_names:
                raise UsageError(
                    f"unexpected argument {_short(word)}; quote text that contains spaces. Usage: {gate_usage(gate, shown)}"
                )
            key = open_names[0]
            if _takes_many(properties[key]):
                result.args.setdefault(key, [])
                if not isinstance(result.args[key], list):
                    result.args[key] = []
                positional.remove(key)
                result.args[key].append(_item(properties[key], word))
                # Further words go into the list, as for any command that takes files.
                while queue and (flags_end or not queue[0].startswith("--")):
                    result.args[key].append(_item(properties[key], queue.pop(0)))
                continue
            result.args[key] = _value(key, properties[key], word)
    if whole is not None:
        result.args = {**whole, **result.args}
    main = gate.main_text
    if main is not None and result.args.get(main, "-") == "-":
        result.args.pop(main, None)
        result.stdin_for = main
    return result


def args_from_text(gate: Gate, name: str, text: str) -> dict[str, Any]:
    """Make arguments from a text that came as standard input or as the only argument.

    The text is the argument ``name``. If the gate accepts JSON input, the text may also be all arguments as JSON.
    Raises `UsageError`.
    """
    if not gate.json_input or text.lstrip()[:1] not in ("{", "["):
        return {name: text}
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"it begins like JSON but is not valid JSON: {error}") from None
    if isinstance(value, dict):
        return value if set(value) <= set(gate.properties) else {name: text}
    return {name: value} if _takes_many(gate.properties.get(name, {})) else {name: text}


def args_from_words(gate: Gate, args: Mapping[str, Any]) -> dict[str, Any]:
    """Make arguments from parsed words. If only the main argument is present, it may be JSON, as in `args_from_text`."""
    main = gate.main_text
    if not gate.json_input or main is None or set(args) != {main}:
        return dict(args)
    text = args[main]
    if isinstance(text, list) and len(text) == 1:
        text = text[0]
    return args_from_text(gate, main, text) if isinstance(text, str) and text.lstrip()[:1] in ("{", "[") else dict(args)


def gate_usage(gate: Gate, shown: str | None = None) -> str:
    """The usage line, for example ``read_file PATH [--offset N] [--limit N]``, in the order of the schema."""
    parts = [shown or gate.name]
    for name, schema in gate.properties.items():
        if name in gate.required:
            parts.append(name.upper() + ("..." if _takes_many(schema) else ""))
        elif _only(schema, "boolean"):
            parts.append(f"[--{_dashed(name)}]")
        else:
            parts.append(f"[--{_dashed(name)} {_placeholder(schema)}]")
    return " ".join(parts)


def contract(gate: Gate, shown: str | None = None) -> str:
    """The text of ``--help``: usage, description, and each argument with its type."""
    lines = [f"Usage: {gate_usage(gate, shown)}", ""]
    if gate.description:
        lines += [*textwrap.wrap(gate.description, 100), ""]
    rows = []
    for name, schema in gate.properties.items():
        notes = [_kind(schema)]
        if name in gate.required:
            notes.append("required")
        if "default" in schema:
            notes.append(f"default {json.dumps(schema['default'], ensure_ascii=False)}")
        if name == gate.main_text:
            notes.append("read from standard input if absent or '-'")
        rows.append((f"--{_dashed(name)}", "; ".join(n for n in notes if n), str(schema.get("description", ""))))
    width = max((len(r[0]) for r in rows), default=0)
    for flag, notes_text, description in rows:
        text = f"{description} ({notes_text})" if description else notes_text
        wrapped = textwrap.wrap(text, 100 - width) or [""]
        lines.append(f"  {flag:<{width}}  {wrapped[0]}")
        lines += [" " * (width + 4) + line for line in wrapped[1:]]
    if rows:
        more = " A JSON object on standard input does the same." if gate.json_input else ""
        lines += [
            "",
            f"Words without a flag fill the arguments in this order. --json OBJECT gives all arguments at once.{more}",
        ]
    return "\n".join(lines) + "\n"


def render(result: Any) -> str:
    """Render a result as output: text unchanged, other data as one line of JSON."""
    if isinstance(result, str):
        return result
    return json.dumps(result, ensure_ascii=False, default=str) + "\n"


def _flag(gate: Gate, name: str) -> tuple[str, bool]:
    names = {_dashed(p): p for p in gate.properties} | {p: p for p in gate.properties}
    if name in names:
        return names[name], False
    if name.startswith("no-") and name[3:] in names and _only(gate.properties[names[name[3:]]], "boolean"):
        return names[name[3:]], True
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"; did you mean --{near[0]}?" if near else ""
    known = ", ".join(f"--{_dashed(p)}" for p in gate.properties) or "none"
    raise UsageError(
        f"unknown flag --{_short(name)}{hint} (flags: {known}; write a separate -- before text that begins with --)"
    )


def _set_flag(args: dict[str, Any], key: str, schema: Mapping[str, Any], text: str, *, again: bool) -> None:
    if _takes_many(schema) and not text.lstrip().startswith("["):
        before = args.get(key) if again else None
        args[key] = [*(before if isinstance(before, list) else []), _item(schema, text)]
        return
    if again:
        raise UsageError(f"--{_dashed(key)} is used twice")
    args[key] = _value(key, schema, text)


def _item(schema: Mapping[str, Any], text: str) -> Any:
    items = schema.get("items")
    return _value("item", items if isinstance(items, Mapping) else {}, text)


def _value(key: str, schema: Mapping[str, Any], text: str) -> Any:
    """Convert a word to the schema's type. A word that cannot be converted stays text, and the gate reports it."""
    kinds = _kinds(schema)
    if not kinds or "string" in kinds:
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        if kinds == {"boolean"} and text.lower() in ("yes", "on", "no", "off"):
            return text.lower() in ("yes", "on")
        return text


def _kinds(schema: Mapping[str, Any]) -> set[str]:
    kind = schema.get("type")
    if isinstance(kind, str):
        return {kind}
    if isinstance(kind, list):
        return set(kind)
    for options in (schema.get("anyOf"), schema.get("oneOf")):
        if isinstance(options, list):
            return set().union(*(_kinds(o) for o in options if isinstance(o, Mapping)))
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        names = {str: "string", bool: "boolean", int: "integer", float: "number", type(None): "null"}
        return {names.get(type(v), "object") for v in values}
    return set()


def _only(schema: Mapping[str, Any], kind: str) -> bool:
    return _kinds(schema) - {"null"} == {kind}


def _takes_many(schema: Mapping[str, Any]) -> bool:
    return _only(schema, "array")


def _kind(schema: Mapping[str, Any]) -> str:
    if "enum" in schema:
        return "one of " + ", ".join(json.dumps(v, ensure_ascii=False) for v in schema["enum"])
    kinds = sorted(_kinds(schema) - {"null"})
    return " or ".join({"string": "text", "array": "list", "object": "JSON object"}.get(k, k) for k in kinds)


def _placeholder(schema: Mapping[str, Any]) -> str:
    kinds = _kinds(schema)
    if kinds & {"integer", "number"} and "string" not in kinds:
        return "N"
    if "object" in kinds:
        return "JSON"
    return "TEXT"


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _next_word(queue: list[str], flag: str) -> str:
    if not queue:
        raise UsageError(f"{flag} needs a value")
    return queue.pop(0)


def _object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"--json is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--json must be a JSON object")
    return value


def _short(word: str) -> str:
    return repr(word if len(word) <= 60 else word[:57] + "...")
