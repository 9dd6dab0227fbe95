"""What a server was sent: the messages of a window in the form that a Chat Completions server got.

The loom keeps messages as the loop has them: calls and results have fields of their own, and there may be several system
messages. A model that writes its calls as text gets its own words back instead, and a description of its tools in the system
prompt; many servers get one system message. A trainer needs this form: the chat template applied to it gives the prompt's
tokens. `crystals` makes it when it queries, and here the same functions make it again from a turn's recorded parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from cantrip_acp.core.history.replayed_context import Window, WindowUtterance
from cantrip_acp.crystals.openai.chat_messages import DIALECTS, FILLER, arranged
from cantrip_acp.crystals.openai.tool_names import CallIds, IdStyle, wire_args, wire_name
from cantrip_acp.crystals.text_tools import render_as_text
from cantrip_acp.loom.base import BaseLoom
from cantrip_acp.types.messages import Message, RequestParameters, ToolCall
from cantrip_acp.types.records import Turn, VoidedAttempt

Form = tuple[str, str, IdStyle]
"""A dialect, how the tools were offered, and the form of the ids of calls."""


def windows_as_sent(window: Window, loom: BaseLoom, form: Form | None = None) -> Iterator[Window]:
    """Yield a window in the form that was sent; several windows if the form changed in it.

    A window whose turns name no dialect stays as it is: they are of another provider, of a script, or of an older loom.
    With ``form`` it is as a crystal with that form would have been sent it.
    """
    if form is not None:
        yield _as_sent(window, list(window.uttered), loom, form)
        return
    group: list[WindowUtterance] = []
    for uttered in window.uttered:
        if group and _form(uttered.turn) != _form(group[0].turn):
            yield _as_sent(window, group, loom, _form(group[0].turn))
            group = []
        group.append(uttered)
    if group:
        yield _as_sent(window, group, loom, _form(group[0].turn))


def windows_asked_again(window: Window) -> Iterator[Window]:
    """Split a window so that an answer that followed a rejected one has a window of its own: its prompt contains the rejected
    answers, and no later prompt does."""
    begun, group = window.begun, list[WindowUtterance]()
    for uttered in window.uttered:
        extra = [each for attempt in uttered.turn.metadata.voided or () for each in asked_again(attempt)]
        if not extra:
            group.append(uttered)
            continue
        if group:
            yield replace(window, begun=begun, messages=window.messages[: group[-1].at + 1], uttered=group)
            group = []
        messages = [*window.messages[: uttered.at], *extra, window.messages[uttered.at]]
        at = len(messages) - 1
        yield replace(window, begun="asked again", messages=messages, uttered=[WindowUtterance(uttered.turn, at)])
        begun = "asked again"
    if group:
        yield replace(window, begun=begun, uttered=group)


def asked_again(attempt: VoidedAttempt) -> tuple[Message, ...]:
    """The messages about a rejected answer in the prompt of the next attempt; empty if the same prompt was sent again."""
    if attempt.asked_again is None:
        return ()
    return Message("assistant", attempt.content), Message("user", attempt.asked_again, kind="nudge")


def _form(turn: Turn) -> Form | None:
    sent = turn.metadata.request
    if not isinstance(sent, RequestParameters) or sent.dialect not in DIALECTS:
        return None
    ids: IdStyle = "nine" if sent.call_ids == "nine" else "kimi" if sent.call_ids == "kimi" else ""
    return sent.dialect, sent.tool_mode or "native", ids


def _as_sent(window: Window, uttered: list[WindowUtterance], loom: BaseLoom, form: Form | None) -> Window:
    begun = window.begun if uttered[0] is window.uttered[0] else "cut"
    messages = window.messages[: uttered[-1].at + 1]
    if form is None:
        return replace(window, begun=begun, messages=messages, uttered=uttered)
    dialect, mode, style = form
    tools = window.tools
    said = [at for at, message in enumerate(messages) if message.role == "assistant"]
    if mode == "text":
        record = loom.cantrip(window.cantrip_id)
        choice = record.call.get("tool_choice") if record is not None else None
        offered = tools if choice != "none" else ()
        messages, tools = render_as_text(messages, offered, required=choice == "required"), ()
    else:
        ids = CallIds(style)
        messages = [_as_native(each, ids) for each in messages]
    messages = arranged(messages, DIALECTS[dialect])
    # Each of these functions keeps the assistant's messages in order, and `arranged` marks those that it adds.
    places = [at for at, each in enumerate(messages) if each.role == "assistant" and each.kind != FILLER]
    where = dict(zip(said, places, strict=True))
    return replace(
        window,
        begun=begun,
        tools=tools,
        messages=messages,
        uttered=[WindowUtterance(each.turn, where[each.at]) for each in uttered],
    )


def _as_native(message: Message, ids: CallIds) -> Message:
    """A message in a form that every Chat Completions server accepts, with its names, ids and arguments."""
    if message.role == "tool":
        return msgspec.structs.replace(message, name=None, tool_call_id=ids.of_answer(message.tool_call_id or ""))
    if not message.tool_calls:
        return message
    calls = tuple(
        ToolCall(call_id, wire_name(each.gate), wire_args(each.args))
        for call_id, each in zip(ids.of_calls(message.tool_calls), message.tool_calls, strict=True)
    )
    return msgspec.structs.replace(message, tool_calls=calls)
