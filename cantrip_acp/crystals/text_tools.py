"""Tool calls in text, for models and servers that accept no tool definitions (CRYSTAL-4).

`presentation` tells the model how to write calls. `read_calls` finds them in an answer. `StreamedTextFilter` hides them
while the answer streams. A call is a fenced block with the tag ``tool_call`` that contains JSON. Calls are executed, so
a text that only quotes a call must not count as one. Therefore a CommonMark parser finds the blocks. A call must be a block
at the top level of the message, not inside a quotation, a list, an HTML comment, an HTML element or another code block.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec

from cantrip_acp.crystals.contract import Delta
from cantrip_acp.crystals.openai.tool_names import wire_args, wire_name
from cantrip_acp.types.messages import Message, ToolCall, ToolDefinition

if TYPE_CHECKING:
    from markdown_it import MarkdownIt

LONGEST = 200_000
"""The most characters of an answer in which calls are searched. Parsing a longer one could block everything for seconds."""
_MOST = 64
"""The most calls of one answer. A model that writes more is repeating itself."""

_ELEMENT = re.compile(r"<(/?)([A-Za-z][A-Za-z0-9:_-]*+)(?:\s[^<>]*+)?>")
_NAMED = re.compile(r"""["']name["']\s*:\s*["']([\w.-]+)["']""")
_GIVEN = re.compile(r"""["'](?:arguments|parameters)["']\s*:\s*""")

WrittenCall = tuple[str, str]
"""A tool's name as the model wrote it, and its arguments as JSON text (malformed if the model wrote malformed JSON)."""


@dataclass(frozen=True, slots=True)
class Block:
    """A block at the top level of a Markdown text, from offset ``start`` to ``end``.

    ``kind`` is the parser's name: fence, code_block, html_block, blockquote_open, bullet_list_open, paragraph_open and so
    on. Only a fence has ``info`` (its info string), ``body`` (its content) and ``closed`` (whether it has a closing line).
    """

    kind: str
    start: int
    end: int
    info: str = ""
    body: str = ""
    closed: bool = True


def normalized(text: str) -> str:
    """Return the text with ``\\n`` as the end of every line, as CommonMark requires."""
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def top_level_blocks(text: str) -> list[Block]:
    """Parse the top-level blocks of a `normalized` text, in order, without the blocks inside them."""
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
        # A fence without a closing line ends at the end of the text.
        closing = rf" {{0,3}}{re.escape(token.markup[0])}{{{len(token.markup)},}}[ \t]*\n?"
        closed = after - first > 1 and re.fullmatch(closing, text[starts[after - 1] : end]) is not None
        blocks.append(Block("fence", start, end, token.info.strip(), token.content, closed))
    return blocks


