"""Import of Inspect's logs (version 2): ``.eval`` archives and ``.json`` files. A sample is a thread.

Archives of Inspect are compressed with Zstandard, which Python reads from 3.14 on. Before that, the package ``zstandard`` is
needed for them.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

import msgspec

from cantrip_acp.text.codecs import convert
from cantrip_acp.training.importing.conversation import Answer, Asked, Conversation, Result, Told, add_conversation
from cantrip_acp.training.importing.importer import RecordWriter
from cantrip_acp.training.importing.json_lines import LONGEST, ImportProblem, Report, documents
from cantrip_acp.types.messages import ToolCall

_ZSTANDARD = 93
_DATA_URL = re.compile(r"data:(image/[a-z+.-]+);base64,([A-Za-z0-9+/=\s]*)\Z")
_LETTERS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
"""Inspect's values of scores: correct, partly correct, incorrect, no answer."""
_LIMITS = {"time": "max_seconds", "working": "max_seconds", "token": "max_tokens", "cost": "max_cost",
           "message": "max_turns", "turn": "max_turns"}  # fmt: skip


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any]] = ""
    id: str | None = None
    model: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    error: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None


class _Sample(msgspec.Struct):
    id: int | str
    epoch: int
    messages: list[_Message]
    target: str | list[str] = ""
    scores: dict[str, dict[str, Any]] | None = None
    metadata: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    attachments: dict[str, str] = {}
    error: dict[str, Any] | None = None
    limit: dict[str, Any] | None = None
    uuid: str | None = None


def is_archive(path: Path) -> bool:
    """Whether a file begins like a ZIP archive."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"PK\x03\x04"
    except OSError:
        return False


def is_log(document: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a whole log."""
    return isinstance(document.get("eval"), dict) and "status" in document and "version" in document


def import_log(path: Path, writer: RecordWriter) -> Report:
    """Import each sample of a log. Raises `ImportProblem`, and `LoomError` if the loom cannot be written."""
    for where, header, document in _archived(path) if is_archive(path) else _listed(path):
        try:
            sample = convert(document, _Sample)
        except msgspec.ValidationError as error:
            raise ImportProblem(where, f"not a sample of Inspect: {error}") from None
        add_conversation(writer, _conversation(header, sample, writer.report))
    return writer.report


