"""Imports transcripts of the Agent Client Protocol: the messages of any agent's connection, one JSON-RPC message per
line.

A line is the message itself, or an object with the message under ``message`` (or ``data``, as text or as an object). It
may have a ``timestamp`` (ISO 8601, or seconds since 1970); other keys, such as a direction, are not needed. The
transcript must have the messages of both sides.

A session becomes an entity, a prompt becomes a cast. ACP does not mark where one utterance ends. So text after a tool
call, or a call after a call that has ended, begins the next turn. ACP also does not say what the agent sent to its
model, or which tools there were.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.training.importing.importer import RecordWriter
from cantrip_acp.training.importing.json_lines import ImportProblem, Report, objects, stable
from cantrip_acp.types.messages import ToolCall
from cantrip_acp.types.records import CastRecord, ContextRecord, GateRecord, Observation, Turn, TurnMetadata, Utterance

_REASONS = {
    "end_turn": "text",
    "max_tokens": "max_tokens",
    "max_turn_requests": "max_turns",
    "refusal": "refusal",
    "cancelled": "cancelled",
}
_SILENT = ("plan", "available_commands_update", "current_mode_update", "config_option_update", "session_info_update")
_ENDED = ("completed", "failed")
_LINE = ("message", "data", "timestamp", "direction", "time")
_MESSAGE = ("jsonrpc", "id", "method", "params", "result", "error")
_BLOCKS = {
    "text": ("type", "text"),
    "image": ("type", "data", "mimeType"),
    "audio": ("type", "data", "mimeType"),
    "resource": ("type", "resource"),
    "resource_link": ("type", "uri", "name"),
}
"""The fields of a content block that a loom keeps."""
_TOOL = frozenset({"sessionUpdate", "toolCallId", "title", "kind", "rawInput", "rawOutput", "content", "status"})


@dataclass
class _Tool:
    """A tool call, built from its updates."""

    id: str
    name: str
    args: Any = None
    output: Any = None
    texts: list[str] = field(default_factory=list)
    status: str = ""


@dataclass
class _Utterance:
    """An utterance that is still being read."""

    text: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    tools: dict[str, _Tool] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        return bool(self.text or self.thoughts or self.tools)


@dataclass
class _Prompt:
    """A running prompt, with its utterances so far."""

    cast_id: str
    utterances: list[_Utterance] = field(default_factory=lambda: [_Utterance()])
    begun: str = ""
    intent: str = ""


@dataclass
class _Session:
    """A session: its entity, and the turn that is the parent of the next one."""

    id: str
    entity_id: str
    prompts: int = 0
    last: str = ""
    turns: int = 0
    running: _Prompt | None = None


def is_message(data: dict[str, Any]) -> bool:
    """Whether a line belongs to a transcript."""
    found = _message(data)
    return found is not None and found.get("jsonrpc") == "2.0"


def import_transcript(path: Path, writer: RecordWriter) -> Report:
    """Import every session of a transcript. Raises `ImportProblem` with the line."""
    transcript = _Transcript(writer)
    for where, data in objects(path):
        message = _message(data)
        if message is None or not ("method" in message or "id" in message):
            raise ImportProblem(where, "this is not a JSON-RPC message, and the key `message` does not contain one")
        try:
            if message is not data:
                writer.report.fields("line", data, _LINE)
            writer.report.fields("message", message, _MESSAGE)
            transcript.add_message(message, _time(data.get("timestamp")))
        except (TypeError, KeyError, AttributeError, ValueError) as error:
            raise ImportProblem(where, f"not an ACP message: {error}") from None
    transcript.close()
    return writer.report


def _message(data: dict[str, Any]) -> dict[str, Any] | None:
    if "jsonrpc" in data:
        return data
    for key in ("message", "data"):
        found = data.get(key)
        if isinstance(found, str):
            try:
                found = msgspec.json.decode(found)
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                continue
        if isinstance(found, dict) and "jsonrpc" in found:
            return found
    return None


class _Transcript:
    """The state of a connection, updated message by message."""

    def __init__(self, writer: RecordWriter) -> None:
        self._writer = writer
        self._sessions: dict[str, _Session] = {}
        self._asked: dict[str, list[tuple[str, dict[str, Any]]]] = {}
        """Open requests by id. Each side counts its own ids, so one id may mean two requests."""
        self._agent: dict[str, Any] = {}

    def add_message(self, message: dict[str, Any], when: str) -> None:
        method, number = message.get("method"), message.get("id")
        params = message.get("params") or {}
        if not isinstance(params, dict):
            raise ValueError("params is not an object")
        if method is None:
            self._answered(repr(number), message, when)
        elif method == "session/update":
            self._writer.report.fields("session/update", params, ("sessionId", "update"))
            self._update(str(params["sessionId"]), params.get("update") or {}, when)
        elif number is not None:
            self._asked.setdefault(repr(number), []).append((str(method), params))
            if method == "session/prompt":
                self._prompted(params, when)
            elif method.startswith(("fs/", "terminal/")):
                self._writer.report.note(f"what the agent asked its editor for ({method})")
            elif method == "session/request_permission":
                self._writer.report.note("questions for permission")
            else:
                self._writer.report.note(f"requests that a loom has no place for ({str(method)[:60]})")
        elif method != "session/cancel":
            self._writer.report.note(f"notifications that a loom has no place for ({str(method)[:60]})")

    def close(self) -> None:
        """End the transcript. Prompts that still run get no end."""
        for session in self._sessions.values():
            if session.running is not None:
                self._writer.report.note("prompts whose end is not in the transcript")
                self._finish(session, None, "", None)

    def _session(self, session_id: str) -> _Session:
        found = self._sessions.get(session_id)
        if found is None:
            found = self._sessions[session_id] = _Session(session_id, stable("e", "acp", session_id))
        return found

    def _prompted(self, params: dict[str, Any], when: str) -> None:
        session = self._session(str(params["sessionId"]))
        if session.running is not None:
            self._finish(session, None, when, None)
        session.prompts += 1
        blocks = params.get("prompt") or []
        if not isinstance(blocks, list) or not all(isinstance(b, dict) for b in blocks):
            raise ValueError("the prompt is not a list of blocks")
        report = self._writer.report
        report.fields("session/prompt", params, ("sessionId", "prompt"))
        for block in blocks:
            if block.get("type") in _BLOCKS:
                report.fields(f"block {block['type']}", block, _BLOCKS[str(block["type"])])
            if isinstance(block.get("resource"), dict):
                inner = block["resource"]
                report.fields("resource", inner, ("uri", "blob", "mimeType") if "blob" in inner else ("uri", "text"))
        intent = "\n\n".join(str(b.get("text", "")) for b in blocks if b.get("type") == "text")
        cast_id = stable("c", "acp", session.id, session.prompts, intent)
        session.running = _Prompt(cast_id, begun=when, intent=intent)
        start = CastRecord(
            cast_id,
            "start",
            session.entity_id,
            self._cantrip(),
            None,
            when,
            intent,
            {"imported": "acp", "session": session.id, **self._agent},
        )
        context = [self._pinned(b, cast_id, session, place, when) for place, b in enumerate(blocks)]
        self._writer.cast(start, [c for c in context if c is not None])

    def _pinned(
        self, block: dict[str, Any], cast_id: str, session: _Session, place: int, when: str
    ) -> ContextRecord | None:
        """A context record for a block of a prompt that is not text."""
        record = ContextRecord(stable("x", cast_id, place), session.entity_id, cast_id, "user", "", "", None, when)
        match block.get("type"):
            case "text":
                return None
            case "image" | "audio" if isinstance(block.get("data"), str):
                return msgspec.structs.replace(record, mime=str(block.get("mimeType")), data=block["data"])
            case "resource" if isinstance(block.get("resource"), dict):
                inner = block["resource"]
                uri = str(inner.get("uri", ""))
                if isinstance(inner.get("blob"), str):
                    mime = str(inner.get("mimeType") or "application/octet-stream")
                    return msgspec.structs.replace(record, title=uri, uri=uri, mime=mime, data=inner["blob"])
                return msgspec.structs.replace(record, title=uri, uri=uri, text=str(inner.get("text", "")))
            case "resource_link":
                uri, name = str(block.get("uri", "")), str(block.get("name", ""))
                return msgspec.structs.replace(record, title=name or uri, uri=uri, text=f"[link: {uri}]")
        self._writer.report.note(f"a block of a prompt of the type {str(block.get('type'))[:40]!r}")
        return None

    def _update(self, session_id: str, update: dict[str, Any], when: str) -> None:
        session = self._session(session_id)
        prompt, kind = session.running, update.get("sessionUpdate")
        if prompt is None:
            if kind in _SILENT:
                self._writer.report.note(f"updates that a loom has no place for ({kind})")
            else:
                self._writer.report.note("updates outside of a prompt (a session's replay, say)")
            return
        said = prompt.utterances[-1]
        if kind in ("agent_message_chunk", "agent_thought_chunk"):
            if said.tools:
                said = _Utterance()
                prompt.utterances.append(said)
            content = update.get("content") or {}
            self._writer.report.fields(str(kind), update, ("sessionUpdate", "content"))
            self._writer.report.fields(f"{kind}.content", content, ("type", "text"))
            if content.get("type") == "text":
                into = said.text if kind == "agent_message_chunk" else said.thoughts
                words = str(content.get("text", ""))
                into.append(words if into else words.lstrip("\n"))
            else:
                self._writer.report.note(f"what an agent said that is not text ({str(content.get('type'))[:40]})")
        elif kind in ("tool_call", "tool_call_update"):
            self._tool(prompt, update)
        elif kind in (*_SILENT, "user_message_chunk", "usage_update"):
            self._writer.report.note(f"updates that a loom has no place for ({kind})")
        else:
            self._writer.report.note(f"updates of an unknown kind ({str(kind)[:60]})")

    def _tool(self, prompt: _Prompt, update: dict[str, Any]) -> None:
        tool_id = str(update["toolCallId"])
        found = next((s.tools[tool_id] for s in reversed(prompt.utterances) if tool_id in s.tools), None)
        if found is None:
            if any(t.status in _ENDED for t in prompt.utterances[-1].tools.values()):
                prompt.utterances.append(_Utterance())
            found = prompt.utterances[-1].tools[tool_id] = _Tool(tool_id, _name(update))
        report = self._writer.report
        report.fields(str(update.get("sessionUpdate")), update, _TOOL | ({"_meta"} if _named_beside(update) else set()))
        title = update.get("title")
        if title and title != found.name:
            report.note("the title of a tool call, beside its name")
        if update.get("rawInput") is not None:
            found.args = update["rawInput"]
        if update.get("rawOutput") is not None:
            raw = update["rawOutput"]
            # Some agents wrap a result that is not an object: {"output": …}.
            found.output = raw["output"] if isinstance(raw, dict) and raw.keys() == {"output"} else raw
        if isinstance(update.get("content"), list):
            # The content of an update replaces the earlier content.
            found.texts = [t for c in update["content"] if isinstance(c, dict) and (t := _content_text(c))]
            for each in update["content"]:
                if isinstance(each, dict) and each.get("type") == "diff":
                    report.note("the texts of a change of a file")
                elif isinstance(each, dict) and not _content_text(each):
                    kind = each["content"].get("type") if isinstance(each.get("content"), dict) else each.get("type")
                    report.note(f"what a tool showed that is not text ({str(kind)[:40]})")
        found.status = str(update.get("status") or found.status)

    def _answered(self, number: str, message: dict[str, Any], when: str) -> None:
        result, error = message.get("result") or {}, message.get("error")
        report = self._writer.report
        if not isinstance(result, dict):
            report.note("an answer that is not an object")
            result = {}
        if not self._asked.get(number):
            report.note("answers to requests that are not in the transcript")
        asked = self._asked.get(number) or [("", {})]
        prompts = [a for a in asked if a[0] == "session/prompt"]
        others = [a for a in asked if a[0] != "session/prompt"]
        # A request that is sent while a prompt runs is answered before the prompt.
        method, params = prompts[-1] if prompts and ("stopReason" in result or not others) else others[-1]
        if (method, params) in asked:
            asked.remove((method, params))
        if method == "initialize" and isinstance(result.get("agentInfo"), dict):
            info = result["agentInfo"]
            report.fields("initialize answer", result, ("agentInfo", "protocolVersion"))
            self._agent = {"agent": str(info.get("name", "")), "agent_version": str(info.get("version", ""))}
        elif method == "session/prompt":
            session = self._session(str(params["sessionId"]))
            failed = error.get("message", "error") if isinstance(error, dict) else None
            stop = result.get("stopReason")
            report.fields("session/prompt answer", result, ("stopReason",))
            if isinstance(error, dict):
                report.fields("error", error, ("message", "code"))
            if stop is not None and stop not in _REASONS:
                report.note(f"an unknown reason to stop, kept as 'cancelled' ({str(stop)[:40]})")
            if session.running is not None:
                self._finish(session, str(stop) if stop is not None else None, when, failed)

    def _cantrip(self) -> str:
        circle = {"medium": "conversation", "gates": [], "imported": "acp", **self._agent}
        return self._writer.cantrip({}, circle, {"capabilities": None, "tools": []})

    def _finish(self, session: _Session, stop: str | None, when: str, failed: Any) -> None:
        prompt, session.running = session.running, None
        assert prompt is not None
        reason = "error" if failed is not None else _REASONS.get(stop, "cancelled") if stop is not None else None
        cantrip_id = self._cantrip()
        if not session.last:
            session.last = self._writer.root(cantrip_id, session.entity_id)
        utterances = [s for s in prompt.utterances if s.any]
        for place, said in enumerate(utterances):
            last = place == len(utterances) - 1
            turn = self._turn(session, prompt, said, place, cantrip_id, when, reason if last else None)
            self._writer.turn(turn)
            session.last = turn.id
            if last and reason is not None:
                words = "".join(said.text) or None if reason == "text" else None
                error = str(failed) if failed is not None else None
                self._writer.end(turn, when, words, error=error, turns=len(utterances))
        if not utterances:
            self._writer.report.note("prompts that nothing was said to")

    def _turn(
        self,
        session: _Session,
        prompt: _Prompt,
        said: _Utterance,
        place: int,
        cantrip_id: str,
        when: str,
        reason: str | None,
    ) -> Turn:
        session.turns += 1
        for tool in said.tools.values():
            if tool.status not in _ENDED and (tool.output is not None or tool.texts):
                self._writer.report.note("what a tool call showed that did not end")
        calls = tuple(ToolCall(t.id, t.name, _json(t.args)) for t in said.tools.values())
        results = tuple(
            GateRecord(
                t.name,
                t.args if t.args is not None else {},
                t.output if t.output is not None else "\n".join(t.texts),
                t.status == "failed",
                t.id,
            )
            for t in said.tools.values()
            if t.status in _ENDED
        )
        return Turn(
            stable("t", prompt.cast_id, place),
            session.last,
            cantrip_id,
            session.entity_id,
            prompt.cast_id,
            sequence=session.turns,
            utterance=Utterance("".join(said.text) or None, "".join(said.thoughts) or None, calls),
            observation=Observation(results),
            gate_calls=tuple(t.name for t in said.tools.values()),
            metadata=TurnMetadata(duration_ms=0.001, timestamp=when or prompt.begun),
            terminated=reason == "text",
            truncated=reason is not None and reason != "text",
            reason=reason,
        )


def _name(update: dict[str, Any]) -> str:
    """The name of a tool: the agent's own (``_meta``) if there is one, else its title or kind."""
    for value in (update.get("_meta") or {}).values():
        if isinstance(value, dict):
            for key in ("toolName", "tool_name", "gate"):
                if isinstance(value.get(key), str):
                    return str(value[key])
        elif isinstance(value, str) and value.isidentifier():
            return value
    title = str(update.get("title") or "")
    return title if title.isidentifier() else str(update.get("kind") or "tool")


def _named_beside(update: dict[str, Any]) -> bool:
    """Whether ``_meta`` of an update has the tool's name and nothing else."""
    beside = update.get("_meta")
    return isinstance(beside, dict) and list(beside.values()) == [_name(update)]


def _content_text(content: dict[str, Any]) -> str:
    inner = content.get("content")
    if content.get("type") == "content" and isinstance(inner, dict):
        return str(inner.get("text", ""))
    if content.get("type") == "diff":
        return f"[change of {content.get('path')}]"
    if content.get("type") == "terminal":
        return f"[terminal {content.get('terminalId')}]"
    return ""


def _json(value: Any) -> str:
    return msgspec.json.encode(value if value is not None else {}).decode()


def _time(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return datetime.fromtimestamp(value, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        except (ValueError, OverflowError, OSError):
            return ""
    return ""