@cache
def _parser() -> MarkdownIt:
    """A CommonMark parser for blocks only, without inline markup."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark")
    parser.core.ruler.enableOnly(["block"])
    return parser


@dataclass(frozen=True, slots=True)
class TextCalls:
    """The parts of an answer: ``words`` is the text without the calls (None if it is empty), ``calls`` are in order."""

    words: str | None
    calls: tuple[WrittenCall, ...]


def read_calls(text: str) -> TextCalls:
    """Find the calls in an answer of a model that writes its calls as text.

    In a text longer than `LONGEST`, no calls are searched. What follows an invented result or message is ignored.
    """
    unchanged = TextCalls(text if text.strip() else None, ())
    said = without_invented_turns(normalized(text))
    if FENCE not in said.lower() or len(said) > LONGEST:
        return unchanged
    calls: list[WrittenCall] = []
    left: list[str] = []
    at = 0
    blocks = top_level_blocks(said)
    for block in blocks:
        if len(calls) >= _MOST:
            break
        if (
            not _is_tool_call(block)
            or in_comment(said, block.start)
            or enclosing_element(said, blocks, block) is not None
        ):
            continue
        found = _calls(block.body.strip())
        if found:
            left.append(said[at : block.start])
            calls.extend(found)
            at = block.end
    if not calls:
        return unchanged
    return TextCalls("".join([*left, said[at:]]).strip() or None, tuple(calls[:_MOST]))


def _is_tool_call(block: Block) -> bool:
    return block.kind == "fence" and block.info.partition(" ")[0].lower() == FENCE


def misplaced_call(text: str, tools: Collection[ToolDefinition]) -> str | None:
    """The correction for a model that wrote a call of one of these tools in a wrong form; None if it did not.

    Such a call is not executed, because it may be an example.
    """
    said = without_invented_turns(normalized(text)).strip()
    if len(said) > LONGEST or not _GIVEN.search(said):
        return None
    names = {wire_name(tool.name) for tool in tools}
    places = [(said, "is not in a block")]
    for block in top_level_blocks(said):
        if block.kind == "paragraph_open":
            places.append((said[block.start : block.end], "is not in a block"))
        elif block.kind == "fence" and block.closed and block.info.lower() not in (FENCE, "text"):
            places.append((block.body, f"is in a block that begins with ```{block.info}"))
    tagged = [piece.partition("</tool_call>") for piece in said.split("<tool_call>")[1:_MOST]]
    places += [(inner, "is between <tool_call> tags") for inner, end, _ in tagged if end]
    for body, where in places:
        called = _of_json(body.strip()) if body.lstrip()[:1] in ("{", "[") and _GIVEN.search(body) else []
        if called and all(name in names for name, _ in called):
            return (
                f"Nothing was called: the call of {called[0][0]} {where}. To call it, write it in a block of its own whose first "
                f"line is ```{FENCE}; to show it, use ```text."
            )
    return None


def text_without_calls(text: str, calls: Collection[WrittenCall]) -> str | None:
    """Return the text without these calls, and without a code block that is the program of one of them."""
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


def words_of(message: Message) -> str | None:
    """The text of a message, without the calls that a crystal wrote in it: these are in ``tool_calls``."""
    if not message.text_calls:
        return message.content
    return text_without_calls(message.content or "", [(wire_name(call.gate), call.args) for call in message.tool_calls])


def without_text_calls(messages: Sequence[Message]) -> Sequence[Message]:
    """The messages for a crystal with tool definitions. It gets the calls that another one wrote as text only as calls."""
    if not any(message.text_calls for message in messages):
        return messages
    return [msgspec.structs.replace(each, content=words_of(each), text_calls=False) for each in messages]


def in_comment(text: str, at: int) -> bool:
    """Whether offset ``at`` is inside an HTML comment."""
    return text.rfind("<!--", 0, at) > text.rfind("-->", 0, at)


def enclosing_element(text: str, blocks: Collection[Block], block: Block) -> str | None:
    """The name of an HTML element around a block, such as ``think``, ``details`` or ``example``; None if there is none."""
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


def _calls(body: str) -> list[WrittenCall]:
    return _of_json(body) or _broken(body)


def _of_json(body: str) -> list[WrittenCall]:
    """Parse calls from JSON: an object, a list, or several objects one after another. Empty if any of them is not a call."""
    out: list[WrittenCall] = []
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
    """Parse text that is almost JSON: Python literals, or JSON with trailing commas. None if that is not possible."""
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


def _call(value: Any) -> WrittenCall | None:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str) or not value["name"]:
        return None
    # Some models are trained to write "parameters".
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


def _broken(body: str) -> list[WrittenCall]:
    """Find a call whose JSON is broken but whose name is readable. The entity then gets an error about its arguments."""
    named = _NAMED.search(body)
    if named is None:
        return []
    given = _GIVEN.search(body)
    if given is None:
        return [(named.group(1), body.strip())]
    rest = body[given.end() :].strip()
    # The last brace closes the call itself, not its arguments.
    return [(named.group(1), rest[:-1].rstrip() if rest.endswith("}") and rest.count("}") > rest.count("{") else rest)]


FENCE = "tool_call"
RESULT = "<tool_result"
"""The beginning of a call's result. If the model writes it, the model invents a result."""

