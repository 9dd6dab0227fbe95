"""Imports verifiers traces (version 1): a turn for each message that a model said, a cast for each user message.

Tool messages become the results of their calls, a fold's summary becomes a ``fold`` turn, a subagent's branch becomes a
child's thread. Traces that `export.verifiers` wrote get their original ids back. What a loom cannot represent is
reported.
"""

from __future__ import annotations

import html
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.core.folding.summary import folded_through
from cantrip_acp.core.turn_renderer import INTERRUPTED, NUDGE, SKIPPED
from cantrip_acp.training.importing.importer import RecordWriter
from cantrip_acp.training.importing.json_lines import Report, objects, stable
from cantrip_acp.training.importing.verifiers_graph import TraceGraph
from cantrip_acp.training.importing.verifiers_trace import Message, ModelCall, Node, Trace, read
from cantrip_acp.types.messages import SampledTokens, ToolCall
from cantrip_acp.types.records import (
    CastRecord,
    ContextRecord,
    GateRecord,
    Observation,
    Turn,
    TurnMetadata,
    Utterance,
    UtteranceRecord,
)

_REASONS = {
    "agent_completed": "text",
    "max_turns": "max_turns",
    "max_input_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "max_total_tokens": "max_tokens",
    "max_seconds": "max_seconds",
    "refusal": "refusal",
    "cancelled": "cancelled",
    "parent_terminated": "parent_terminated",
    "max_cost": "max_cost",
}
_PARTIAL = re.compile(r"(?:(?P<said>.*)\n\n)?\[interrupted here: (?P<reason>\w+)\]\Z", re.DOTALL)
"""An unfinished answer, with the mark that `context.PARTIAL` adds."""
_BLOCK = re.compile(r'<context source="([^"]*)" title="([^"]*)"(?: uri="([^"]*)")?>\n(.*)\n</context>\Z', re.DOTALL)
_DATA_URL = re.compile(r"data:([\w.+-]+/[\w.+-]+);base64,([A-Za-z0-9+/=]*)\Z")


def import_traces(path: Path, writer: RecordWriter) -> Report:
    """Import every trace of a file. Raises `ImportProblem` with the line."""
    for where, data in objects(path):
        for trace in read(where, data, writer.report):
            _TraceImport(trace, writer).all()
    return writer.report


