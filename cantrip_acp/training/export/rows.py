"""Rows of exports: messages, tools and tokens in the form of chat completions, which most trainers read, and the
writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from datetime import datetime
from typing import Any, BinaryIO, Literal
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

import msgspec

from cantrip_acp.core.exports import Format, FormatBase, Report
from cantrip_acp.crystals.text_tools import without_invented_turns, words_of
from cantrip_acp.text.defaults import complete
from cantrip_acp.text.redaction import ShapeMask, holds_shape
from cantrip_acp.training.export.selection import Source
from cantrip_acp.types.messages import Attachment, Message, RequestParameters, SampledTokens, ToolDefinition
from cantrip_acp.types.records import Turn

Arguments = Literal["text", "data"]
"""How a call's arguments are written: the crystal's own text, or the decoded object (for Hugging Face's chat
templates)."""

Note = Callable[[str], None]


def rendered(message: Message, *, arguments: Arguments, thinking: str | None, note: Note) -> dict[str, Any]:
    """Render one message. ``thinking`` is the key for the thinking; None leaves it out."""
    out: dict[str, Any] = {"role": message.role, "content": _content(message, note)}
    if message.role == "tool":
        out["tool_call_id"] = message.tool_call_id or ""
        if message.name:
            out["name"] = message.name
        return out
    if message.thinking:
        if thinking is not None:
            out[thinking] = message.thinking
        else:
            note("thinking is left out")
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.gate, "arguments": _arguments(c.args, arguments)}}
            for c in message.tool_calls
        ]
    elif out["content"] is None:
        out["content"] = ""
    return out


def tools(definitions: Sequence[ToolDefinition]) -> list[dict[str, Any]]:
    return [
        {"type": "function", "function": {"name": t.name, "description": t.description, "parameters": t.parameters}}
        for t in definitions
    ]


def attachments_as_parts(
    message: Message, note: Note, shown: Callable[[Attachment], dict[str, Any] | None]
) -> list[dict[str, Any]]:
    """Make a part for each attachment with ``shown``, or a text with its name, which is noted."""
    parts = []
    for each in message.attachments:
        part = shown(each)
        if part is None:
            note(f"an attachment ({each.kind}) is exported only as its name")
            part = {"type": "text", "text": f"[{each.kind}: {each.title or each.uri or each.mime}]"}
        parts.append(part)
    return parts


def content_of(message: Message, note: Note, shown: Callable[[Attachment], dict[str, Any] | None]) -> Any:
    """The text of a message; if it has attachments, a list of parts: the attachments, then the text."""
    if not message.attachments:
        return message.content or ""
    text = [{"type": "text", "text": message.content}] if message.content else []
    return [*attachments_as_parts(message, note, shown), *text]


def image_url(attachment: Attachment) -> dict[str, Any] | None:
    """An image as a part of a message of chat completions."""
    return {"type": "image_url", "image_url": {"url": url_of(attachment)}} if attachment.kind == "image" else None


def url_of(attachment: Attachment) -> str:
    """An attachment as a data URL."""
    return f"data:{attachment.mime};base64,{attachment.data}"


def _content(message: Message, note: Note) -> Any:
    if not message.attachments:
        return words_of(message)
    if message.role == "tool":
        # A tool message of chat completions can only have text.
        note("an image of a tool's result is exported only as its name")
        return "\n".join([message.content or "", *(f"[image: {a.title or a.mime}]" for a in message.attachments)])
    return content_of(message, note, image_url)


def arguments_of(text: str) -> dict[str, Any] | None:
    """Parse the arguments of a call; None if they are not a JSON object."""
    try:
        found = msgspec.json.decode(text) if text.strip() else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _arguments(text: str, how: Arguments) -> Any:
    found = arguments_of(text) if how == "data" else None
    return text if found is None else found


# --- The loom's times (ISO 8601) as numbers.


def seconds(timestamp: str) -> float:
    """Seconds since 1970; 0 for an invalid time."""
    try:
        return datetime.fromisoformat(timestamp).timestamp()
    except ValueError:
        return 0.0


def nanoseconds(timestamp: str) -> int:
    """Nanoseconds since 1970, exact to the microsecond; 0 for an invalid time."""
    try:
        when = datetime.fromisoformat(timestamp)
    except ValueError:
        return 0
    return int(when.timestamp()) * 1_000_000_000 + when.microsecond * 1000


# --- What the crystal was asked with.


def request_of(turn: Turn) -> dict[str, Any]:
    """The sent parameters of a turn's query, and the answering model. Empty if nothing is recorded."""
    about: dict[str, Any] = {}
    if isinstance(turn.metadata.request, RequestParameters):
        about = msgspec.to_builtins(turn.metadata.request)
    if about and turn.metadata.model is not None:
        about["model"] = turn.metadata.model
    return about


def weights_of(turn: Turn) -> str | None:
    """The label of the weights that answered; None if unknown."""
    sent = turn.metadata.request
    return sent.weights if isinstance(sent, RequestParameters) else None


# --- Tokens for trainers: token sequences, and entries with log-probabilities.

UNEQUAL = "token ids and log-probabilities of different length"
HIDDEN = "tokens of a text that has the shape of a secret (--raw keeps them)"


