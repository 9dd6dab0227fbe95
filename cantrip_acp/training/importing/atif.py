"""Import of ATIF trajectories (versions 1.0 to 1.8, of Harbor), one document in a file or one on each line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from cantrip_acp.text.codecs import convert
from cantrip_acp.training.importing.conversation import Answer, Asked, Conversation, Result, Told, add_conversation
from cantrip_acp.training.importing.importer import RecordWriter
from cantrip_acp.training.importing.json_lines import ImportProblem, Report, documents
from cantrip_acp.types.messages import ToolCall

_DATA_URL = re.compile(r"data:((?:image|audio)/[a-z0-9+.-]+);base64,([A-Za-z0-9+/=\s]*)\Z")


class _WithExtra(msgspec.Struct):
    extra: dict[str, Any] | None = None


class _Call(_WithExtra):
    tool_call_id: str = ""
    function_name: str = ""
    arguments: dict[str, Any] = {}


class _Observed(_WithExtra):
    source_call_id: str | None = None
    content: str | list[dict[str, Any]] | None = None
    subagent_trajectory_ref: list[dict[str, Any]] | None = None


class _Observation(msgspec.Struct):
    results: list[_Observed] = []


class _Metrics(_WithExtra):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    prompt_token_ids: list[int] | None = None
    completion_token_ids: list[int] | None = None
    logprobs: list[float] | None = None


class _Step(_WithExtra):
    source: str = ""
    message: str | list[dict[str, Any]] = ""
    timestamp: str | None = None
    model_name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[_Call] | None = None
    observation: _Observation | None = None
    metrics: _Metrics | None = None


class _Agent(_WithExtra):
    name: str = ""
    version: str = ""
    model_name: str | None = None
    tool_definitions: list[dict[str, Any]] | None = None


class _Trajectory(msgspec.Struct):
    schema_version: str
    agent: _Agent
    steps: list[_Step]
    session_id: str | None = None
    trajectory_id: str | None = None
    final_metrics: dict[str, Any] | None = None
    notes: str | None = None
    continued_trajectory_ref: str | None = None
    extra: dict[str, Any] | None = None
    subagent_trajectories: list[_Trajectory] | None = None


def is_trajectory(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a trajectory."""
    return str(document.get("schema_version", "")).startswith("ATIF-") and "steps" in document


def import_trajectories(path: Path, writer: RecordWriter) -> Report:
    """Import each trajectory of a file. Raises `ImportProblem`, and `LoomError` if the loom cannot be written."""
    for number, (where, document) in enumerate(documents(path)):
        try:
            found = convert(document, _Trajectory)
        except msgspec.ValidationError as error:
            raise ImportProblem(where, f"not an ATIF trajectory: {error}") from None
        own = found.trajectory_id or f"{found.session_id or path.name} {number}"
        add_conversation(writer, _conversation(found, own, writer.report))
    return writer.report


def _conversation(found: _Trajectory, own: str, report: Report) -> Conversation:
    about = (found.extra or {}).get("cantrip")
    about = about if isinstance(about, dict) else {}
    steps = list(found.steps)
    system = None
    if steps and steps[0].source == "system":
        system = _text(steps.pop(0).message, report)
    if found.continued_trajectory_ref is not None:
        report.note("the continuation of a trajectory in another file")
    if found.notes:
        report.note("the notes of a trajectory")
    children = {each.trajectory_id: each for each in found.subagent_trajectories or () if each.trajectory_id}
    items: list[Asked | Told | Answer] = []
    for step in steps:
        if step.source == "agent":
            items.append(_answer(step, found.agent, children, own, report))
        elif step.source == "user":
            items.append(Asked(_text(step.message, report), step.timestamp or "", _media(step.message)))
        else:
            items.append(Told(_text(step.message, report), step.timestamp or ""))
    if children:
        report.note("a subagent that no result refers to", len(children))
    reward = about.get("reward", (found.final_metrics or {}).get("reward"))
    reason = about.get("reason") if about.get("state") != "active" else None
    return Conversation(
        "atif",
        own,
        items,
        system,
        [_tool(each) for each in found.agent.tool_definitions or ()],
        {"agent": found.agent.name, "agent_version": found.agent.version}
        | ({"model": found.agent.model_name} if found.agent.model_name else {}),
        float(reward) if isinstance(reward, int | float) and not isinstance(reward, bool) else None,
        "atif",
        about.get("reference"),
        reason if isinstance(reason, str) else None,
        about.get("error") if isinstance(about.get("error"), str) else None,
    )


def _answer(step: _Step, agent: _Agent, children: dict[str, _Trajectory], own: str, report: Report) -> Answer:
    metrics = step.metrics or _Metrics()
    results = []
    for observed in step.observation.results if step.observation is not None else ():
        below = [
            _conversation(child, f"{own} {name}", report)
            for ref in observed.subagent_trajectory_ref or ()
            if (child := children.pop(name := str(ref.get("trajectory_id")), None)) is not None
        ]
        results.append(Result(observed.source_call_id, _text(observed.content or "", report), children=below))
    return Answer(
        _text(step.message, report) or None,
        step.reasoning_content,
        [ToolCall(c.tool_call_id, c.function_name, _arguments(c)) for c in step.tool_calls or ()],
        results,
        step.timestamp or "",
        step.model_name or agent.model_name,
        metrics.prompt_tokens,
        metrics.completion_tokens,
        metrics.cached_tokens,
        metrics.cost_usd,
        prompt_ids=metrics.prompt_token_ids or (),
        ids=metrics.completion_token_ids or (),
        logprobs=metrics.logprobs or (),
    )


def _arguments(call: _Call) -> str:
    own = (call.extra or {}).get("cantrip")
    if isinstance(own, dict) and isinstance(own.get("arguments"), str):
        return str(own["arguments"])
    return msgspec.json.encode(call.arguments).decode()


def _tool(definition: Mapping[str, Any]) -> dict[str, Any]:
    function = definition.get("function", definition)
    function = function if isinstance(function, dict) else {}
    return {
        "name": str(function.get("name", "")),
        "description": str(function.get("description", "")),
        "parameters": function.get("parameters") or {"type": "object"},
    }


def _text(content: str | Iterable[dict[str, Any]], report: Report) -> str:
    if isinstance(content, str):
        return content
    parts = list(content)
    if any(part.get("type") in ("image", "audio") and not _medium(part) for part in parts):
        report.note("an image or a sound by its path alone, which is not read")
    return "\n".join(str(part["text"]) for part in parts if part.get("type") == "text" and "text" in part)


def _media(content: str | Iterable[dict[str, Any]]) -> list[tuple[str, str]]:
    return [] if isinstance(content, str) else [found for part in content if (found := _medium(part)) is not None]


def _medium(part: Mapping[str, Any]) -> tuple[str, str] | None:
    source = part.get("source")
    found = _DATA_URL.match(str(source.get("path", ""))) if isinstance(source, dict) else None
    return None if found is None else (found[1], found[2])
