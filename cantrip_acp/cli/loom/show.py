"""Prints a loom as text: an overview of its casts, every turn of one thread, or a tree of all turns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from cantrip_acp.cli.render.display import duration
from cantrip_acp.cli.render.table import number
from cantrip_acp.cli.render.terminal import Block, Flow, Screen
from cantrip_acp.gates.contract import as_text
from cantrip_acp.loom.query.thread import Endings
from cantrip_acp.text.sanitize import clean_line, without_links
from cantrip_acp.types.usage import NO_USAGE, Usage

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.outline import Outline
    from cantrip_acp.loom.query.thread import Thread
    from cantrip_acp.types.records import CastRecord, GateRecord, Output, Turn, VoidedAttempt

_INTENT = 200
_DAMAGE = 20


class LoomView:
    """Prints a loom on a screen. ``full`` shows outputs without a limit."""

    def __init__(self, screen: Screen, loom: Loom, *, full: bool = False) -> None:
        self._screen = screen
        self._loom = loom
        self._endings = Endings(loom)
        self._full = full
        self._dot = f" {screen.marks.dot} "

    def overview(self) -> None:
        """Print the header, the damage, each cast with one line per turn, and the threads."""
        loom, screen = self._loom, self._screen
        casts = loom.casts()
        threads = loom.threads()
        head = loom.header
        parts = [f"format {head.format}", head.created[:19]] if head is not None else ["no header"]
        spoken = sum(place.is_utterance for place in loom.places.values())
        counts = [_many(spoken, "turn"), _many(len(casts), "cast")]
        counts.append(_many(len(threads), "thread"))
        screen.line(
            (head.id if head is not None else "loom", "bold"), (self._dot + self._dot.join(parts + counts), "dim")
        )
        screen.line(("file     ", "dim"), loom.location or "in memory")
        self._damage()
        turns: dict[str | None, list[Turn]] = {}
        for turn in loom.turns():
            if turn.role != "call":
                turns.setdefault(turn.cast_id, []).append(turn)
        for start, end in casts:
            screen.blank()
            self._cast(start)
            for turn in turns.pop(start.id, []):
                self._line(turn)
            self._end(start, end)
        for left in turns.values():
            screen.blank()
            screen.line(("turns without a cast", "yellow"))
            for turn in left:
                self._line(turn)
        if len(threads) > 1:
            screen.blank()
            screen.line(("threads", "bold"))
            for thread in threads:
                screen.line(
                    (thread.leaf.id, "bold"),
                    (self._dot + _many(_turns(thread), "turn") + self._dot, "dim"),
                    thread.state if thread.reason in (None, thread.state) else f"{thread.state} ({thread.reason})",
                    indent=2,
                )

    def thread(self, thread: Thread) -> None:
        """Print every turn of a thread: what the crystal said, what ran, and what was observed."""
        screen = self._screen
        starts = {start.id: (start, end) for start, end in self._loom.casts()}
        self._damage()
        current: str | None = None
        number = 0
        for turn in thread:
            number += turn.role == "crystal" and not turn.continues
            if turn.cast_id != current and turn.cast_id in starts:
                current = turn.cast_id
                self._cast(starts[turn.cast_id][0])
            if turn.role == "call":
                self._call(turn)
            else:
                self._turn(turn, number)
            if turn.reason is not None and turn.cast_id in starts:
                self._end(*starts[turn.cast_id])
            screen.blank()
        used = sum((turn.metadata.usage for turn in thread if turn.role != "call"), NO_USAGE)
        parts = [_many(_turns(thread), "turn"), *(used.words() or ["0 tokens"])]
        style = {"terminated": "bold green", "truncated": "bold yellow"}.get(thread.state, "bold")
        outcome = (
            thread.state
            if thread.reason is None or thread.state == "terminated"
            else f"{thread.state} ({thread.reason})"
        )
        if thread.leaf.reason is None and self._loom.children(thread.leaf.id):
            # A turn in the middle was asked for.
            outcome, style = "up to this turn, after which the cast went on", "bold"
        screen.line((f"{screen.marks.stop} {outcome}", style), (self._dot + self._dot.join(parts), "dim"))

    def _damage(self) -> None:
        found = self._loom.problems
        for problem in found[:_DAMAGE]:
            self._screen.line((f"damage   {problem}", "yellow"))
        if len(found) > _DAMAGE:
            self._screen.line((f"         … and {len(found) - _DAMAGE:,} more; --json shows all of them", "yellow"))
        for kind, many in self._loom.later.items():
            what = f"{_many(many, 'record')} of kind {clean_line(kind, 80)} from a later version: not shown"
            self._screen.line((f"note     {what}", "yellow"))

    def _cast(self, start: CastRecord) -> None:
        intent = clean_line(without_links(start.intent or ""), _INTENT)
        self._screen.line((f"{self._screen.marks.prompt} ", "bold magenta"), (intent, "bold"))
        self._screen.line((self._dot.join([start.id, start.entity_id, start.timestamp[:19]]), "dim"), indent=2)

    def _end(self, start: CastRecord, end: CastRecord | None) -> None:
        screen = self._screen
        ending = self._endings.cast(start.id)
        for partial in self._loom.partials():
            if partial.cast_id != start.id:
                continue
            if partial.utterance.content:
                screen.line(("began to say  ", "dim"), clean_line(partial.utterance.content, 2000), indent=4)
            for line in _attempts(partial.voided):
                screen.line((line, "dim"), indent=4)
        if end is None:
            why = (
                "active: a process runs it"
                if ending.state == "active"
                else f"no end is recorded, because the process ended: {ending.reason}"
            )
            screen.line((f"{screen.marks.stop} {why}", "yellow"), indent=2)
            return
        style = "green" if end.terminated else "yellow"
        parts = [ending.outcome, _many(end.turns, "turn"), *Usage.of_record(end.usage).words()]
        screen.line((f"{screen.marks.stop} {self._dot.join(parts)}", style), indent=2)
        shown = end.result if end.result is not None else end.error or end.summary
        if shown is not None:
            screen.line(clean_line(as_text(shown), 2000), indent=4)
        for warning in end.warnings or ():
            screen.line((clean_line(warning, 2000), "yellow"), indent=4)

    def _call(self, turn: Turn) -> None:
        record = self._loom.cantrip(turn.cantrip_id)
        self._screen.line((turn.id, "dim"), ("  call  ", "bold"), (turn.cantrip_id, "dim"))
        if record is None:
            return
        prompt = record.call.get("system_prompt")
        if prompt:
            self._block(str(prompt), style="dim")
        others = {k: v for k, v in record.call.items() if k != "system_prompt"}
        gates = ", ".join(str(g.get("name")) for g in record.circle.get("gates", ()) if isinstance(g, dict))
        about = {"medium": record.circle.get("medium"), "gates": gates, "wards": record.circle.get("wards"), **others}
        for key, value in about.items():
            if value:
                shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
                self._screen.line((f"{key}  ", "dim"), clean_line(shown, 1000), indent=2)

    def _facts(self, turn: Turn) -> str:
        meta = turn.metadata
        parts = [duration(meta.duration_ms / 1000), *meta.usage.words()]
        if turn.role == "crystal" and meta.model and not turn.continues:
            parts.append(meta.model + (f" ({meta.fingerprint})" if meta.fingerprint else ""))
        if meta.request:
            import msgspec

            asked = msgspec.structs.asdict(meta.request)
            parts += [f"{name} {_parameter(value)}" for name, value in asked.items() if value not in (None, ())]
        parts += _attempts(meta.voided or ())
        if turn.reward is not None:
            parts.append(f"reward {turn.reward:g}")
        return self._dot.join(parts)

    def _line(self, turn: Turn) -> None:
        """Print a turn on one line: its id, a short text of what it did, its duration and usage."""
        did: list[str] = []
        if turn.utterance.code:
            did.append("$ " + clean_line(turn.utterance.code, 60))
        did += [_status(output) for output in turn.observation.programs]
        did += [f"{r.gate}{' failed' if r.is_error else ''}" for r in turn.observation.results]
        if not did and turn.utterance.content:
            did.append(clean_line(turn.utterance.content, 60))
        fold = ("  fold", "bold") if turn.role == "fold" else ""
        self._screen.line(
            (turn.id, "cyan"),
            fold,
            f"  {turn.sequence}  ",
            ", ".join(did) or "(said nothing)",
            (f"  {self._facts(turn)}", "dim"),
            indent=2,
        )

    def _turn(self, turn: Turn, number: int) -> None:
        """Print a turn. ``number`` counts from the thread's root, as other commands take it."""
        screen = self._screen
        name = "fold" if turn.role == "fold" else f"turn {number}"
        screen.line((name, "bold"), (f"  {turn.id}  {self._facts(turn)}", "dim"))
        utterance = turn.utterance
        if utterance.thinking:
            self._flow(screen.marks.thought, utterance.thinking, style="dim italic", mark_style="dim")
        if utterance.content:
            self._flow(screen.marks.message, utterance.content, mark_style="cyan")
        if utterance.code:
            for n, line in enumerate(utterance.code.rstrip("\n").split("\n")):
                screen.line(("$ " if n == 0 else "  ", "dim"), (line, "bold"), indent=2)
        for output in turn.observation.programs:
            value = "" if output.value is None else f"=> {as_text(output.value)}"
            stdout, stderr = (each.coded() for each in output.streams)
            for text, style in ((stdout, ""), (stderr, "red"), (value, ""), (output.error or "", "red")):
                if text:
                    self._block(text, style=style)
            mark, style = (screen.marks.failed, "red") if output.failed else (screen.marks.done, "green")
            cut = f"{self._dot}output was cut" if output.truncated else ""
            screen.line((f"{mark} {_status(output)}{cut}", style), indent=2)
        for record in turn.observation.results:
            self._gate(record)

    def _gate(self, record: GateRecord) -> None:
        screen = self._screen
        args = record.args if isinstance(record.args, str) else json.dumps(record.args, ensure_ascii=False)
        mark, style = (screen.marks.failed, "red") if record.is_error else (screen.marks.done, "green")
        screen.line(
            (f"{screen.marks.call} ", "blue"), (record.gate, "bold blue"), f" {clean_line(args, 300)}", indent=2
        )
        self._block(as_text(record.result), style="red" if record.is_error else "")
        screen.line((f"{mark} {'failed' if record.is_error else 'completed'}", style), indent=2)

    def _flow(self, mark: str, words: str, **styles: Any) -> None:
        flow = Flow(self._screen, mark, **styles)
        flow.feed(words)
        flow.close()

    def _block(self, text: str, style: str = "") -> None:
        block = Block(self._screen, indent=2, head=None if self._full else 40, style=style)
        block.feed(text)
        block.close()