class Sequences:
    """The token sequence of a thread: a turn's record only has what it adds to the tokens of the turn before."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._sequence: list[int] = []
        self.problem: str | None = None
        """Why the tokens of the last utterance are left out; None if the loom has none."""

    def of(self, turn: Turn) -> tuple[SampledTokens | None, list[int]]:
        """The tokens of an utterance, and the ids of its whole prompt. Call it for every utterance in order.

        The tokens are None if the loom has none, or if they do not fit together, which is noted. The prompt is empty
        where the provider gave no ids of it.
        """
        sampled, self.problem = turn.metadata.sampled, None
        if not isinstance(sampled, SampledTokens):
            return None, []
        if sampled.ids and sampled.logprobs and len(sampled.ids) != len(sampled.logprobs):
            self.problem = UNEQUAL
            self._source.note(f"{UNEQUAL}: they are left out")
        elif self._source.masked and _tokens_hide_a_shape(turn, sampled):
            self.problem = HIDDEN
            self._source.note(HIDDEN)
        if self.problem is not None:
            self._sequence = []
            return None, []
        given = bool(sampled.ids and (sampled.prompt_ids or sampled.prompt_from))
        if not given or len(self._sequence) < sampled.prompt_from:
            self._sequence = []
            return sampled, []
        prompt = self._sequence[: sampled.prompt_from] + list(sampled.prompt_ids)
        self._sequence = prompt + list(sampled.ids)
        return sampled, prompt

    def of_rejected(self, sampled: SampledTokens) -> list[int]:
        """The ids of the whole prompt of a rejected answer. Call it before `of` for its turn."""
        if (
            not sampled.ids
            or len(self._sequence) < sampled.prompt_from
            or not (sampled.prompt_ids or sampled.prompt_from)
        ):
            return []
        return self._sequence[: sampled.prompt_from] + list(sampled.prompt_ids)


def _tokens_hide_a_shape(turn: Turn, sampled: SampledTokens) -> bool:
    """Whether the tokens hold a text that looks like a secret, and the answer as rows show it does not. Such a text is after
    the end of an answer in text, for example. If the answer shows one, the whole row is left out (`write`)."""
    said = turn.utterance
    shown = [without_invented_turns(said.content or ""), said.thinking or "", *(call.args for call in said.tool_calls)]
    return holds_shape(sampled.text) and not holds_shape(shown)


def entries(sampled: SampledTokens) -> list[dict[str, Any]]:
    """The tokens as entries of chat completions' ``logprobs.content``. Where ids are known, the token is
    ``token_id:N``, as vLLM writes it and trainers read it. ``bytes`` has the text of the token if it is known."""
    return [
        {
            "token": f"token_id:{sampled.ids[place]}" if sampled.ids else sampled.texts[place],
            "bytes": sampled.bytes_of(place) if sampled.texts else None,
            "logprob": logprob,
            "top_logprobs": [],
        }
        for place, logprob in enumerate(sampled.logprobs)
    ]


# --- Writing an export: one row per line, to a stream (`output_file` opens one on a path).

_encoder = msgspec.json.Encoder()


_TOKENS = frozenset(
    {"token_ids", "prompt_token_ids", "completion_token_ids", "logprobs", "tokens", "prompt_ids", "response_ids"}
)
"""Keys of rows that contain a text again, as tokens."""


def write(format_: Format, source: Source, out: BinaryIO, *, raw: bool = False) -> Report:
    """Write the rows as they are made, and return the report. Raises the stream's errors, and `LoomError`.

    Known secrets are always masked. Text that looks like a secret is masked too, unless ``raw`` is true. Tokens cannot be
    masked: a row (in ``art``, a trajectory) with tokens and such a text is left out.
    """
    shapes = ShapeMask(raw=raw)
    source.masked = not raw
    with ExitStack() as opened:
        archive = (
            opened.enter_context(ZipFile(out, "w", ZIP_DEFLATED)) if complete(format_, FormatBase).archive else None
        )
        for row in format_.rows(source):
            shown: Any = _masked(row, shapes, source)
            if shown is None:
                continue
            if archive is None:
                out.write(_encoder.encode(shown) + b"\n")
            else:
                # The time of an entry would make two exports differ.
                archive.writestr(ZipInfo(shown["path"]), _encoder.encode(shown["data"]), ZIP_DEFLATED)
            source.report.rows += archive is None or bool(shown["sample"])
    if shapes.found:
        source.report.notes["a text that has the shape of a secret is masked (--raw keeps it)"] += shapes.found
    for cantrip_id in sorted(source.seen.rebuilt):
        source.note(
            f"the loom does not say what {cantrip_id} was shown of its circle; it is told in this version's words"
        )
    for kind, many in source.loom.later.items():
        source.report.notes[f"records of kind {kind!r} of a later version are left out"] += many
    if source.wanted.differing and source.seen.differing:
        source.report.notes["what the model read before a turn is not exactly as it was sent"] += len(
            source.seen.differing
        )
    return source.report


def _masked(row: Any, shapes: ShapeMask, source: Source) -> Any:
    """Mask known secrets, and with ``shapes`` text that looks like one. None if the row cannot be written."""
    several = row.get("trajectories")
    if not isinstance(several, list):
        return _whole_or_none(row, shapes, source)
    kept = [each for one in several if (each := _whole_or_none(one, shapes, source)) is not None]
    return shapes.data({**row, "trajectories": kept}) if kept or not several else None


def _whole_or_none(part: Any, shapes: ShapeMask, source: Source) -> Any:
    before = shapes.found
    masked = shapes.data(part)
    if shapes.found > before and _holds_tokens(part):
        source.report.left_out[HIDDEN] += 1
        return None
    return masked


def _holds_tokens(value: Any) -> bool:
    if isinstance(value, dict):
        return any((bool(each) and key in _TOKENS) or _holds_tokens(each) for key, each in value.items())
    return isinstance(value, list | tuple) and any(map(_holds_tokens, value))
