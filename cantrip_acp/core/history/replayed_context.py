"""Crystal view: rebuilds from the loom what a crystal saw on the path to a turn, window by window.

It uses the same rendering code as the original cast (`context.Context`), with the loom's records as input. Between two
folds, messages are only added; such a stretch is a `Window`. Each utterance is new in one window, and context in later
ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from cantrip_acp.core.casting.query_digest import QueryDigest
from cantrip_acp.core.context import Context
from cantrip_acp.core.history.recorded_circle import RecordedCircle, RecordedCircles, recorded_call
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.query.history import CastPart, withdrawn_casts
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.loom.records.tree import UNREADABLE
from cantrip_acp.loom.records.turn_parts import joined
from cantrip_acp.types.context_block import block_of
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.messages import Message, ToolDefinition
from cantrip_acp.types.records import ConfigRecord, SentQuery, SummaryQuery, Turn

_BATCH = 256
"""How many turns are read at once."""

Begun = Literal["start", "fold", "cut", "knowledge", "fork", "cantrip", "tools", "summary", "asked again"]


@dataclass(frozen=True, slots=True)
class WindowUtterance:
    """A turn and the position of its utterance: ``messages[:at]`` of its window is the crystal's input."""

    turn: Turn
    at: int

    @property
    def first(self) -> str:
        """The id of the utterance's first turn. A delegation splits one utterance into several turns."""
        return self.turn.continues or self.turn.id


@dataclass(slots=True)
class Window:
    """A stretch of a crystal's context. ``messages`` ends with the last utterance; ``uttered`` are the turns of this
    window.

    ``begun`` is why it is a new window: the start of the thread, a fold, a cut that made room, or removed
    an ephemeral result or media that the provider refused, a change of what the session knows, another entity (a fork), another
    call or circle of the same entity (``cantrip``: its recipe was edited, or its crystal writes its calls in another way), other
    tools (a mode, a gate that was loaded later), or the query of a fold's summary, which is a window of its own between the two
    others. Exports also begin one where the crystal was asked again (`training.export.sent_messages`).
    """

    begun: Begun
    entity_id: str
    cantrip_id: str
    tools: tuple[ToolDefinition, ...]
    messages: list[Message] = field(default_factory=list)
    uttered: list[WindowUtterance] = field(default_factory=list)