def as_data(loom: Loom) -> dict[str, Any]:
    """The overview as plain data."""
    import msgspec

    endings = Endings(loom)
    casts = [
        {
            "start": msgspec.to_builtins(start),
            "end": msgspec.to_builtins(end) if end is not None else None,
            "state": (ending := endings.cast(start.id)).state,
            "reason": ending.reason,
        }
        for start, end in loom.casts()
    ]
    threads = [
        {
            "leaf": t.leaf.id,
            "state": t.state,
            "reason": t.reason,
            "turns": [turn.id for turn in t.acted],
            "result": t.result,
        }
        for t in loom.threads()
    ]
    return {
        "file": loom.location,
        "loom": msgspec.to_builtins(loom.header) if loom.header is not None else None,
        "casts": casts,
        "turns": [_brief(turn) for turn in loom.turns()],
        "threads": threads,
        "problems": problems(loom),
        "later": dict(loom.later),
    }


def problems(loom: Loom) -> list[dict[str, Any]]:
    """The loom's damage as plain data."""
    import msgspec

    return [msgspec.to_builtins(problem) for problem in loom.problems]


def _brief(turn: Turn) -> dict[str, Any]:
    import msgspec

    keys = ("id", "parent_id", "entity_id", "cast_id", "role", "sequence", "gate_calls", "reward", "terminated")
    out = {key: msgspec.to_builtins(getattr(turn, key)) for key in (*keys, "truncated", "reason")}
    return {**out, "metadata": msgspec.to_builtins(turn.metadata)}