_MADE_UP = re.compile(
    rf"^[ \t]*{re.escape(RESULT)}\b"
    r"|<\|(?:im_start|im_end|start_header_id|eot_id|endoftext|user|end)\|>|<(?:start|end)_of_turn>|\[/?INST\]",
    re.MULTILINE | re.IGNORECASE,
)
"""The beginning of a result that a model invents, or the end of its turn as chat templates write it."""
_USER = re.compile(r"^(?:user|human):", re.MULTILINE | re.IGNORECASE)
_ASSISTANT = re.compile(r"^(?:assistant|ai):", re.MULTILINE | re.IGNORECASE)

_INTRODUCTION = """\
# Tools

You can call the tools below. To call one, write a fenced block on lines of its own, with one JSON object in it:

```tool_call
{"name": "NAME", "arguments": {"ARGUMENT": "VALUE"}}
```

Every such block is executed, so write one only to make a call, never as an example. Several blocks are executed in order.
After your calls, stop: the results come in the next message, in <tool_result> elements. Never write those yourself.

The tools, each with a JSON Schema of its arguments:
"""

_REQUIRED = "\nEach of your answers must call at least one tool.\n"


def presentation(tools: Sequence[ToolDefinition], *, required: bool = False) -> str:
    """The text that replaces tool definitions: it describes the tools and the format of calls."""
    lines = [_INTRODUCTION]
    for tool in tools:
        schema = msgspec.json.encode(dict(tool.parameters)).decode()
        lines.append(f"## {wire_name(tool.name)}\n{tool.description.strip()}\nArguments: {schema}\n")
    if required:
        lines.append(_REQUIRED)
    return "\n".join(lines)


_JSON_RULES = r"""
value ::= object | array | string | number | boolean | "null"
object ::= "{" ( string ": " value ( ", " string ": " value )* )? "}"
array ::= "[" ( value ( ", " value )* )? "]"
string ::= "\"" ( [^"\\\x00-\x1F\x7F] | "\\" ( ["\\/bfnrt] | "u" [0-9a-fA-F]{4} ) )* "\""
number ::= integer ( "." [0-9]{1,15} )?
integer ::= "-"? ( "0" | [1-9] [0-9]{0,15} )
boolean ::= "true" | "false"
"""


def call_grammar(tools: Sequence[ToolDefinition]) -> str:
    """A grammar (GBNF of llama.cpp) that allows one call of one of these tools, written as `presentation` says, and nothing else.

    The arguments are those of the tool's schema, the required ones first. Their values have the right JSON type; deeper rules of
    the schema are checked when the gate is called.
    """
    rules = [
        f'root ::= {_literal(f"```{FENCE}" + chr(10))} ( {" | ".join(f"call{i}" for i in range(len(tools)))} ) "\\n```"'
    ]
    for number, tool in enumerate(tools):
        head = json.dumps({"name": wire_name(tool.name)})[:-1] + ', "arguments": '
        rules.append(f'call{number} ::= {_literal(head)} {_arguments_rule(tool.parameters)} "}}"')
    return "\n".join(rules) + _JSON_RULES


def _arguments_rule(schema: Mapping[str, Any]) -> str:
    known, required = schema.get("properties"), schema.get("required")
    if not isinstance(known, dict) or not isinstance(required, list) or not required:
        return "object"
    parts = [f"{_literal(json.dumps(name) + ': ')} {_value_rule(known.get(name))}" for name in required]
    rule = f'"{{" {" {} ".format(_literal(", ")).join(parts)}'
    for name in known:
        if name not in required:
            rule += f" ( {_literal(', ' + json.dumps(name) + ': ')} {_value_rule(known[name])} )?"
    return rule + ' "}"'


