"""Casts and turns as short texts and data, for symbols, lenses and tree views. Terminal control sequences are removed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from cantrip_acp.loom.query.thread import cast_ending
from cantrip_acp.loom.view import summary
from cantrip_acp.lsp.looms.document import LoomDocument
from cantrip_acp.text.sanitize import clean_line, without_links
from cantrip_acp.types.records import Turn
from cantrip_acp.types.usage import Usage

_SHOWN = 120
DOT = " · "


def plain(text: object, most: int = _SHOWN) -> str:
    return clean_line(text if isinstance(text, str) else str(text), most)


def turn(book: LoomDocument, number: int, of: Turn) -> dict[str, Any]:
    """A turn as data. ``line`` counts from 0; ``kind`` says what ``text`` is: code, calls, text, fold or call."""
    metadata, index = of.metadata, book.index
    row = summary.row(of)
    cast = index.cast_of[number]
    return {
        "n": number,
        "id": of.id,
        "line": book.line(number),
        "sequence": of.sequence,
        "role": of.role,
        "kind": row["kind"],
        "text": plain(row["text"]),
        "said": plain(row.get("said", "")),
        "gates": [plain(gate, 60) for gate in dict.fromkeys(of.gate_calls)],
        "cast": index.casts[cast].id if cast >= 0 else None,
        "entity": of.entity_id,
        "parent": of.parent_id,
        "continues": of.continues,
        "tokens": {
            "prompt": metadata.tokens_prompt,
            "completion": metadata.tokens_completion,
            "cached": metadata.tokens_cached,
        },
        "cost": metadata.cost,
        "ms": round(metadata.duration_ms, 3),
        "timestamp": metadata.timestamp,
        "model": metadata.model,
        "reward": of.reward,
        "failed": bool(summary.flags(of) & summary.ERROR),
        "state": "terminated" if of.terminated else "truncated" if of.truncated else None,
        "reason": of.reason,
        "children": len(book.tree.spawned(number)),
        "forks": len(index.forks.get(number, ())),
    }


def cast(book: LoomDocument, number: int) -> dict[str, Any]:
    """A cast as data. For an ended cast, ``tokens`` and ``cost`` include its children's, as in the loom."""
    start, end = book.cast(number)
    places, spawner, fork = book.index.casts[number], book.tree.spawner(number), book.fork(number)
    first, last = book.span(number)
    usage = end.usage if end is not None else {}
    ending = cast_ending(end, running=end is None and book.running(book.index.casts[number].id))
    if usage:
        spent = Usage.of_record(usage).counted()
    else:
        spent = book.spent(number)
    tokens = {"prompt": spent.prompt_tokens, "completion": spent.completion_tokens, "cached": spent.cached_tokens}
    cost = spent.cost
    text = "" if end is None else end.error or (end.result if isinstance(end.result, str) else "") or end.summary or ""
    return {
        "n": number,
        "id": places.id,
        "line": first,
        "endLine": last,
        "entity": book.index.entities[places.entity],
        "intent": plain(without_links((start.intent if start is not None else None) or "")),
        "told": plain(text),
        "state": ending.state,
        "reason": ending.reason,
        "turns": len(book.tree.turns[number]),
        "tokens": tokens,
        "cost": cost if isinstance(cost, int | float) and not isinstance(cost, bool) else None,
        "started": start.timestamp if start is not None else "",
        "ended": end.timestamp if end is not None else None,
        "model": plain(start.attributes.get("model") or "") or None if start is not None else None,
        "parent": book.index.ids[spawner] if spawner is not None else None,
        "forkedFrom": fork.from_turn if fork is not None else None,
        "leaf": book.index.ids[book.tree.turns[number][-1]] if book.tree.turns[number] else None,
    }


def turn_facts(data: dict[str, Any]) -> str:
    """A turn's duration, usage, reward and end, in one line."""
    parts = [duration(data["ms"] / 1000), *_usage_text(data)]
    if data["reward"] is not None:
        parts.append(f"reward {data['reward']:g}")
    if data["failed"]:
        parts.append("failed")
    if data["reason"]:
        parts.append(data["reason"])
    return DOT.join(parts)


def cast_facts(data: dict[str, Any]) -> str:
    """The end and the usage of a cast, on one line."""
    how = data["reason"] or data["state"]
    parts = [how, many(data["turns"], "turn"), *_usage_text(data)]
    if data["forkedFrom"]:
        parts.append(f"fork of {data['forkedFrom']}")
    return DOT.join(plain(part) for part in parts)


def turn_name(data: dict[str, Any]) -> str:
    if data["role"] == "call":
        return "call"
    lead = "fold" if data["role"] == "fold" else str(data["sequence"])
    gates = ", ".join(data["gates"])
    rest = data["text"] or data["said"]
    words = f"{gates}: {rest}" if gates and rest else gates or rest or "(said nothing)"
    return plain(f"{lead}  {words}")


def _usage_text(data: dict[str, Any]) -> list[str]:
    tokens = data["tokens"]["prompt"] + data["tokens"]["completion"]
    out = [f"{tokens:,} tokens"] if tokens else []
    return out if data["cost"] is None else [*out, f"${data['cost']:.4f}"]


def many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 60 else f"{int(seconds // 60)} min {int(seconds % 60)} s"


def when(timestamp: str) -> str:
    """A timestamp to the second; the text itself if it is not a timestamp."""
    try:
        return datetime.fromisoformat(timestamp).strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return plain(timestamp, 40)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
