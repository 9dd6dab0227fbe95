"""Finds tool calls in the text of a model that was asked to write them there: in the format that it was given, and in
those that models fall back to by habit.

A call is something that runs, so what only talks about one must not be taken for it. Where blocks begin and end is for a
CommonMark parser to say: a call stands at the top level of the message, never in a quotation, a list, an HTML comment or
another code block. Plain JSON counts only if it names a known tool and nothing is said after it.
"""

from __future__ import annotations

import ast
import json
import re
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from cantrip_acp.crystals.text_tools.prompt import without_invented_results

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

LONGEST = 200_000
"""Characters of an answer that is read for calls. Parsing a longer one could keep everything else waiting for seconds."""
_MOST = 64
"""More calls in one answer are a model that repeats itself."""
_MOST_PARSES = 8
"""How often the rest of an answer is parsed anew, behind calls that had fences in them."""

# A model may repeat anything without end, so no pattern here goes back over what it has read: what is never closed goes on to
# the end of the text, and repetitions are possessive.
_FENCE = re.compile(
    r"^[ \t]*+(`{3,}+|~{3,}+)[ \t]*+([\w.+-]*+)[^\n]*+\n(.*?)(?:^[ \t]*+\1[`~]*+[ \t]*+$|\Z)", re.DOTALL | re.MULTILINE
)
_FENCES = re.compile(r"```|~~~")
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
_ELEMENT = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:_-]*+)(?:\s[^<>]*+)?>")
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

Found = tuple[str, str]
"""A tool's name as the model wrote it, and its arguments as JSON text (malformed where the model's was)."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block at the top level of a Markdown text, from ``start`` to ``end`` (offsets).

    ``kind`` is the parser's: fence, code_block, html_block, blockquote_open, bullet_list_open, paragraph_open and so on. Of a
    fence, ``info`` is its info string, ``body`` what it holds, and ``closed`` says whether it has a closing line.
    """

    kind: str
    start: int
    end: int
    info: str = ""
    body: str = ""
    closed: bool = True


def normalized(text: str) -> str:
    """The text with ``\\n`` at the end of every line, as CommonMark reads it."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def top_level_blocks(text: str) -> list[Block]:
    """The blocks of a `normalized` text, in order; none of what is inside of them."""
    starts = [0]
    for match in re.finditer("\n", text):
        starts.append(match.end())
    starts.append(len(text) + 1)
    blocks: list[Block] = []
    for token in _parser().parse(text):
        if token.level or token.map is None:
            continue
        first, after = token.map
        start, end = starts[first], min(starts[after], len(text))
        if token.type != "fence":
            blocks.append(Block(token.type, start, end))
            continue
        # An open fence goes on to the end of the text, so no line in it can close it.
        closing = rf" {{0,3}}{re.escape(token.markup[0])}{{{len(token.markup)},}}[ \t]*\n?"
        closed = after - first > 1 and re.fullmatch(closing, text[starts[after - 1] : end]) is not None
        blocks.append(Block("fence", start, end, token.info.strip(), token.content, closed))
    return blocks


@cache
def _parser() -> MarkdownIt:
    """A CommonMark parser that looks at blocks alone."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["block"])
    return parser


@dataclass(frozen=True, slots=True)
class Reading:
    """What an answer says: ``words`` is the text without the calls, None if nothing is left; ``calls`` are in order."""

    words: str | None
    calls: tuple[Found, ...]


def read_calls(text: str, names: Collection[str]) -> Reading:
    """Read an answer of a model that was asked to write its calls as text. ``names`` are the tools that there are."""
    whole = text
    text = without_invented_results(normalized(text))
    calls: list[Found] = []
    left: list[str] = []
    at = parses = 0
    while at < len(text) and len(text) <= LONGEST and parses < _MOST_PARSES:
        parses += 1
        more = _read_on(text, at, names, calls, left)
        if more is None:
            break
        at = more
    else:
        left.append(text[at:])
    words = "".join(left).strip()
    if not calls and words[:1] in ("{", "["):
        found = _of_json(words)
        if found and all(name in names for name, _ in found):
            return Reading(None, tuple(found[:_MOST]))
    return Reading((words or None) if calls else (whole.strip() and whole) or None, tuple(calls[:_MOST]))