def _value_rule(schema: Any) -> str:
    if not isinstance(schema, dict):
        return "value"
    if isinstance(schema.get("enum"), list) and schema["enum"]:
        return f"( {' | '.join(_literal(json.dumps(each)) for each in schema['enum'])} )"
    kind = schema.get("type")
    return kind if kind in ("string", "integer", "number", "boolean", "array", "object") else "value"


def _literal(text: str) -> str:
    """The text as a literal of GBNF, which has the escapes of JSON that occur here."""
    return json.dumps(text, ensure_ascii=False)


def render_as_text(
    messages: Sequence[Message], tools: Sequence[ToolDefinition], *, required: bool = False
) -> list[Message]:
    """Render calls and their results in the messages as text, and describe the tools after the system messages."""
    out: list[Message] = []
    start = 0
    while start < len(messages) and messages[start].role == "system":
        start += 1
    out.extend(messages[:start])
    if tools:
        out.append(Message("system", presentation(tools, required=required), kind="capabilities"))
    results: list[Message] = []
    for message in messages[start:]:
        if message.role == "tool":
            results.append(message)
            continue
        _flush(results, out)
        if message.role == "assistant" and message.text_calls:
            # The model's own text already contains the calls. Leave out a result that it invented.
            out.append(Message("assistant", without_invented_turns(message.content or ""), thinking=message.thinking))
        elif message.role == "assistant" and message.tool_calls:
            said = [message.content] if message.content else []
            text = "\n\n".join([*said, *(_block(call) for call in message.tool_calls)])
            out.append(Message("assistant", text, thinking=message.thinking))
        else:
            out.append(message)
    _flush(results, out)
    return out


def _flush(results: list[Message], out: list[Message]) -> None:
    if results:
        images = tuple(image for message in results for image in message.attachments)
        out.append(Message("user", "\n\n".join(map(_result, results)), attachments=images))
        results.clear()


def _block(call: ToolCall) -> str:
    return f'```{FENCE}\n{{"name": "{wire_name(call.gate)}", "arguments": {wire_args(call.args)}}}\n```'


def _result(message: Message) -> str:
    failed = ' error="true"' if message.is_error else ""
    return f'{RESULT} name="{wire_name(message.name or "tool")}"{failed}>\n{message.content or ""}\n</tool_result>'


def without_invented_turns(text: str) -> str:
    """Return the text before a tool result, or a message of another, that the model invented.

    The rest is ignored, because it builds on that.
    """
    made_up = _MADE_UP.search(text)
    text = text if made_up is None else text[: made_up.start()]
    user = _USER.search(text)
    # A line that begins with "User:" may be anything, but not with an answer of the assistant after it.
    return text if user is None or _ASSISTANT.search(text, user.end()) is None else text[: user.start()]


_THINK = "think"
THINK_TAGS = (_THINK, "thinking", "thought", "reasoning", "seed:think")
"""Names of elements that contain a model's thinking, if its server does not separate the thinking from the text."""

_OPEN = {f"<{tag}>": f"</{tag}>" for tag in THINK_TAGS} | {"◁think▷": "◁/think▷", "[THINK]": "[/THINK]"}
_LOST = "</think>"
"""Thinking without an opening tag ends with it. The templates of some models put the opening tag into the prompt."""
_QUOTES = frozenset("`'\"")
_INSIDE_CALL = re.compile(r"<(/?)(?:tool_call|function|invoke|parameter)\b")
_CODE_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})(.*)")
_LINE = re.compile(r"[^\n]*\n|[^\n]+")


def think_tags(messages: Iterable[Message]) -> dict[str, str]:
    """The tags, opening to closing, in which an answer's text may contain thinking.

    Not those for which the prompt asks, as in ``Write <reasoning>…</reasoning>, then <answer>…</answer>``: they are the text.
    Models write ``<think>`` of their own, so only a system message can ask for that.
    """
    asked = {
        tag
        for message in messages
        if message.content and message.role in ("system", "user")
        for tag in THINK_TAGS
        if (message.role == "system" or tag != _THINK)
        and (f"<{tag}>" in message.content or f"</{tag}>" in message.content)
    }
    return {opening: closing for opening, closing in _OPEN.items() if opening.strip("<>") not in asked}


