"""ATIF format (Agent Trajectory Interchange Format 1.8, of Harbor 0.26): one trajectory per line, each a whole document.

A thread is a trajectory. The system prompt, intents and other messages are steps of ``system`` and ``user``; an utterance
is a step of ``agent``, with the circle's answers as its observation. After a fold, the summary is a step too, and what is
kept beside it is not repeated. Children are embedded (``subagent_trajectories``), and the result of the call that started one
refers to it. An utterance that an earlier row has is marked with ``is_copied_context``; one that a script or a person wrote
has ``llm_call_count`` 0. What the format has no field for is in ``extra.cantrip``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from cantrip_acp.core.history.replayed_context import WindowUtterance
from cantrip_acp.crystals.text_tools import words_of
from cantrip_acp.loom import rewards
from cantrip_acp.training.export.rows import Note, Sequences, request_of, tools, url_of
from cantrip_acp.training.export.selection import Episode, Source
from cantrip_acp.types.messages import Message
from cantrip_acp.types.records import Turn
from cantrip_acp.types.usage import NO_USAGE, Usage
from cantrip_acp.version import __version__

VERSION = "ATIF-v1.8"
_MEDIA = {
    "image": ("jpeg", "png", "gif", "webp"),
    "audio": ("wav", "mpeg", "mp4", "aac", "ogg", "flac", "webm", "aiff"),
}
_OTHER_NAMES = {
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
    "audio/x-m4a": "audio/mp4",
}


class Atif:
    """Writes one row per thread. A child's thread is in the row of its parent (`Source.embedded`)."""

    name = "atif"
    summary = "ATIF (Harbor): trajectories of steps, with observations, metrics and token ids"
    marks_truncated = True

    def rows(self, source: Source) -> Iterator[dict[str, Any]]:
        children: list[str] = []
        learned: set[str] = set()
        for episode in source.episodes(marked=True):
            if source.embedded(episode):
                children.append(episode.leaf)
                continue
            yield _trajectory(source, episode, learned)
            source.count_exported(episode.leaf)
        for leaf in children:
            source.leave_out(leaf, "a child's whose parent's thread is left out")