def _status(output: Output) -> str:
    if output.timed_out is True:
        return "timed out"
    if output.exit_code is not None:
        return f"exit {output.exit_code}"
    return "failed" if output.failed else "completed"


def _turns(thread: Thread) -> int:
    return sum(turn.is_utterance for turn in thread)


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


_WORDS = 80


def draw(screen: Screen, loom: Loom) -> None:
    """Draw the tree of turns: every turn is below its parent, and only a branch moves to the right. A fork is a branch, also
    one of a last turn.

    The first line of a cast has its intent, and says if it is that of a fork or a child. Lines end with the rewards.
    """
    from cantrip_acp.loom.query.outline import Outline
    from cantrip_acp.loom.query.thread import Endings
    from cantrip_acp.loom.rewards import relative_of

    outline = Outline(loom)
    failed = {each["entity_id"]: each for each in failed_forks(loom)}
    children: dict[str | None, list[str]] = {}
    for turn_id, place in outline.places.items():
        parent = place.parent_id if place.parent_id in outline.places else None
        children.setdefault(parent, []).append(turn_id)
    for entity_id, each in failed.items():
        children.setdefault(each["from_turn"], []).append(entity_id)
    silent_roots = {start.entity_id: start for _, start in outline.silent_roots}
    for call_id, start in outline.silent_roots:
        children.setdefault(call_id, []).append(start.entity_id)
    heads = {head for spawned in outline.spawned.values() for head in spawned}
    dot = f" {screen.marks.dot} "
    endings, leaves = Endings(loom, outline.starts), frozenset(outline.leaves)
    first: dict[str, str] = {}
    for turn_id, place in outline.places.items():
        first.setdefault(place.entity_id, turn_id)
    forked = {*failed, *(first[fork.entity_id] for fork in loom.forks() if fork.entity_id in first)}
    for turn_id, prefix, mark in _walk(children, forked):
        if (lost := failed.get(turn_id)) is not None:
            why = f"{dot}{lost['reason']}", "yellow"
            error = f": {clean_line(lost['error'], _WORDS)}" if lost["error"] else ""
            screen.line((f"{prefix}{mark}", "dim"), f"{turn_id} ", ("fork  ", "cyan"), why, (error, "dim"))
            continue
        if (begun_cast := silent_roots.get(turn_id)) is not None:
            ended = endings.cast(begun_cast.id)
            error = f": {clean_line(ended.error, _WORDS)}" if ended.error else ""
            intent = clean_line(without_links(begun_cast.intent or ""), _WORDS)
            outcome = f"{dot}{ended.outcome}", "yellow"
            screen.line((f"{prefix}{mark}", "dim"), f"{turn_id} ", (f"{intent!r}", "cyan"), outcome, (error, "dim"))
            continue
        turn = loom.turn(turn_id)
        begun = _beginning(loom, outline, turn, turn_id in heads)
        if turn.role == "call":
            parts = [(f"{prefix}{mark}", "dim"), (begun, "cyan"), ("call ", "bold")]
            parts.append((f"{turn.id}{dot}{turn.cantrip_id}", "dim"))
            silent = outline.cast_of_silent(turn_id)
            if silent is not None:
                ended = endings.cast(silent.id)
                parts.append((f"{dot}{ended.outcome}", "yellow"))
                parts.append((f": {clean_line(ended.error, _WORDS)}" if ended.error else "", "dim"))
            screen.line(*parts)
            continue
        parts = [
            (f"{prefix}{mark}", "dim"),
            (f"{turn.id} ", "bold" if turn.terminated else ""),
            (begun, "cyan"),
            (clean_line(_summary(turn), _WORDS), "dim" if turn.role == "fold" else ""),
        ]
        reason = endings.thread(turn).outcome if turn_id in leaves else turn.reason
        if reason is not None:
            parts.append((f"{dot}{reason}", "green" if turn.terminated else "yellow"))
        if turn.reward is not None:
            parts.append((f"{dot}reward {number(turn.reward)}", "magenta"))
        relative = relative_of(loom, turn_id)
        if relative is not None:
            parts.append((f"{dot}relative {number(relative)}", "magenta"))
        screen.line(*parts)