def _end_of_lost_thinking(text: str) -> int | None:
    """Where thinking ends whose opening tag was in the prompt. None if there is none: an answer may mention the tag.

    A mention is in code, in a call, in quotes, between spaces, or follows an opening tag. What ends thinking stands at the
    beginning of a line, at the end of one, or between the end of a sentence and a word.
    """
    at, fence, begun, calls = 0, "", 0, 0
    tentative: int | None = None
    if _LOST not in text:
        return None
    for match in _LINE.finditer(text):
        line = match[0]
        mark = _CODE_FENCE.match(line)
        if mark is not None and (not fence or (mark[1].startswith(fence) and not mark[2].strip())):
            # What is in code is a mention, if the code ends. Thinking may leave a fence open.
            fence, tentative = ("" if fence else mark[1]), None
        seen = 0
        while (place := line.find(_LOST, seen)) >= 0:
            begun += line.count("<think>", seen, place)
            calls += _open_calls(line[seen:place])
            seen = place + len(_LOST)
            if begun:
                begun -= 1
            elif tentative is None and calls <= 0 and _ends_thinking(line[:place], line[seen:]):
                if not fence:
                    return at + seen
                tentative = at + seen
        begun += line.count("<think>", seen)
        calls += _open_calls(line[seen:])
        at += len(line)
    return tentative if fence else None


def _open_calls(text: str) -> int:
    return sum(-1 if mark[1] else 1 for mark in _INSIDE_CALL.finditer(text)) if "<" in text else 0


def _ends_thinking(before: str, after: str) -> bool:
    """Whether a closing tag between these parts of its line is more than a mention."""
    at_end = not after.strip()
    if not before:
        return at_end or not (after[0].isspace() or after[0] in _QUOTES)
    last = before[-1]
    if at_end:
        return not (last.isspace() or last in _QUOTES or last in "([{<|")
    return last in ".!?…。" and (after[0].isalnum() or after[0] in "*#")


_CALL = re.compile(rf"(`{{3,}}|~{{3,}})[ \t]*{FENCE}", re.IGNORECASE)