def _listed(path: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    for where, document in documents(path):
        if not is_log(document):
            raise ImportProblem(where, "not a log of Inspect")
        for number, sample in enumerate(document.get("samples") or ()):
            yield f"{where} (sample {number + 1})", document, sample


def _archived(path: Path) -> Iterator[tuple[str, dict[str, Any], Any]]:
    try:
        with path.open("rb") as file, ZipFile(file) as archive:
            names = {info.filename: info for info in archive.infolist()}
            first = names.get("header.json") or names.get("_journal/start.json")
            if first is None:
                raise ImportProblem(str(path), "an archive without header.json: not a log of Inspect")
            header = _entry(path, file, archive, first)
            for name, info in names.items():
                if name.startswith("samples/") and name.endswith(".json"):
                    yield f"{path} ({name})", header, _entry(path, file, archive, info)
    except OSError as error:
        raise ImportProblem(str(path), f"cannot be read: {error.strerror}") from error
    except (BadZipFile, zlib.error, EOFError) as error:
        raise ImportProblem(str(path), f"a damaged archive: {error}") from None


def _entry(path: Path, file: BinaryIO, archive: ZipFile, info: ZipInfo) -> Any:
    where = f"{path} ({info.filename})"
    if info.file_size > LONGEST:
        raise ImportProblem(where, f"an entry of more than {LONGEST:,} bytes")
    if info.compress_type in (ZIP_STORED, ZIP_DEFLATED):
        with archive.open(info) as entry:
            data = entry.read(LONGEST + 1)
    elif info.compress_type == _ZSTANDARD:
        data = _zstandard(where, file, info)
    else:
        raise ImportProblem(where, f"an unknown compression ({info.compress_type})")
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ImportProblem(where, f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise ImportProblem(where, "a JSON object is expected")
    return found


def _zstandard(where: str, file: BinaryIO, info: ZipInfo) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise ImportProblem(
            where,
            "is compressed with Zstandard. Install the package that reads it (pip install zstandard), or write the log as "
            "JSON (inspect log convert --to json)",
        ) from None
    file.seek(info.header_offset)
    head = file.read(30)
    if len(head) < 30 or head[:4] != b"PK\x03\x04":
        raise BadZipFile("an entry has no header")
    name, extra = struct.unpack("<HH", head[26:30])
    file.seek(info.header_offset + 30 + name + extra)
    try:
        with zstandard.ZstdDecompressor().stream_reader(file.read(info.compress_size)) as reader:
            return bytes(reader.read(LONGEST + 1))
    except zstandard.ZstdError as error:
        raise BadZipFile(str(error)) from None


def _conversation(header: Mapping[str, Any], sample: _Sample, report: Report) -> Conversation:
    about = header.get("eval") or {}
    ours = sample.metadata.get("cantrip")
    ours = ours if isinstance(ours, dict) else {}
    messages = list(sample.messages)

    def text(message: _Message) -> str:
        return _text(message.content, sample, report)

    system = text(messages.pop(0)) if messages and messages[0].role == "system" else None
    events = _model_events(sample)
    items: list[Asked | Told | Answer] = []
    for message in messages:
        if message.role == "assistant":
            items.append(_answer(message, events.get(message.id or "", {}), sample, report))
        elif message.role == "tool":
            said = next((each for each in reversed(items) if isinstance(each, Answer)), None)
            if said is None:
                report.note("a result before any answer")
                continue
            said.results.append(Result(message.tool_call_id, text(message), message.error is not None))
        elif message.role == "user":
            items.append(Asked(text(message), media=_images(message.content, sample)))
        else:
            items.append(Told(text(message)))
    reason = ours.get("reason") if ours.get("state") != "active" else None
    if not isinstance(reason, str):
        reason = "error" if sample.error else None
        if sample.limit:
            reason = _LIMITS.get(str(sample.limit.get("type")), "cancelled")
    if any(event.get("event") in ("sandbox", "subtask") for event in sample.events):
        report.note("events of a sandbox or a subtask")
    tools: list[Any] = next(
        (e["tools"] for e in sample.events if e.get("event") == "model" and isinstance(e.get("tools"), list)), []
    )
    score = _score(sample, report)
    return Conversation(
        "inspect",
        f"{about.get('eval_id') or about.get('run_id') or ''} {sample.uuid or ''} {sample.id} {sample.epoch}",
        items,
        system,
        [
            {
                "name": str(each.get("name", "")),
                "description": str(each.get("description", "")),
                "parameters": each.get("parameters") or {"type": "object"},
            }
            for each in tools
            if isinstance(each, dict)
        ],
        {"task": str(about.get("task", "")), "model": str(about.get("model", "")), "sample": str(sample.id)},
        score,
        "inspect",
        ours.get("reference") or _target(sample.target),
        reason,
        str(sample.error.get("message", "")) if sample.error else None,
    )


def _model_events(sample: _Sample) -> dict[str, Mapping[str, Any]]:
    """The events with the calls of models, by the id of the message that they returned."""
    found: dict[str, Mapping[str, Any]] = {}
    for event in sample.events:
        choices = (event.get("output") or {}).get("choices") if event.get("event") == "model" else None
        for choice in choices or ():
            own = (choice.get("message") or {}).get("id")
            if isinstance(own, str):
                found[own] = event
    return found


def _answer(message: _Message, event: Mapping[str, Any], sample: _Sample, report: Report) -> Answer:
    ours = (message.metadata or {}).get("cantrip")
    ours = ours if isinstance(ours, dict) else {}
    usage = (event.get("output") or {}).get("usage") or ours.get("usage") or {}
    thoughts = [
        str(part.get("reasoning", ""))
        for part in (message.content if isinstance(message.content, list) else ())
        if part.get("type") == "reasoning"
    ]
    read = _number(usage.get("input_tokens"))
    cached = _number(usage.get("input_tokens_cache_read"))
    return Answer(
        _text(message.content, sample, report) or None,
        "\n".join(thoughts) or None,
        [
            ToolCall(str(each.get("id", "")), str(each.get("function", "")), _arguments(each))
            for each in message.tool_calls or ()
        ],
        when=str(event.get("completed") or event.get("timestamp") or ours.get("timestamp") or ""),
        model=message.model,
        # Inspect counts cached tokens apart.
        prompt_tokens=None if read is None else read + (cached or 0),
        completion_tokens=_number(usage.get("output_tokens")),
        cached_tokens=cached,
        cost=usage.get("total_cost") if isinstance(usage.get("total_cost"), int | float) else None,
    )


def _arguments(call: Mapping[str, Any]) -> str:
    own, problem = call.get("arguments"), str(call.get("parse_error") or "")
    if problem.startswith("not an object: "):
        return problem.removeprefix("not an object: ")
    return msgspec.json.encode(own if own is not None else {}).decode()


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _score(sample: _Sample, report: Report) -> float | None:
    found: list[float] = []
    for score in (sample.scores or {}).values():
        value = score.get("value")
        if isinstance(value, str):
            value = _LETTERS.get(value.strip().upper())
        if isinstance(value, int | float):
            found.append(float(value))
        else:
            report.note("a score that is not one number")
    if len(found) > 1:
        report.note("further scores of a sample: the first is its reward")
    return found[0] if found else None


def _target(target: str | list[str]) -> Any:
    if isinstance(target, list):
        return target[0] if len(target) == 1 else target or None
    return target or None


def _whole(text: str, sample: _Sample) -> str:
    """A text, with a reference to an attachment replaced by its content."""
    return (
        sample.attachments.get(text.removeprefix("attachment://"), text) if text.startswith("attachment://") else text
    )


def _text(content: str | list[dict[str, Any]], sample: _Sample, report: Report) -> str:
    if isinstance(content, str):
        return _whole(content, sample)
    for part in content:
        kind = part.get("type")
        if kind not in ("text", "reasoning") and not (kind == "image" and _image(part, sample)):
            report.note(f"content of the type {str(kind)[:40]!r}")
    return "\n".join(_whole(str(part.get("text", "")), sample) for part in content if part.get("type") == "text")


def _images(content: str | list[dict[str, Any]], sample: _Sample) -> list[tuple[str, str]]:
    return (
        [] if isinstance(content, str) else [found for part in content if (found := _image(part, sample)) is not None]
    )


def _image(part: Mapping[str, Any], sample: _Sample) -> tuple[str, str] | None:
    found = _DATA_URL.match(_whole(str(part.get("image", "")), sample)) if part.get("type") == "image" else None
    return None if found is None else (found[1], found[2])