def words_beside(text: str, calls: Collection[Found]) -> str | None:
    """The words of a text that holds these calls: without them, and without a block that is the program of one."""
    reading = read_calls(text, {name for name, _ in calls})
    if reading.calls:
        return reading.words
    programs: set[str] = set()
    for _, args in calls:
        given = _loose(args)
        programs.update(v for v in given.values() if isinstance(v, str)) if isinstance(given, dict) else None
    text = normalized(text)
    blocks = [b for b in top_level_blocks(text) if b.kind == "fence" and b.body.removesuffix("\n") in programs]
    for block in reversed(blocks):
        text = text[: block.start] + text[block.end :]
    return text.strip() or None


def _read_on(text: str, at: int, names: Collection[str], calls: list[Found], left: list[str]) -> int | None:
    """Read the text from ``at`` on; where it must be parsed anew, None at its end.

    A call in marks may hold anything, also the beginning of a fence: what stands behind it is then parsed by itself.
    """
    base, rest = at, text[at:]
    blocks = top_level_blocks(rest)
    last_words = max((b.end for b in blocks if b.kind != "fence"), default=0)
    fences = iter([b for b in blocks if b.kind == "fence"])
    fence, marked = next(fences, None), _MARKED.search(rest)
    at = 0
    while len(calls) < _MOST:
        while fence is not None and fence.start < at:
            fence = next(fences, None)
        # Each is looked for again only once it is passed: not from every place to the end of the text.
        while marked is not None:
            hidden = _hidden(rest, marked.start(), blocks)
            if marked.start() >= at and hidden is None:
                break
            marked = _MARKED.search(rest, max(at, marked.start() + 1, 0 if hidden is None else hidden.end))
        if fence is None and marked is None:
            break
        if marked is not None and (fence is None or marked.start() <= fence.start):
            start, end, found = marked.start(), marked.end(), _of_marked(marked)
        else:
            assert fence is not None
            start, end = fence.start, fence.end
            found = [] if in_comment(rest, start) else _of_fence(fence, last_words, names)
            fence = next(fences, None)
        left.append(rest[at:start] if found else rest[at:end])
        calls.extend(found)
        at = end if end > at else at + 1
        if marked is not None and start == marked.start() and _FENCES.search(rest, start, end):
            return base + at
    left.append(rest[at:])
    return None


def _hidden(text: str, at: int, blocks: list[Block]) -> Block | None:
    """The block around a place, if nothing in there is a call: a list, say, or an HTML comment. None where calls count."""
    block = blocks[bisect_right(blocks, at, key=lambda b: b.start) - 1] if blocks else None
    if block is None or not block.start <= at < block.end:
        return None
    if block.kind == "paragraph_open":
        return block if text.count("`", block.start, at) % 2 or in_comment(text, at) else None
    # What marks a call may be HTML itself.
    html = block.kind == "html_block" and text[block.start : block.start + 100].lstrip().startswith("<invoke")
    return None if html else block


def in_comment(text: str, at: int) -> bool:
    """Whether an HTML comment was begun before a place and not ended."""
    return text.rfind("<!--", 0, at) > text.rfind("-->", 0, at)


def around(text: str, blocks: Collection[Block], block: Block) -> str | None:
    """The HTML element that is begun before a block and ended behind it: ``<think>``, ``<details>``, ``<example>``."""
    opened = list[str]()
    for each in blocks:
        if each.start >= block.start:
            break
        if each.kind == "html_block" or (
            each.kind == "paragraph_open" and text[each.start : each.end].lstrip()[:1] == "<"
        ):
            for end, name in _ELEMENT.findall(text[each.start : each.end]):
                if not end:
                    opened.append(name.lower())
                elif name.lower() in opened:
                    del opened[opened.index(name.lower()) :]
    ended = {name.lower() for end, name in _ELEMENT.findall(text[block.end :]) if end} if opened else ()
    return next((name for name in opened if name in ended), None)


def _of_fence(fence: Block, last_words: int, names: Collection[str]) -> list[Found]:
    language, body = fence.info.split(" ")[0].lower(), fence.body.strip()
    if language in _ASKED:
        return _of_json(body) or _mended(body)
    if language in _JSON:
        found = _of_json(body)
        # Somebody who goes on talking was giving an example.
        if found and all(name in names for name, _ in found) and last_words <= fence.start:
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
    if "<function=" in body:
        return _functions(body)
    body = _unfenced(body)
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
