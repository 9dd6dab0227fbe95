"""Renderer of version 2: turns the updates of version 1 into those of version 2 (ACP v2, Prompt Lifecycle and Tool Calls).

A tool call is inserted and changed by one kind of update. The output of a command goes into a terminal of the agent. A diff is
a list of changes with a patch. What version 2 does not have is left out: modes, which are config options there.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from cantrip_acp.acp import protocol as acp
from cantrip_acp.types.records import new_id

MAX_PATCH = 4000
"""Lines of a file up to which a diff has a patch. Comparing longer ones takes too long."""

_TERMINAL_KEYS = ("terminal_info", "terminal_output", "terminal_exit")


def render(session_id: str, update: acp.Update, *, of_child: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """Convert one update of version 1 to updates of version 2, each with the id of its session. ``of_child``: the session is
    a child's, whose calls are stopped with the call that started it."""
    match update:
        case acp.CurrentMode():
            return
        case acp.ToolCall() | acp.ToolCallUpdate():
            for each in _tool_call(update):
                if not of_child and each["sessionUpdate"] == "tool_call_update":
                    _offer_cancel(each, known=isinstance(update, acp.ToolCallUpdate))
                yield session_id, each
        case acp.ConfigOptionsChanged(config_options=options):
            yield session_id, {"sessionUpdate": "config_option_update", "configOptions": list(map(option, options))}
        case acp.AvailableCommands(available_commands=commands):
            known = list(map(_command, commands))
            yield session_id, {"sessionUpdate": "available_commands_update", "availableCommands": known}
        case acp.SubagentUpdate(session_id=child, state=state):
            yield session_id, _plain(update)
            if state is not None:
                yield child, {"sessionUpdate": "state_update", **_plain(state)}
        case acp.UserMessageChunk() | acp.AgentMessageChunk() | acp.AgentThoughtChunk():
            plain = _plain(update)
            plain.setdefault("messageId", new_id("m"))
            yield session_id, plain
        case _:
            yield session_id, _plain(update)


def option(given: acp.AnyOption) -> dict[str, Any]:
    """Convert a config option to version 2."""
    plain = _plain(given)
    plain["configId"] = plain.pop("id")
    return plain


def content_blocks(prompt: list[acp.ContentBlock]) -> list[dict[str, Any]]:
    """The blocks of a prompt as they were sent, without unset fields."""
    return [_set(msgspec.to_builtins(block)) for block in prompt]


def permission_request(request: acp.RequestPermission) -> dict[str, Any]:
    """A permission request with a tool call as its subject."""
    asked = request.tool_call
    call = _plain(msgspec.structs.replace(asked, content=None))
    if asked.content is not None:
        call["content"] = [_content(each) for each in asked.content]
    return {
        "sessionId": request.session_id,
        "title": asked.title,
        "subject": {"type": "tool_call", "toolCall": call},
        "options": [_plain(each) for each in request.options],
    }


def _tool_call(update: acp.ToolCall | acp.ToolCallUpdate) -> Iterator[dict[str, Any]]:
    meta = dict(update.meta or {})
    info, output, ended = (meta.pop(name, None) for name in _TERMINAL_KEYS)
    if info is not None:
        given = update.raw_input if isinstance(update, acp.ToolCall) and isinstance(update.raw_input, Mapping) else {}
        command = given.get("command", given.get("code"))
        terminal = {"terminalId": info["terminal_id"], "command": command, "cwd": info.get("cwd")}
        yield {"sessionUpdate": "terminal_update", **_set(terminal)}
    if output is not None:
        data = base64.b64encode(output["data"].encode()).decode()
        yield {"sessionUpdate": "terminal_output_chunk", "terminalId": output["terminal_id"], "data": data}
        if update.status is None and update.content is None and not meta:
            return
    if ended is not None:
        status = {"exitCode": ended.get("exit_code"), "signal": ended.get("signal")}
        yield {"sessionUpdate": "terminal_update", "terminalId": ended["terminal_id"], "exitStatus": _set(status)}
    plain = _plain(msgspec.structs.replace(update, meta=meta or None, content=None))
    plain["sessionUpdate"] = "tool_call_update"
    if update.content is not None:
        plain["content"] = [_content(each) for each in update.content]
    about = meta.get("cantrip")
    if plain.get("status") == "failed" and isinstance(about, Mapping) and about.get("stopped"):
        plain["status"] = "cancelled"
    yield plain


def _offer_cancel(update: dict[str, Any], *, known: bool) -> None:
    """Offer ``tool_call/cancel`` for a call while it runs (ACP v2, Cancelling Tool Calls)."""
    if update.get("status") == "in_progress":
        update["capabilities"] = {"cancel": {}}
    elif known and update.get("status") in ("completed", "failed", "cancelled"):
        update["capabilities"] = None


def _content(content: acp.ToolContent) -> dict[str, Any]:
    return _diff(content) if isinstance(content, acp.Diff) else _plain(content)


def _diff(diff: acp.Diff) -> dict[str, Any]:
    change = {"operation": "add" if diff.old_text is None else "modify", "path": diff.path, "fileType": "text"}
    patch = _patch(diff)
    more = {"patch": {"format": "git_patch", "text": patch}} if patch is not None else {}
    return {"type": "diff", "changes": [change], **more}


def _patch(diff: acp.Diff) -> str | None:
    """The change as a patch of git. None if the file is too long, or if the patch would be empty."""
    from difflib import unified_diff

    old, new = (_lines(text) for text in (diff.old_text or "", diff.new_text))
    if max(len(old), len(new)) > MAX_PATCH:
        return None
    added = diff.old_text is None
    source = "/dev/null" if added else f"a{diff.path}"
    changes = "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
        for line in unified_diff(old, new, source, f"b{diff.path}", n=3)
    )
    if not changes:
        return None
    mode = "new file mode 100644\n" if added else ""
    return f"diff --git a{diff.path} b{diff.path}\n{mode}{changes}"


def _lines(text: str) -> list[str]:
    """Split a text into lines as git does: only a line feed ends one."""
    *whole, rest = text.split("\n")
    return [*(f"{line}\n" for line in whole), *([rest] if rest else [])]


def _command(command: acp.AvailableCommand) -> dict[str, Any]:
    plain: dict[str, Any] = {"type": "command", "name": command.name, "description": command.description}
    return {**plain, "input": {"type": "text", "hint": command.input.hint}} if command.input is not None else plain


def _plain(value: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(value)
    return plain


def _set(value: Any) -> Any:
    """Remove members that are None."""
    if isinstance(value, dict):
        return {name: _set(each) for name, each in value.items() if each is not None}
    return value
