"""Finds tool calls in a model's text: the format that was asked for, and those that models fall back to by habit.

A call is something that runs, so what only talks about one must not be taken for it: a format counts at the start of a line
and outside of other code blocks; plain JSON counts only where it names a tool that there is and nothing is said after it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from cantrip_acp.crystals.texttools import RESULT

_MOST = 64
"""More calls in one answer are a model that repeats itself."""

# A model may repeat anything without end, so no pattern here goes back over what it has read: what is never closed goes on to
# the end of the text, and repetitions are possessive.
_FENCE = re.compile(
    r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([\w.+-]*+)[^\n]*+\n(.*?)(?:^[ \t]*+\1[`~]*+[ \t]*+$|\Z)", re.DOTALL | re.MULTILINE
)
_ASKED = ("tool_call", "tool_calls", "tool-call", "tool_use", "tool_code")
_JSON = ("json", "jsonc", "json5", "")

_MARKED = re.compile(
    r"^[ \t]*(?:"
    r"<tool_calls?>(?P<hermes>.*?)(?:</tool_calls?>|\Z)"
    r"|<\|tool_calls?\|>(?P<phi>.*?)(?:<\|/tool_calls?\|>|\Z)"
    r"|\[TOOL_CALLS\](?P<mistral>.*)\Z"
    r"|<\|python_tag\|>(?P<llama>.*?)(?:<\|eom_id\|>|<\|eot_id\|>|\Z)"
    r"|(?P<function><function=.*?(?:</function>|\Z))"
    r"|(?:<function_calls>\s*)?(?P<invoke><invoke name=.*?(?:</invoke>|\Z))(?:\s*</function_calls>)?"
    r"|(?:<｜tool▁calls▁begin｜>)?(?P<deepseek><｜tool▁call▁begin｜>.*?(?:<｜tool▁call▁end｜>|\Z))(?:\s*<｜tool▁calls▁end｜>)?"
    r"|(?:<\|tool_calls_section_begin\|>)?(?P<kimi><\|tool_call_begin\|>.*?(?:<\|tool_call_end\|>|\Z))"
    r"(?:\s*<\|tool_calls_section_end\|>)?"
    r"|(?:<\|start\|>assistant)?(?P<harmony><\|channel\|>commentary to=functions\..*?(?:<\|call\|>|\Z))"
    r")",
    re.DOTALL | re.MULTILINE,
)
_FUNCTION = re.compile(r"<function=([\w.-]+)>(.*?)(?:</function>|\Z)", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([\w.-]+)>\n?(.*?)\n?(?:</parameter>|(?=<parameter=)|\Z)", re.DOTALL)
_INVOKE = re.compile(r'<invoke name="([^"]+)">(.*?)(?:</invoke>|\Z)', re.DOTALL)
_INVOKED = re.compile(r'<parameter name="([^"]+)">(.*?)(?:</parameter>|\Z)', re.DOTALL)
_DEEPSEEK = re.compile(
    r"<｜tool▁call▁begin｜>(?:function<｜tool▁sep｜>)?([\w.-]+)(?:<｜tool▁sep｜>)?\s*(.*?)<｜tool▁call▁end｜>",
    re.DOTALL,
)
_KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*(?:functions\.)?([\w.-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>(.*?)(?:<\|tool_call_end\|>|\Z)",
    re.DOTALL,
)
_HARMONY = re.compile(r"to=functions\.([\w.-]+).{0,200}?<\|message\|>(.*?)(?:<\|call\|>|\Z)", re.DOTALL)
_NAMED = re.compile(r"""["'](?:name|tool|tool_name|function)["']\s*:\s*["']([\w.-]+)["']""")
_GIVEN = re.compile(r"""["'](?:arguments|parameters|args|input|tool_input)["']\s*:\s*""")
_MADE_UP = re.compile(rf"^[ \t]*{re.escape(RESULT)}\b", re.MULTILINE)

Found = tuple[str, str]
"""A tool's name as the model wrote it, and its arguments as JSON text (malformed where the model's was)."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says: ``content`` without the calls, None where nothing is left; ``calls`` in order."""

    content: str | None
    calls: tuple[Found, ...]


def read_calls(text: str, names: Collection[str], *, asked: bool) -> Reading:
    """Read an answer. ``asked``: calls were asked for in text; else only what no prose has counts (`_MARKED`)."""
    if asked and (made_up := _MADE_UP.search(text)):
        # A result that the model invented, and all that it made of it.
        text = text[: made_up.start()]
    calls: list[Found] = []
    left: list[str] = []
    at = 0
    fence, marked = _FENCE.search(text), _MARKED.search(text)
    words_end = _words_end(text)
    while at <= len(text) and len(calls) < _MOST:
        # Each is looked for again only once it is passed: not from every place to the end of the text.
        if fence is not None and fence.start() < at:
            fence = _FENCE.search(text, at)
        if marked is not None and marked.start() < at:
            marked = _MARKED.search(text, at)
        if fence is None and marked is None:
            break
        if marked is not None and (fence is None or marked.start() <= fence.start()):
            found = _of_marked(marked)
            if not asked and not all(name in names for name, _ in found):
                found = []
            match = marked
        else:
            assert fence is not None
            match = fence
            found = _of_fence(fence, words_end, names) if asked else []
        left.append(text[at : match.start()] if found else text[at : match.end()])
        calls.extend(found)
        at = match.end() if match.end() > at else at + 1
    left.append(text[at:])
    content = "".join(left).strip()
    if not calls and asked and content[:1] in ("{", "["):
        whole = _of_json(content)
        if whole and all(name in names for name, _ in whole):
            return Reading(None, tuple(whole[:_MOST]))
    return Reading((content or None) if calls else (text.strip() and text) or None, tuple(calls[:_MOST]))