class _TraceImport:
    def __init__(self, trace: Trace, writer: RecordWriter) -> None:
        self.trace = trace
        self.writer = writer
        own = trace.info.get("cantrip")
        turns = own.get("turns") if isinstance(own, dict) else None
        self._ids: dict[int, str] = {}
        for key, value in (turns if isinstance(turns, dict) else {}).items():
            if key.isdigit() and isinstance(value, str) and re.fullmatch(r"t_\w{1,60}", value):
                self._ids[int(key)] = value
        self._own: dict[str, Any] = own if isinstance(own, dict) else {}
        self._calls: dict[int, ModelCall] = {c.node: c for c in trace.calls if c.node is not None}
        self._graph = TraceGraph(trace, writer.report)
        self._casts: dict[int, str | None] = {}
        self._known: set[int] = set()
        self._roots: dict[int, tuple[str, str, str]] = {}
        self._sequences: dict[int, int] = {}

    def id_of(self, node: int) -> str:
        return self._ids.get(node) or stable("t", "verifiers", self.trace.id, node)

    def all(self) -> None:
        """Write every turn of the trace, the ends of its casts and its reward."""
        links = [(before, between) for before, kind, between in self._graph.before.values() if kind != "subagent_call"]
        followed = {before for before, _ in links}
        # A user message follows these: their cast had ended.
        asked_after = {before for before, between in links if self._graph.intent_at(between) is not None}
        leaves = [n for n in self._graph.before if n not in followed]
        main = [n for n in leaves if not self._graph.is_childs(n)]
        for number in self._graph.before:
            self._turn(number, leaf=number in leaves, main=number in main, asked_after=number in asked_after)
        rewards = [r for r in self.trace.rewards.values() if r is not None]
        if rewards and main:
            names = ", ".join(
                f"{n}: {r.score:g} × {r.weight:g}" for n, r in self.trace.rewards.items() if r is not None
            )
            note = None if list(self.trace.rewards) == ["reward"] and rewards[0].weight == 1 else names
            value = sum(r.score * r.weight for r in rewards)
            self.writer.reward(self.id_of(main[-1]), value, "verifiers", note)
        if set(self.trace.metrics) - {"turns", "relative_reward"}:
            self.writer.report.note("metrics of a trace")

    def _turn(self, number: int, *, leaf: bool, main: bool, asked_after: bool) -> None:
        before, kind, between = self._graph.before[number]
        intent_at = self._graph.intent_at(between)
        if before is None or kind == "subagent_call":
            cantrip_id, entity_id, parent = self._begin(number, between, before)
        else:
            cantrip_id, entity_id, _ = self._roots[before]
            parent = self.id_of(before)
            if before in self._known and intent_at is not None:
                # It parts here from what the loom already has, so it becomes another entity, like a fork.
                entity_id = stable("e", "verifiers", self.trace.id, number)
        cast_id: str | None
        if before is None or kind == "subagent_call" or intent_at is not None:
            cast_id = self._cast(
                number,
                between,
                intent_at,
                cantrip_id,
                entity_id,
                parent,
                kind=kind,
                opening=before is None or kind == "subagent_call",
            )
        else:
            cast_id = self._casts[before]
            self._unplaced(between if kind == "path" else between[self._graph.new_from(between) :])
        self._casts[number] = cast_id
        if kind in ("compaction", "continuation"):
            parent = self._fold(between, parent, cantrip_id, entity_id, cast_id, number)
        self._roots[number] = (cantrip_id, entity_id, parent)
        node = self.trace.nodes[number]
        reason, truncated = self._ending(node, leaf=leaf, main=main, asked_after=asked_after)
        turn = Turn(
            self.id_of(number),
            parent,
            cantrip_id,
            entity_id,
            cast_id,
            sequence=sum(1 for n in self._graph.before if n <= number),
            utterance=_utterance(node.message),
            observation=self._observation(number, node, ended=reason == "done"),
            gate_calls=tuple(c.name for c in node.message.tool_calls or ()),
            metadata=self._metadata(number, node, before if kind == "path" else None, between),
            terminated=reason is not None and not truncated,
            truncated=truncated,
            reason=reason,
        )
        if self.writer.turn(turn):
            if reason is not None:
                self._end(turn, node)
            return
        there = self.writer.loom.turn(turn.id)
        self._known.add(number)
        self._casts[number] = there.cast_id
        self._roots[number] = (there.cantrip_id, there.entity_id, parent)

    def _begin(self, number: int, between: list[int], spawner: int | None) -> tuple[str, str, str]:
        """The start of an entity: its cantrip, its id, and the parent of its first turn."""
        leading: list[str] = []
        for at in between:
            message = self.trace.nodes[at].message
            if message.role != "system" or _BLOCK.match(message.text):
                break
            leading.append(message.text)
        root = between[0] if between else number
        tools = self.trace.nodes[root].tools or self.trace.tools
        if len(leading) > 2:
            self.writer.report.note("more than two leading system messages: the further ones are pinned context")
        defined = [{"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools]
        call = {"system_prompt": leading[0]} if leading else {}
        cantrip_id = self.writer.cantrip(
            call,
            {"medium": "conversation", "gates": defined, "imported": "verifiers"},
            {"capabilities": leading[1] if len(leading) > 1 else None, "tools": defined},
        )
        entity_id = stable("e", "verifiers", self.trace.id, number)
        spawned_by = self.id_of(spawner) if spawner is not None else None
        return cantrip_id, entity_id, self.writer.root(cantrip_id, entity_id, spawned_by)

    def _fold(
        self, between: list[int], parent: str, cantrip_id: str, entity_id: str, cast_id: str | None, number: int
    ) -> str:
        """Write the turn of a fold, if the summary is in our format; returns the parent of the next turn."""
        for at in between:
            text = self.trace.nodes[at].message.text
            if folded_through(text) is not None:
                fold_id = stable("t", "fold", self.trace.id, number)
                fold = Turn(fold_id, parent, cantrip_id, entity_id, cast_id, role="fold", utterance=Utterance(text))
                if self.id_of(number) in self.writer.loom:
                    # The turn came under its own id, and so did the fold above it.
                    return parent
                self.writer.turn(fold)
                self.writer.report.turns -= 1
                return fold_id
        self.writer.report.note("a compaction by another rule: its turns go on without the summary")
        return parent

    def _cast(
        self,
        number: int,
        between: list[int],
        intent_at: int | None,
        cantrip_id: str,
        entity_id: str,
        parent: str,
        *,
        kind: str,
        opening: bool,
    ) -> str:
        """Register the cast that begins with an utterance: its intent, and the context pinned before it."""
        cast_id = stable("c", "verifiers", self.trace.id, number)
        new_from = self._graph.new_from(between) if kind in ("compaction", "continuation") else 0
        intent = self.trace.nodes[between[intent_at]].message if intent_at is not None else None
        when = _iso(self.trace.nodes[number].timestamp)
        context: list[ContextRecord] = []
        silent: list[CastRecord | UtteranceRecord] = []
        leading = 2 if opening else 0
        for place, at in enumerate(between):
            message = self.trace.nodes[at].message
            if place == intent_at or place < new_from or (message.role == "tool" and not opening):
                continue
            if message.role == "user" and message.text != NUDGE:
                # Two user messages in a row: nobody answered the first.
                unheard = stable("c", "verifiers", self.trace.id, number, place)
                metadata = {"imported": "verifiers", "trace": self.trace.id}
                silent.append(CastRecord(unheard, "start", entity_id, cantrip_id, None, when, message.text, metadata))
                continue
            stopped = _PARTIAL.match(message.text) if message.role == "assistant" else None
            if stopped is not None and silent and isinstance(silent[-1], CastRecord):
                # The partial answer of the cast that was stopped.
                silent.append(
                    UtteranceRecord(
                        stable("u", "verifiers", self.trace.id, number, place),
                        parent,
                        cantrip_id,
                        entity_id,
                        silent[-1].id,
                        number,
                        Utterance(stopped["said"] or None),
                        stop_reason=stopped["reason"],
                        partial=True,
                    )
                )
                continue
            if message.role == "system" and leading and not _BLOCK.match(message.text):
                leading -= 1
                continue
            context.append(self._pinned(message, cast_id, entity_id, place, when))
        if intent is not None:
            for place, url in enumerate(intent.images):
                data = _DATA_URL.match(url)
                if data is None:
                    self.writer.report.note("an image by its address alone, which is not fetched")
                    continue
                record_id = stable("x", cast_id, "image", place)
                context.append(
                    ContextRecord(record_id, entity_id, cast_id, "user", "", "", None, when, data[1], data[2])
                )
        attributes: dict[str, Any] = {"imported": "verifiers", "trace": self.trace.id}
        call = self._calls.get(number)
        if call is not None and call.model is not None:
            attributes["model"] = call.model
        text = intent.text if intent is not None else None
        self.writer.cast(
            CastRecord(cast_id, "start", entity_id, cantrip_id, None, when, text, attributes), context, silent
        )
        return cast_id

    def _pinned(self, message: Message, cast_id: str, entity_id: str, place: int, when: str) -> ContextRecord:
        record_id = stable("x", cast_id, place)
        block = _BLOCK.match(message.text)
        if message.role == "system" and block is not None:
            source, title, uri = (html.unescape(g) if g is not None else None for g in block.groups()[:3])
            return ContextRecord(record_id, entity_id, cast_id, source or "", title or "", block[4], uri, when)
        if message.role != "system":
            self.writer.report.note(f"a message of the {message.role} that no model said or asked for: pinned context")
        return ContextRecord(record_id, entity_id, cast_id, "import", message.role, message.text, None, when)

    def _unplaced(self, between: list[int]) -> None:
        for at in between:
            message = self.trace.nodes[at].message
            if (
                message.role == "system"
                and folded_through(message.text) is None
                and self.trace.nodes[at].parent is not None
            ):
                self.writer.report.note("a system message in the middle of a cast")

    def _ending(self, node: Node, *, leaf: bool, main: bool, asked_after: bool) -> tuple[str | None, bool]:
        """Why the cast ended with this message, and whether it was cut off."""
        done = any(c.name == "done" for c in node.message.tool_calls or ())
        if not leaf:
            return (
                ("done" if done else "text", False)
                if asked_after and (done or not node.message.tool_calls)
                else (None, False)
            )
        if not main:
            # A branch of a child: verifiers does not record how it ended.
            return ("done" if done else "text", False) if done or not node.message.tool_calls else (None, False)
        trace = self.trace
        stop = trace.stop_condition
        given = self._own.get("reason")
        if trace.ok or stop == "agent_completed":
            return ("done" if done else "text"), False
        if not trace.is_completed:
            return None, False
        if isinstance(given, str) and given in {*_REASONS.values(), "error"}:
            return given, True
        if trace.is_timeout:
            return "max_seconds", True
        return _REASONS.get(stop or "", "error" if trace.errors else "cancelled"), True

    def _end(self, turn: Turn, node: Node) -> None:
        failed = self.trace.errors[-1] if self.trace.errors and turn.truncated else None
        result = None
        if turn.terminated:
            result = next((r.result for r in turn.observation.results if r.gate == "done"), node.message.text or None)
        error = f"{failed.type}: {failed.message}" if failed is not None else None
        self.writer.end(turn, turn.metadata.timestamp, result, error=error)

    def _observation(self, number: int, node: Node, *, ended: bool) -> Observation:
        """The results of the calls. A final ``done`` call has no message after it: its answer is in its arguments."""
        answers = self._graph.answers.get(number, {})
        results = []
        for call in node.message.tool_calls or ():
            args = _data(call.arguments)
            text = answers.get(call.id)
            if text is not None and text not in (SKIPPED, INTERRUPTED):
                results.append(GateRecord(call.name, args, text, False, call.id))
            elif text is None and ended and call.name == "done":
                answer = next(iter(args.values()), None) if isinstance(args, dict) else args
                results.append(GateRecord("done", args, answer, False, call.id))
        return Observation(tuple(results))

    def _metadata(self, number: int, node: Node, before: int | None, between: list[int]) -> TurnMetadata:
        call = self._calls.get(number, ModelCall())
        usage = call.usage
        cached = (usage.cached_input_tokens or 0) if usage is not None else None
        return TurnMetadata(
            (usage.prompt_tokens + (cached or 0)) if usage is not None else None,
            usage.completion_tokens if usage is not None else None,
            cached,
            usage.cost if usage is not None else None,
            max((call.time.end - call.time.start) * 1000, 0.001),
            _iso(node.timestamp),
            call.model,
            None,
            call.finish_reason or msgspec.UNSET,
            self._sampled(number, node, before, between) or msgspec.UNSET,
        )

    def _sampled(self, number: int, node: Node, before: int | None, between: list[int]) -> SampledTokens | None:
        start = self._sequences.get(before, 0) if before is not None else 0
        added = [i for at in between for i in self.trace.nodes[at].token_ids]
        self._sequences[number] = start + len(added) + len(node.token_ids)
        marks = node.mask or (False,) * len(node.token_ids)
        own = [i for i, mark in zip(node.token_ids, marks, strict=True) if mark]
        if not own:
            return None
        if tuple(own) != node.token_ids[len(node.token_ids) - len(own) :]:
            self.writer.report.note("sampled tokens that do not stand together")
            return None
        prompt = (*added, *node.token_ids[: len(node.token_ids) - len(own)])
        logprobs = node.logprobs if len(node.logprobs) == len(own) else ()
        return SampledTokens(tuple(own), (), logprobs, {}, prompt, start)


def _utterance(message: Message) -> Utterance:
    calls = tuple(ToolCall(c.id, c.name, c.arguments) for c in message.tool_calls or ())
    content = message.text if message.content is not None else None
    return Utterance(content, message.reasoning_content, calls)


def _data(text: str) -> Any:
    try:
        return msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return text


def _iso(seconds: float) -> str:
    try:
        when = datetime.fromtimestamp(seconds, UTC) if seconds > 0 else None
    except (ValueError, OverflowError, OSError):
        when = None
    return "" if when is None else when.isoformat(timespec="microseconds").replace("+00:00", "Z")