class StreamedTextFilter:
    """Separates thinking, text and tool calls of one answer while it streams.

    ``names`` are the tools that the model may call in its text. If there are none, no calls are searched. ``tags`` are those
    that may contain thinking (`think_tags`).
    """

    def __init__(self, names: Collection[str], *, tags: Mapping[str, str]) -> None:
        self._names = names
        self._tags = tags
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._state = "start" if tags else "text"
        self._close = ""
        self._pending = ""
        self._emitted: list[str] = []
        self._waiting = ""
        self._line_begins = True
        self._held = False

    def feed(self, piece: str) -> list[Delta]:
        """Add a piece of the answer. Returns the thinking and text that can be shown now."""
        self._pending += piece
        out: list[Delta] = []
        if self._state == "start":
            self._begin()
        if self._state == "thinking":
            out += self._think()
        if self._state == "after":
            # Drop blank lines between the thinking and the answer.
            self._pending = self._pending.lstrip()
            if self._pending:
                self._state = "text"
        if self._state == "text":
            fresh, self._pending = self._pending, ""
            self._text.append(fresh)
            out += self._show(fresh)
        return out

    def thought_apart(self) -> None:
        """Say that the server sends the thinking in a field of its own: what comes now is text, whatever it contains."""
        if self._state == "start":
            self._state = "text"
        self._tags = {}

    def finish(self) -> tuple[list[Delta], str | None, str | None, tuple[WrittenCall, ...]]:
        """End the answer. Returns the rest to show, and the whole thinking, the whole text, and the calls in the text."""
        out: list[Delta] = []
        if self._state == "thinking":
            # Without a closing tag the answer was cut off during the thinking.
            rest, _, self._pending = self._pending.partition(self._close)
            self._thoughts.append(rest)
            out.append(Delta("thought", rest))
            self._text.append(self._pending)
        elif self._pending:
            self._text.append(self._pending)
        text = "".join(self._text)
        if _LOST in self._tags.values() and not self._close and (end := _end_of_lost_thinking(text)) is not None:
            self._thoughts.append(text[: end - len(_LOST)])
            text = text[end:].lstrip()
        words: str | None = text
        calls: tuple[WrittenCall, ...] = ()
        if self._names:
            reading = read_calls(text)
            words, calls = reading.words, reading.calls
        shown = "".join(self._emitted)
        if calls:
            shown = shown.strip()
        if words is not None and words.startswith(shown):
            # Show the text that was hidden but is not a call.
            out.append(Delta("text", words[len(shown) :]))
        content = text if text.strip() or not self._names else None
        return [d for d in out if d.text], "".join(self._thoughts).strip() or None, content or None, calls

    def _begin(self) -> None:
        """Check whether the answer begins with a thinking tag. Wait for more text while this is not clear."""
        head = self._pending.lstrip()
        for opening, closing in self._tags.items():
            if head.startswith(opening):
                self._state, self._close = "thinking", closing
                self._pending = head[len(opening) :].lstrip("\n")
                return
        if not any(opening.startswith(head) for opening in self._tags):
            self._state = "text"

    def _think(self) -> list[Delta]:
        end = self._pending.find(self._close)
        while end >= 0 and (quote := self._before(end)) in _QUOTES:
            # The thinking may be about the tag.
            following = end + len(self._close)
            if following == len(self._pending):
                return []
            if self._pending[following] != quote:
                break
            end = self._pending.find(self._close, following)
        if end >= 0:
            before, self._pending = self._pending[:end], self._pending[end + len(self._close) :]
            self._state = "after"
        else:
            before = self._pending
            # Wait with the last characters if they may begin the closing tag.
            keep = _overlap(before, self._close)
            before, self._pending = before[: len(before) - keep], before[len(before) - keep :]
        if not before:
            return []
        self._thoughts.append(before)
        return [Delta("thought", before)]

    def _before(self, at: int) -> str:
        """The character of the thinking before an offset of what is pending."""
        return self._pending[at - 1] if at else self._thoughts[-1][-1] if self._thoughts else ""

    def _show(self, fresh: str) -> list[Delta]:
        self._waiting += fresh
        if self._held:
            return []
        cut, self._held = self._first_mark() if self._names else (len(self._waiting), False)
        ready, self._waiting = self._waiting[:cut], self._waiting[cut:]
        if not ready:
            return []
        self._emitted.append(ready)
        self._line_begins = ready.endswith("\n")
        return [Delta("text", ready)]

    def _first_mark(self) -> tuple[int, bool]:
        """The offset up to which text can be shown now, and whether a call or an invented result begins there."""
        waiting = self._waiting
        at = 0 if self._line_begins else waiting.find("\n") + 1
        if not self._line_begins and not at:
            return len(waiting), False
        while True:
            end = waiting.find("\n", at)
            head = (waiting[at:] if end < 0 else waiting[at:end]).lstrip(" \t")
            if head.startswith(RESULT) or _CALL.match(head):
                return at, True
            if end < 0:
                return (at if _may_become_a_mark(head) else len(waiting)), False
            at = end + 1


def _may_become_a_mark(head: str) -> bool:
    """Whether a line with this beginning may become the first line of a call or of an invented result."""
    if RESULT.startswith(head):
        return True
    tag = head.lstrip(head[:1])
    fence = len(head) - len(tag)
    if head[:1] not in ("`", "~"):
        return False
    return not tag or (fence >= 3 and FENCE.startswith(tag.lstrip(" \t").lower()))


def _overlap(text: str, closing: str) -> int:
    """The number of characters at the end of ``text`` that may begin ``closing``."""
    for length in range(min(len(text), len(closing) - 1), 0, -1):
        if closing.startswith(text[-length:]):
            return length
    return 0