class ReplayedContext:
    """Windows of any thread of a loom. Reads the records once on creation, and holds one thread's context at a time."""

    def __init__(self, loom: Loom, outline: Outline) -> None:
        self.loom = loom
        self.outline = outline
        self.rebuilt: set[str] = set()
        """Cantrips whose presentation is not in the loom and was created again."""
        self.differing: dict[str, None] = {}
        """The turns of the windows so far, in order, whose rebuilt query differs from the recorded one."""
        self._differs: dict[str, bool] = {}
        """Whether a thread has a turn in `differing`, by the last turn of the thread."""
        self._sound: set[str] = set()
        """Turns that were already read and are not damaged."""
        self._circles: dict[str, RecordedCircle] = {}
        self._recorded = RecordedCircles(loom)
        self._cuts: dict[tuple[str, str], list[int]] = {}
        self._casts: dict[str, dict[str, str | None]] = {}
        """Each entity's casts in order, each with the cast before it."""
        self.resuming = {cast_id for cast_id, start in outline.starts.items() if isinstance(start.resumes, str)}
        self.partials = {each.cast_id: each for each in loom.partials()}
        """The text that was streamed before a cast was stopped, by the cast."""
        self._withdrawn = withdrawn_casts(loom)
        self._spoke = {place.cast_id for place in outline.places.values()}
        for cast_id, start in outline.starts.items():
            casts = self._casts.setdefault(start.entity_id, {})
            casts[cast_id] = next(reversed(casts), None)
        for record in loom.records():
            cut = record.changes.get("compacted") if isinstance(record, ConfigRecord) else None
            if isinstance(cut, dict) and isinstance(record, ConfigRecord):
                after, most = cut.get("after"), cut.get("tokens")
                if isinstance(after, str) and isinstance(most, int):
                    self._cuts.setdefault((record.entity_id, after), []).append(most)

    def windows(self, leaf_id: str, then: Turn | None = None, *, summaries: bool = False) -> Iterator[Window]:
        """Yield the windows of the thread that ends in a turn, in order. Raises the errors of `check`.

        ``then`` is a turn after it that is not in the loom, for what a crystal saw in a cast that wrote no turn.
        ``summaries``: also the queries that made the summaries of folds, where their tokens are recorded.
        """
        path = self.outline.own_path(leaf_id)
        self.check(leaf_id)
        walk = _Walk(self, self._changes(path, then))
        for turn in (*self._turns(path), *(() if then is None else (then,))):
            yield from map(self._compared, walk.add(turn))
            if summaries and (query := turn.metadata.summary) is not msgspec.UNSET:
                yield self._summary_window(turn, query)
        yield from map(self._compared, walk.end())

    def differs(self, leaf_id: str) -> bool:
        """Whether a query of a thread was recorded otherwise than it is rebuilt. Raises the errors of `check`."""
        if leaf_id not in self._differs:
            for _ in self.windows(leaf_id):
                continue
            self._differs[leaf_id] = not self.differing.keys().isdisjoint(self.outline.own_path(leaf_id))
        return self._differs[leaf_id]

    def _compared(self, window: Window) -> Window:
        """Compare the turns of a window with the recorded digests of their queries, and return the window."""
        hashed, call = QueryDigest(), recorded_call(self.loom.cantrip(window.cantrip_id))
        for uttered in window.uttered:
            sent = uttered.turn.metadata.query
            if isinstance(sent, SentQuery) and sent.digest != hashed.digest(
                window.messages[: uttered.at], window.tools, call
            ):
                self.differing[uttered.first] = None
        return window

    def tools(self, turn: Turn) -> tuple[ToolDefinition, ...]:
        """The tools of a turn's query: its own, if they were recorded with it or with an earlier turn, else its cantrip's."""
        sent = turn.metadata.query
        tools = sent.tools if isinstance(sent, SentQuery) else None
        if isinstance(tools, str):
            other = self.loom.turn(tools).metadata.query if tools in self.loom else None
            tools = other.tools if isinstance(other, SentQuery) else None
        return tools if isinstance(tools, tuple) else self.circle(turn.cantrip_id).tools

    def _summary_window(self, turn: Turn, query: SummaryQuery) -> Window:
        record = self.loom.cantrip(turn.cantrip_id)
        prompt = record.call.get("system_prompt") if record is not None else None
        head = [Message("system", prompt, kind="call")] if isinstance(prompt, str) else []
        messages = [*head, Message("user", query.prompt), Message("assistant", query.answer)]
        uttered = [WindowUtterance(turn, len(messages) - 1)]
        return Window("summary", turn.entity_id, turn.cantrip_id, (), messages, uttered)

    def context_after(self, turn_id: str, cantrip_id: str, empty: Callable[[], Context]) -> Context:
        """The context after a turn, ready for the next query. ``empty`` creates the context of this cantrip."""
        path = self.outline.own_path(turn_id)
        self.check(turn_id)
        walk = _Walk(self, self._changes(path), lambda i: empty() if i == cantrip_id else self.context(i))
        for turn in self._turns(path):
            for _ in walk.add(turn):
                continue
        context = walk.context or empty()
        context.settle()
        return context

    def check(self, leaf_id: str) -> None:
        """Raise `LoomError` if a turn above is lost or damaged, or where its medium is in a package that is not
        installed."""
        path = self.outline.own_path(leaf_id)
        first = self.outline.places[path[0]]
        if first.role != "call" and first.parent_id is not None and self.outline.spawner(path[0]) is None:
            raise LoomError("an earlier turn is not in this loom (is the loom damaged?)")
        unsure = [i for i in path if i not in self._sound]
        for turn in self._bodies(unsure):
            if turn.reason == UNREADABLE:
                raise LoomError("a turn in it is damaged and cannot be read")
            self._sound.add(turn.id)
        for cantrip_id in {self.outline.places[i].cantrip_id for i in path}:
            self.circle(cantrip_id)

    def circle(self, cantrip_id: str) -> RecordedCircle:
        """The circle of a cantrip, as the loom describes it."""
        found = self._circles.get(cantrip_id)
        if found is None:
            found = self._circles[cantrip_id] = RecordedCircle(self.loom.cantrip(cantrip_id))
            if found.rebuilt:
                self.rebuilt.add(cantrip_id)
        return found

    def context(self, cantrip_id: str) -> Context:
        """An empty context of a cantrip."""
        circle = self.circle(cantrip_id)
        call = recorded_call(self.loom.cantrip(cantrip_id))
        return Context(call, circle, recorded=self._recorded)  # type: ignore[arg-type]

    def begun(self, entity_id: str, cast_id: str | None, after: str | None) -> list[CastPart]:
        """A cast, and before it the casts of the same entity that reached no turn: their intents were in its context
        too."""
        known = self._casts.get(entity_id, {})
        if cast_id is None or cast_id not in known:
            return [CastPart(cast_id, None)]
        resumed = self.outline.starts[cast_id].resumes
        if isinstance(resumed, str) and (first := self.outline.starts.get(resumed)) and first.entity_id != entity_id:
            # A fork started it again, with the context of the original.
            return [*self.begun(first.entity_id, resumed, after)[:-1], CastPart(cast_id, *self.loom.cast_of(cast_id))]
        silent: list[str] = []
        at = known[cast_id]
        while at is not None and at != after and at not in self._spoke:
            silent.append(at)
            at = known[at]
        if at != after and after is not None and after not in known:
            silent = []
        # An intent that no provider accepted was removed from the context.
        stood = [i for i in reversed(silent) if i not in self._withdrawn]
        silent_parts = [CastPart(i, *self.loom.cast_of(i), [], self.partials.get(i)) for i in stood]
        return [*silent_parts, CastPart(cast_id, *self.loom.cast_of(cast_id))]

    def cuts(self, entity_id: str, after: str | None) -> list[int]:
        """The numbers of tokens to which the context was cut before the query after a turn."""
        return self._cuts.get((entity_id, after or ""), [])

    def same_definition(self, one: str, other: str) -> bool:
        """Whether two cantrips have the same call and circle, and only present them otherwise (`Entity.use_crystal`)."""
        first, second = self.loom.cantrip(one), self.loom.cantrip(other)
        return first is not None and second is not None and (first.call, first.circle) == (second.call, second.circle)

    def _changes(self, path: list[str], then: Turn | None = None) -> int:
        """The number of times that a path changes to another entity or cantrip, the first one included."""
        places = [self.outline.places[i] for i in path]
        states = [(place.entity_id, place.cantrip_id) for place in places if place.role != "call"]
        states += [] if then is None else [(then.entity_id, then.cantrip_id)]
        return sum(1 for n, state in enumerate(states) if n == 0 or state != states[n - 1])

    def _turns(self, path: list[str]) -> Iterator[Turn]:
        """Yield the turns of a path, each utterance as one turn."""
        parts: list[Turn] = []
        for turn in self._bodies(path):
            if turn.continues is not None and parts and parts[0].id == turn.continues:
                parts.append(turn)
                continue
            if parts:
                yield joined(parts)
            parts = [turn] if turn.role == "crystal" else []
            if turn.role == "fold":
                yield turn
        if parts:
            yield joined(parts)

    def _bodies(self, path: list[str]) -> Iterable[Turn]:
        for start in range(0, len(path), _BATCH):
            yield from self.loom.bodies(path[start : start + _BATCH])


