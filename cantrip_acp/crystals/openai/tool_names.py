"""Tool names, call ids and arguments: changes them so that a provider's API accepts them. All providers use this."""

from __future__ import annotations

import re
import secrets
import string
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Literal

import msgspec

from cantrip_acp.types.messages import ToolCall, ToolDefinition

LONGEST_NAME = 64
LONGEST_ID = 40
"""Characters of a tool call's id in Chat Completions; the Responses API takes 64."""

IdStyle = Literal["nine", "kimi", ""]
"""The form of the ids of calls in a request of Chat Completions:

- ``nine``: nine letters and digits. Mistral's API, and the templates of its models in vLLM and mlx-lm, take no others
  (opencode#1680, mlx-lm#1375), and all other servers take them.
- ``kimi``: ``functions.NAME:NUMBER``, counted over the whole conversation. Models of the Kimi K2 family are trained on them,
  read them in their prompt and stop calling tools if they see others (kimchi#1063, kimi-code#2503, mlx-lm#821).
- empty: as the crystal gave it, at most 40 characters. Turns of older looms were sent so, and the Responses API is.
"""

_LETTERS = string.ascii_letters + string.digits
_NINE = re.compile(r"[A-Za-z0-9]{9}")
_KIMI = re.compile(r"functions\.[A-Za-z0-9_-]{1,64}:(\d{1,6})")

_NAME = re.compile(rf"[A-Za-z0-9_-]{{1,{LONGEST_NAME}}}")
_DECODER = msgspec.json.Decoder()


def wire_name(name: str) -> str:
    """Convert a tool's name to only letters, digits, ``_`` and ``-``. The same name always has the same result."""
    if _NAME.fullmatch(name):
        return name
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', name)[: LONGEST_NAME - 9]}_{_digest(name)}"


def original_names(tools: Iterable[ToolDefinition]) -> Mapping[str, str]:
    """Map the converted names back to the tools' own names. Names that do not change are left out."""
    return {sent: tool.name for tool in tools if (sent := wire_name(tool.name)) != tool.name}


def wire_id(call_id: str) -> str:
    """Shorten a tool call's id if it is too long. Ids of other providers or of a medium may be longer."""
    return call_id if 0 < len(call_id) <= LONGEST_ID else f"call_{_digest(call_id, 24)}"


class CallIds:
    """The ids of the calls in one request, in the style that its reader takes.

    They depend only on the calls before, so a call has the same id in every later request, and prompt caches stay valid.
    The loom keeps the ids that the crystal gave.
    """

    __slots__ = ("_next", "_open", "_style")

    def __init__(self, style: IdStyle) -> None:
        self._style = style
        self._next = 0
        self._open: dict[str, str] = {}

    def of_calls(self, calls: Iterable[ToolCall]) -> list[str]:
        self._open = {}
        made = []
        for call in calls:
            made.append(self._made(call))
            self._open[call.id] = made[-1]
        return made

    def of_answer(self, call_id: str) -> str:
        """The provider's id for ``call_id``, in the answer to a call of the last message with calls."""
        return self._open.get(call_id) or (_nine(call_id) if self._style else wire_id(call_id))

    def _made(self, call: ToolCall) -> str:
        if self._style == "nine":
            return call.id if _NINE.fullmatch(call.id) else _nine(call.id)
        if self._style == "kimi":
            known = _KIMI.fullmatch(call.id)
            made = call.id if known is not None else f"functions.{wire_name(call.gate)}:{self._next}"
            self._next = max(self._next, int(known[1]) if known is not None else self._next) + 1
            return made
        return wire_id(call.id)


def _nine(call_id: str) -> str:
    number = int.from_bytes(sha256(call_id.encode("utf-8", "surrogatepass")).digest())
    letters = []
    for _ in range(9):
        number, rest = divmod(number, len(_LETTERS))
        letters.append(_LETTERS[rest])
    return "".join(letters)


def fresh_id() -> str:
    """A new id for a call without one, in the form that every provider takes."""
    return "".join(secrets.choice(_LETTERS) for _ in range(9))


def wire_args(args: str) -> str:
    """Return the arguments of an earlier call as a JSON object, because chat templates and servers parse them.

    Malformed arguments are put into an object, so that the model sees what it wrote.
    """
    if not args.strip():
        return "{}"
    try:
        if isinstance(_DECODER.decode(args), dict):
            return args
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        pass
    return msgspec.json.encode({"malformed_arguments": args.encode("utf-8", "replace").decode()}).decode()


def make_tool_calls(calls: Iterable[tuple[str, str, str]], back: Mapping[str, str]) -> tuple[ToolCall, ...]:
    """Make tool calls from (id, name, args). A missing or repeated id is replaced by a new one (CRYSTAL-4)."""
    seen: set[str] = set()
    out: list[ToolCall] = []
    for given, name, args in calls:
        call_id = given if given and given not in seen else fresh_id()
        seen.add(call_id)
        out.append(ToolCall(call_id, back.get(name, name), args))
    return tuple(out)


def _digest(text: str, length: int = 8) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:length]