def failed_forks(loom: Loom) -> list[dict[str, Any]]:
    """The forks that ended before their first turn: ``entity_id``, ``from_turn``, ``group``, ``reason`` and ``error``."""
    wrote = {place.entity_id for place in loom.places.values()}
    silent = {fork.entity_id: fork for fork in loom.forks() if fork.entity_id not in wrote and fork.from_turn in loom}
    if not silent:
        return []
    starts = {start.entity_id: start.id for start in loom.cast_starts().values() if start.entity_id in silent}
    endings, found = Endings(loom), []
    for entity_id, fork in silent.items():
        ending = endings.cast(starts[entity_id]) if entity_id in starts else None
        if ending is None or ending.state != "truncated":
            continue
        group = fork.group if isinstance(fork.group, str) else None
        about = {"entity_id": entity_id, "from_turn": fork.from_turn, "group": group}
        found.append({**about, "reason": ending.reason, "error": ending.error})
    return found


def _beginning(loom: Loom, outline: Outline, turn: Turn, spawned: bool) -> str:
    """The intent of the cast that begins with this turn, after ``child`` or ``fork`` if that is how its entity began; else an
    empty text."""
    place = outline.places[turn.id]
    above = outline.places.get(place.parent_id) if place.parent_id is not None else None
    if spawned:
        # A child's root turn has no cast yet; the turn after it has one.
        first = next(iter(outline.next.get(turn.id, [])), turn.id)
        silent = outline.cast_of_silent(turn.id) if turn.role == "call" else None
        intent = silent.intent if silent is not None else outline.intent(first)
        return f"child {clean_line(without_links(intent), _WORDS)!r}  " if intent else "child  "
    began = ""
    if above is not None and above.entity_id != place.entity_id and turn.role != "call":
        fork = loom.fork_of(place.entity_id)
        if fork is not None and fork.from_turn == place.parent_id:
            began = f"fork by {clean_line(fork.strategy, 20)}  " if fork.strategy != "none" else "fork  "
    if turn.role == "call":
        intent = None
    elif (above is not None and above.cast_id == place.cast_id) or (
        above is not None and above.role == "call" and above.parent_id is not None
    ):
        # It goes on, or it is a child's, whose call had the intent.
        intent = None
    else:
        intent = outline.intent(turn.id)
        if began and above is not None and outline.intent(place.parent_id or "") == intent:
            # Another sample of the same cast.
            intent = None
    return began + (f"{clean_line(without_links(intent), _WORDS)!r}  " if intent else "")


