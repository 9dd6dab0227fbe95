"""Mended answers: what weak models and gateways get wrong in the form of an answer, and whose meaning is clear.

- Half of a surrogate pair: the other half comes in the next piece; a half that is alone becomes U+FFFD.
- Arguments with ``{}`` before the real object, the text ``null``, and line breaks and tabs that are not escaped.
- A call without a name. It gets `NO_NAME`, which is the name of no gate, so that the model is told.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec

from cantrip_acp.crystals.contract import Delta, Emit, Response
from cantrip_acp.text.codecs import json_decoder

NO_NAME = "(no name)"
"""The gate of a call without a name."""


class WholeCharacters:
    """Passes pieces to ``emit``, and keeps half of a surrogate pair until its other half comes."""

    __slots__ = ("_emit", "_halves")

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._halves: dict[str, Delta] = {}

    async def __call__(self, delta: Delta) -> None:
        half = self._halves.pop(delta.kind, None)
        if half is not None:
            delta = Delta(delta.kind, half.text + delta.text)
        elif delta.text.isascii():
            await self._emit(delta)
            return
        text = delta.text
        if text and "\ud800" <= text[-1] <= "\udbff":
            self._halves[delta.kind] = Delta(delta.kind, text[-1])
            text = text[:-1]
        if text:
            await self._emit(Delta(delta.kind, whole_characters(text)))

    async def close(self) -> None:
        """Pass on the rest after the last piece."""
        for half in self._halves.values():
            await self._emit(Delta(half.kind, whole_characters(half.text)))
        self._halves = {}


def whole_characters(text: str) -> str:
    """Joins the halves of surrogate pairs. A half that is alone becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def mended_args(args: str) -> str:
    """Returns the arguments of a call as a JSON object where they can only mean one; else as they are."""
    args = whole_characters(args)
    if _is_object(args):
        return args
    bare = args.strip()
    if bare in ("", "null"):
        return "{}"
    while bare.startswith("{}") and bare[2:].lstrip().startswith("{"):
        bare = bare[2:].lstrip()
    if _is_object(bare):
        return bare
    try:
        value = json.loads(bare, strict=False)
    except (ValueError, RecursionError):
        return args
    made = whole_characters(json.dumps(value, ensure_ascii=False))
    return made if _is_object(made) else args


def mended(response: Response) -> Response:
    """Returns the response with whole characters, and calls that can be answered."""
    changed: dict[str, Any] = {}
    for name in ("content", "thinking"):
        text = getattr(response, name)
        if text is not None and (whole := whole_characters(text)) != text:
            changed[name] = whole
    calls = []
    for call in response.tool_calls:
        # A type that is wrong is left to `check_response`.
        gate = NO_NAME if call.gate == "" else call.gate
        args = mended_args(call.args) if isinstance(call.args, str) else call.args
        same = gate == call.gate and args == call.args
        calls.append(call if same else msgspec.structs.replace(call, gate=gate, args=args))
    if any(new is not old for new, old in zip(calls, response.tool_calls, strict=True)):
        changed["tool_calls"] = tuple(calls)
    if not changed:
        return response
    if response.provider is not None:
        changed["provider"] = _mended_data(response.provider)
    return msgspec.structs.replace(response, **changed)


def _mended_data(value: Any) -> Any:
    if isinstance(value, str):
        return whole_characters(value)
    if isinstance(value, list | tuple):
        return [_mended_data(each) for each in value]
    if isinstance(value, dict):
        return {key: _mended_data(each) for key, each in value.items()}
    return value


def _is_object(text: str) -> bool:
    try:
        json_decoder(dict[str, msgspec.Raw]).decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True