def _trajectory(source: Source, episode: Episode, learned: set[str]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = []
    sequences = Sequences(source)
    used, model = NO_USAGE, None
    definitions: list[dict[str, Any]] = []
    by_turn: dict[str, tuple[dict[str, Any], Turn]] = {}
    for window, message, uttered in episode.steps():
        definitions = tools(window.tools) or definitions
        if uttered is None:
            steps.append({"source": message.role, "message": _content(message, source.note)})
            continue
        step = _utterance(source, episode, uttered, message, sequences, learned)
        by_turn[uttered.first] = step, uttered.turn
        steps.append(step)
        used = used + uttered.turn.metadata.usage
        model = uttered.turn.metadata.model or model
    for number, step in enumerate(steps, 1):
        step["step_id"] = number
    trajectory: dict[str, Any] = {
        "schema_version": VERSION,
        "session_id": episode.entity_id,
        "trajectory_id": episode.leaf,
        "agent": _known(
            {
                "name": "cantrip-acp",
                "version": __version__,
                "model_name": model,
                "tool_definitions": definitions or None,
            }
        ),
        "steps": steps,
        "final_metrics": _known({**_usage(used, "total_"), "total_steps": len(steps)}),
        "extra": {"cantrip": {**episode.about(), "intent": episode.intent, "error": episode.error}},
    }
    if source.wanted.children and (embedded := _children(source, episode, by_turn, learned)):
        trajectory["subagent_trajectories"] = embedded
    return trajectory


def _children(
    source: Source, episode: Episode, by_turn: dict[str, tuple[dict[str, Any], Turn]], learned: set[str]
) -> list[dict[str, Any]]:
    embedded: list[dict[str, Any]] = []
    for turn_id in source.outline.own_path(episode.leaf):
        for begun in source.outline.spawned.get(turn_id, ()):
            leaf = source.outline.tips[begun]
            if source.outline.places[leaf].role == "call":
                continue
            if (why := source.unfit(leaf)) is not None:
                source.leave_out(leaf, why)
                continue
            child = source.episode(leaf)
            embedded.append(_trajectory(source, child, learned))
            source.count_exported(leaf)
            step, turn = by_turn[source.loom.turn(turn_id).continues or turn_id]
            results = step.get("observation", {}).get("results", [])
            start = source.outline.starts.get(child.cast_id or "")
            called = start.parent_call_id if start is not None else None
            # The gate's record has both the id of the call and the crystal's own id of it.
            called = next((r.tool_call_id for r in turn.observation.results if r.call_id == called), called)
            result = next((each for each in results if each.get("source_call_id") == called), None)
            # A cell or a command may have called the gate: its result is the observation's only one.
            for found in [result] if result is not None else results[:1]:
                refs = found.setdefault("subagent_trajectory_ref", [])
                refs.append({"trajectory_id": leaf, "session_id": child.entity_id})
    return embedded


def _utterance(
    source: Source,
    episode: Episode,
    uttered: WindowUtterance,
    message: Message,
    sequences: Sequences,
    learned: set[str],
) -> dict[str, Any]:
    turn, counted = uttered.turn, uttered.turn.metadata
    sampled, prompt = sequences.of(turn)
    by_model = source.sampled(turn)
    step: dict[str, Any] = {
        "source": "agent",
        "message": words_of(message) or "",
        "timestamp": counted.timestamp or None,
        "model_name": counted.model,
        "reasoning_content": message.thinking,
        "tool_calls": [_call(each.id, each.gate, each.args) for each in message.tool_calls] or None,
        "is_copied_context": uttered.first in learned or None,
        "extra": {
            "cantrip": {"turn": turn.id, "reward": rewards.of_turn(source.loom, turn.id), "request": request_of(turn)}
        },
    }
    learned.add(uttered.first)
    known = {each.id for each in message.tool_calls}
    results = [
        _known(
            {"source_call_id": m.tool_call_id if m.tool_call_id in known else None, "content": _content(m, source.note)}
        )
        for m in episode.results(turn)
    ]
    if results:
        step["observation"] = {"results": results}
    if by_model:
        step["llm_call_count"] = 1
        tokens = (
            {}
            if sampled is None
            else {
                "prompt_token_ids": prompt or None,
                "completion_token_ids": list(sampled.ids) or None,
                "logprobs": list(sampled.logprobs) or None,
            }
        )
        step["metrics"] = _known({**_usage(counted.usage), **tokens}) or None
    elif not message.thinking:
        step["llm_call_count"] = 0
    return _known(step)


def _usage(usage: Usage, prefix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}prompt_tokens": usage.prompt_tokens,
        f"{prefix}completion_tokens": usage.completion_tokens,
        f"{prefix}cached_tokens": usage.cached_tokens,
        f"{prefix}cost_usd": usage.cost,
    }


def _call(call_id: str, name: str, args: str) -> dict[str, Any]:
    call: dict[str, Any] = {"tool_call_id": call_id, "function_name": name, "arguments": {}}
    try:
        found = msgspec.json.decode(args) if args.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        found = None
    if isinstance(found, dict):
        return {**call, "arguments": found}
    return {**call, "extra": {"cantrip": {"arguments": args}}}


def _content(message: Message, note: Note) -> Any:
    if not message.attachments:
        return message.content or ""
    parts: list[dict[str, Any]] = []
    for each in message.attachments:
        mime = _OTHER_NAMES.get(each.mime, each.mime)
        if mime.removeprefix(f"{each.kind}/") in _MEDIA.get(each.kind, ()) and each.data:
            parts.append(
                {
                    "type": each.kind,
                    "source": {"media_type": mime, "path": url_of(msgspec.structs.replace(each, mime=mime))},
                }
            )
        else:
            note(f"an attachment ({each.kind}) is exported only as its name")
            parts.append({"type": "text", "text": f"[{each.kind}: {each.title or each.uri or each.mime}]"})
    if message.content:
        parts.append({"type": "text", "text": message.content})
    return parts


def _known(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields without those that are None: the format leaves out what is not known."""
    return {name: value for name, value in fields.items() if value is not None}