def differing_turns(loom: Loom) -> list[str]:
    """The ids of the turns whose recorded query is not the one that is rebuilt from the loom, in the order of the threads.

    Threads that are damaged, and turns of earlier versions, are not compared.
    """
    view = ReplayedContext(loom, Outline(loom))
    for leaf in view.outline.ends:
        with suppress(LoomError):
            for _ in view.windows(leaf):
                continue
    return list(view.differing)


class _Walk:
    """Follows a thread's context turn by turn."""

    def __init__(self, seen: ReplayedContext, changes: int, empty: Callable[[str], Context] | None = None) -> None:
        """``changes`` is how often the path changes to another entity or cantrip. ``empty`` creates the context of a cantrip
        before its first cast."""
        self._seen = seen
        self._empty = empty or seen.context
        self._changes = changes
        self._context: Context | None = None
        self._window: Window | None = None
        self._cast: str | None = None
        self._parts: list[CastPart] = []
        self._altered = False

    @property
    def context(self) -> Context | None:
        """The present context; None before the first turn."""
        return self._context

    def add(self, turn: Turn) -> Iterator[Window]:
        """Add one turn. Yields a window that ends before it."""
        before = self._window
        if before is None or (turn.entity_id, turn.cantrip_id) != (before.entity_id, before.cantrip_id):
            yield from self._enter(turn)
        context, window = self._context, self._window
        assert context is not None
        assert window is not None
        if turn.cast_id != self._cast or not self._parts:
            self._begin(context, turn)
        if context.knowledge.unsettled and window.uttered:
            yield from self.end()
            window = self._window = _after(window, "knowledge")
        context.settle()
        if self._changes:
            # Another entity or cantrip will load all of this later.
            self._parts[-1].turns.append(turn)
        if turn.role == "fold":
            yield from self.end()
            context.refold(turn.utterance.content)
            context.passed(turn.id)
            self._window = _after(window, "fold")
            return
        tools = self._seen.tools(turn)
        if tools != window.tools:
            yield from self.end()
            window = self._window = _after(window, "tools") if window.uttered else window
            window.tools = tools
        for most in self._seen.cuts(turn.entity_id, turn.parent_id):
            yield from self.end()
            context.compact(most)
            window = self._window = _after(window, "cut")
            self._altered = True
        sent = turn.metadata.query
        if isinstance(sent, SentQuery) and sent.refused and context.holds(sent.refused):
            yield from self.end()
            context.leave_out(sent.refused)
            window = self._window = _after(window, "cut")
        at = len(context.messages)
        if context.expires:
            # This utterance answers a query with a full ephemeral result; later queries do not have that result.
            window.uttered.append(WindowUtterance(turn, at))
            messages = [*context.messages, context.turns.render(turn)[0]]
            yield Window(window.begun, window.entity_id, window.cantrip_id, window.tools, messages, window.uttered)
            context.add(turn)
            self._window = _after(window, "cut")
            self._altered = True
            return
        context.add(turn)
        window.uttered.append(WindowUtterance(turn, at))

    def end(self) -> Iterator[Window]:
        """Yield the present window, if anything was said in it."""
        window, context = self._window, self._context
        if window is not None and context is not None and window.uttered:
            last = window.uttered[-1]
            yield Window(
                window.begun,
                window.entity_id,
                window.cantrip_id,
                window.tools,
                context.messages[: last.at + 1],
                window.uttered,
            )

    def _enter(self, turn: Turn) -> Iterator[Window]:
        """Continue with another entity or cantrip. The first one starts from nothing; a fork, and an entity with an edited
        recipe, load the earlier messages and folds."""
        self._changes -= 1
        before = self._window
        # An entity that resumes a cast loads the context unchanged, even if it was cut or has casts without a turn.
        resumes = turn.cast_id in self._seen.resuming
        same_entity = before is not None and before.entity_id == turn.entity_id
        if before is not None and before.cantrip_id == turn.cantrip_id and (resumes or not self._altered):
            # It sees the same context as the entity before, so the window continues.
            before.entity_id = turn.entity_id
        else:
            yield from self.end()
            empty = self._empty(turn.cantrip_id)
            begun: Begun = "start" if before is None else "cantrip" if same_entity else "fork"
            if before is not None and same_entity and self._seen.same_definition(before.cantrip_id, turn.cantrip_id):
                assert self._context is not None
                self._context.present_as(empty)
            else:
                empty.load(self._parts)
                self._context, self._altered = empty, False
            self._window = Window(begun, turn.entity_id, turn.cantrip_id, self._seen.tools(turn))
        if not same_entity:
            self._cast = None
        if not self._changes:
            self._parts = self._parts[-1:]

    def _begin(self, context: Context, turn: Turn) -> None:
        after, self._cast = self._cast, turn.cast_id
        above = self._parts[-1].id if self._parts else None
        parts = self._seen.begun(turn.entity_id, turn.cast_id, after)
        added = parts[-1:] if parts[-1].goes_on(above) else parts
        partial = self._seen.partials.get(after) if after is not None else None
        if partial is not None and partial.entity_id == turn.entity_id and not added[0].goes_on(above):
            context.interrupt(partial)
            if self._parts:
                self._parts[-1] = replace(self._parts[-1], partial=partial)
        end = self._seen.loom.cast_end(after) if after is not None else None
        if end is not None and end.withdrawn is True and end.entity_id == turn.entity_id:
            # It only folded.
            context.withdraw()
            above = None
            if self._parts:
                self._parts[-1] = replace(self._parts[-1], withdrawn=True)
        self._altered |= any(part.partial is None for part in parts[:-1])
        for part in added:
            blocks = [block_of(record) for record in part.context]
            if part.goes_on(above):
                context.forget_partial()
                context.continue_cast(blocks)
            else:
                context.begin(part.intent, blocks)
            if part.partial is not None:
                context.interrupt(part.partial)
            above = part.id
        if self._changes:
            # A fork loads the casts before it that have a turn or a partial utterance.
            self._parts += [part for part in parts if part.partial is not None or part is parts[-1]]
        else:
            self._parts = parts[-1:]


def _after(window: Window, begun: Begun) -> Window:
    return Window(begun, window.entity_id, window.cantrip_id, window.tools)