def _words_end(text: str) -> int:
    """Where the last words outside of code blocks end."""
    end = at = 0
    for fence in _FENCE.finditer(text):
        if not text[at : fence.start()].isspace() and at < fence.start():
            end = fence.start()
        at = fence.end()
    return end if not text[at:].strip() else len(text)


def _of_fence(fence: re.Match[str], words_end: int, names: Collection[str]) -> list[Found]:
    language, body = fence.group(2).lower(), fence.group(3).strip()
    if language in _ASKED:
        return _of_json(body) or _mended(body)
    if language in _JSON:
        found = _of_json(body)
        # Somebody who goes on talking was giving an example.
        if found and all(name in names for name, _ in found) and words_end <= fence.start():
            return found
    return []


def _of_marked(match: re.Match[str]) -> list[Found]:
    kind, body = match.lastgroup, match.group(match.lastgroup or 0)
    match kind:
        case "function":
            return _functions(body)
        case "invoke":
            return [(name, _object(_INVOKED.findall(inner))) for name, inner in _INVOKE.findall(body)]
        case "deepseek":
            return [(name, _unfenced(args)) for name, args in _DEEPSEEK.findall(body)]
        case "kimi":
            return [(name, args.strip() or "{}") for name, args in _KIMI.findall(body)]
        case "harmony":
            return [(name, args.strip() or "{}") for name, args in _HARMONY.findall(body)]
    body = _unfenced(body)
    if "<function=" in body:
        return _functions(body)
    if kind == "mistral" and (
        named := re.match(r"\s*([\w.-]+)\s*(?:\[(?:CALL_ID\]\w*\[)?ARGS\])?\s*(\{.*)", body, re.DOTALL)
    ):
        return [(named.group(1), named.group(2).strip())]
    return _of_json(body) or _mended(body)


def _functions(body: str) -> list[Found]:
    out = []
    for name, inner in _FUNCTION.findall(body):
        given = _PARAMETER.findall(inner)
        out.append((name, _object(given) if given or not inner.strip() else inner.strip()))
    return out


def _object(pairs: list[tuple[str, str]]) -> str:
    """Arguments that came as elements: JSON where the text is some that is no plain word, else the text itself."""
    out: dict[str, Any] = {}
    for key, text in pairs:
        value: Any = text
        if re.fullmatch(r"\s*(?:\{.*\}|\[.*\]|-?\d+(?:\.\d+)?|true|false|null)\s*", text, re.DOTALL):
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                value = text
        out[key] = value
    return json.dumps(out, ensure_ascii=False)


def _of_json(body: str) -> list[Found]:
    """The calls of a body of JSON: an object, a list, or several objects one after the other. None if any is no call."""
    out: list[Found] = []
    decoder = json.JSONDecoder(strict=False)
    at = 0
    while True:
        while at < len(body) and body[at] in " \t\r\n;,":
            at += 1
        if at >= len(body):
            return out
        try:
            value, at = decoder.raw_decode(body, at)
        except (ValueError, RecursionError):
            value = _loose(body[at:])
            at = len(body)
        for each in value if isinstance(value, list) else [value]:
            found = _call(each)
            if found is None:
                return []
            out.append(found)


def _loose(body: str) -> Any:
    """What is nearly JSON: Python's own notation, commas before a closing bracket. None where it is not even that."""
    if len(body) > 200_000:
        return None
    try:
        return json.loads(re.sub(r",(\s*[}\]])", r"\1", body), strict=False)
    except (ValueError, RecursionError):
        pass
    try:
        return ast.literal_eval(body.strip())
    except (ValueError, SyntaxError, RecursionError, MemoryError, TypeError):
        return None


def _call(value: Any) -> Found | None:
    if not isinstance(value, dict):
        return None
    if isinstance(value.get("function"), dict):
        value = value["function"]
    name = next((value[k] for k in ("name", "tool", "tool_name", "function") if isinstance(value.get(k), str)), None)
    if not name:
        return None
    given = next((k for k in ("arguments", "parameters", "args", "input", "tool_input") if k in value), None)
    if given is None:
        rest = {k: v for k, v in value.items() if k not in ("name", "tool", "tool_name", "function", "id", "type")}
        return (name, json.dumps(rest, ensure_ascii=False)) if not rest else None
    args = value[given]
    if isinstance(args, str):
        return name, args or "{}"
    try:
        return name, json.dumps(args if args is not None else {}, ensure_ascii=False)
    except (TypeError, ValueError):
        return name, str(args)


def _mended(body: str) -> list[Found]:
    """A call whose JSON is broken but whose name can be read: the entity sees what is wrong with it."""
    named = _NAMED.search(body)
    if named is None:
        return []
    given = _GIVEN.search(body)
    if given is None:
        return [(named.group(1), body.strip())]
    rest = body[given.end() :].strip()
    # The last brace closes the call itself, not its arguments.
    return [(named.group(1), rest[:-1].rstrip() if rest.endswith("}") and rest.count("}") > rest.count("{") else rest)]


def _unfenced(body: str) -> str:
    fence = _FENCE.search(body)
    return (fence.group(3) if fence is not None else body).strip()