def _walk(children: dict[str | None, list[str]], forked: set[str]) -> Iterator[tuple[str, str, str]]:
    """Yield each turn with the text before it on its line. Uses a stack: threads are too long for recursion.

    ``forked``: the first turns of forks, which are branches even if nothing else continues from there.
    """
    stack: list[tuple[str, str, str, str]] = [(root, "", "", "") for root in reversed(children.get(None, []))]
    while stack:
        turn_id, prefix, mark, below = stack.pop()
        yield turn_id, prefix, mark
        next_ones = children.get(turn_id, [])
        if len(next_ones) == 1 and next_ones[0] not in forked:
            stack.append((next_ones[0], below, "", below))
            continue
        for place, child in reversed(list(enumerate(next_ones))):
            last = place == len(next_ones) - 1
            stack.append((child, below, "└─ " if last else "├─ ", below + ("   " if last else "│  ")))


def _summary(turn: Turn) -> str:
    utterance = turn.utterance
    parts = [", ".join(turn.gate_calls)] if turn.gate_calls else []
    if utterance.code:
        parts.append(utterance.code)
    elif utterance.content:
        parts.append(utterance.content)
    return "  ".join(parts) or "…"


def _attempts(voided: Sequence[VoidedAttempt]) -> list[str]:
    """Describe the attempts of a query without a usable answer."""
    hows = ["interrupted" if v.rejected is None else f"rejected ({v.rejected.replace('_', ' ')})" for v in voided]
    return [f"attempt {each.attempt} was {how}" for each, how in zip(voided, hows, strict=True)]


def _parameter(value: Any) -> str:
    """A parameter of a request in words."""
    if isinstance(value, tuple):
        return clean_line(json.dumps(value, ensure_ascii=False), 60)
    return clean_line(value, 60) if isinstance(value, str) else f"{value:g}"
