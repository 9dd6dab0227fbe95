"""Finds tool calls in the text of a model that was asked to write them there (CRYSTAL-4).

There is one format, the one that `prompt` asks for: a fenced block with the tag ``tool_call`` that holds JSON. A call is executed,
so text that only quotes one must not be taken for it. A CommonMark parser says where blocks begin and end: a call is a block at the
top level of the message, never part of a quotation, a list, an HTML comment, an HTML element or another code block.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from cantrip_acp.crystals.text_tools.prompt import FENCE, without_invented_results

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

LONGEST = 200_000
"""Characters of an answer that is read for calls. Parsing a longer one could keep everything else waiting for seconds."""
_MOST = 64
"""More calls in one answer are a model that repeats itself."""

_ELEMENT = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:_-]*+)(?:\s[^<>]*+)?>")
_NAMED = re.compile(r"""["']name["']\s*:\s*["']([\w.-]+)["']""")
_GIVEN = re.compile(r"""["'](?:arguments|parameters)["']\s*:\s*""")

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


def read_calls(text: str) -> Reading:
    """Read an answer of a model that was asked to write its calls as text.

    A text longer than `LONGEST` is not read for calls. What stands behind an invented result does not count.
    """
    unchanged = Reading(text if text.strip() else None, ())
    said = without_invented_results(normalized(text))
    if FENCE not in said or len(said) > LONGEST:
        return unchanged
    calls: list[Found] = []
    left: list[str] = []
    at = 0
    blocks = top_level_blocks(said)
    for block in blocks:
        if len(calls) >= _MOST:
            break
        if not _asked_for(block) or in_comment(said, block.start) or around(said, blocks, block) is not None:
            continue
        found = _calls(block.body.strip())
        if found:
            left.append(said[at : block.start])
            calls.extend(found)
            at = block.end
    if not calls:
        return unchanged
    return Reading("".join([*left, said[at:]]).strip() or None, tuple(calls[:_MOST]))


def _asked_for(block: Block) -> bool:
    return block.kind == "fence" and block.info.partition(" ")[0].lower() == FENCE


def words_beside(text: str, calls: Collection[Found]) -> str | None:
    """The words of a text that holds these calls: without them, and without a block that is the program of one."""
    reading = read_calls(text)
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


def _calls(body: str) -> list[Found]:
    return _of_json(body) or _broken(body)


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
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    # Some models are trained on the second name.
    key = next((key for key in ("arguments", "parameters") if key in value), None)
    if key is None and value.keys() - {"name", "id", "type"}:
        return None
    args = value[key] if key is not None else {}
    if isinstance(args, str):
        return value["name"], args or "{}"
    try:
        return value["name"], json.dumps(args if args is not None else {}, ensure_ascii=False)
    except (TypeError, ValueError):
        return value["name"], str(args)


def _broken(body: str) -> list[Found]:
    """A call whose JSON is broken but whose name can be read: the entity is told what is wrong with the arguments."""
    named = _NAMED.search(body)
    if named is None:
        return []
    given = _GIVEN.search(body)
    if given is None:
        return [(named.group(1), body.strip())]
    rest = body[given.end() :].strip()
    # The last brace closes the call itself, not its arguments.
    return [(named.group(1), rest[:-1].rstrip() if rest.endswith("}") and rest.count("}") > rest.count("{") else rest)]
