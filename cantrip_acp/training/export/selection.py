"""Selects the threads of a loom for an export, and describes each (state, reward, group, times)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import msgspec

from cantrip_acp.core.exports import DIFFERS, Report, ThreadSelection
from cantrip_acp.core.history.replayed_context import ReplayedContext, Window, WindowUtterance
from cantrip_acp.loom import rewards
from cantrip_acp.loom.loom import Loom
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.loom.query.thread import INTERRUPTED, Endings, State
from cantrip_acp.training.export.sent_messages import windows_as_sent, windows_asked_again
from cantrip_acp.types.errors import LoomError
from cantrip_acp.types.messages import Message
from cantrip_acp.types.records import Turn, UtteranceRecord


@dataclass(frozen=True, slots=True)
class Episode:
    """One thread. ``reason`` is why it ended, ``error`` the error of a query. ``parent_turn`` is the turn that spawned
    a child, ``forked_from`` the turn where its last entity was forked. ``group`` is its group of forks, ``relative``
    its relative reward, ``reference`` the expected answer of its last cast (JSON data), ``sampled`` whether a model wrote
    its last utterance (`Source.sampled`), ``path`` its turns."""

    seen: ReplayedContext
    leaf: str
    state: State
    reason: str | None
    error: str | None
    reward: float | None
    relative: float | None
    entity_id: str
    cantrip_id: str
    cast_id: str | None
    intent: str
    reference: Any
    sampled: bool
    parent_turn: str | None
    forked_from: str | None
    group: str | None
    trace_id: str | None
    started: str
    ended: str
    path: Sequence[str]

    def windows(self, *, summaries: bool = False) -> Iterator[Window]:
        """Yield what the crystal of this episode was sent, window by window (`ReplayedContext.windows`, `sent_messages`), without
        rejected answers."""
        for window in self.seen.windows(self.leaf, summaries=summaries):
            yield from windows_as_sent(window, self.seen.loom)

    def queries(self) -> Iterator[Window]:
        """Yield exactly the messages that the crystal was sent, also to make summaries and after a rejected answer."""
        for window in self.seen.windows(self.leaf, summaries=True):
            for part in windows_asked_again(window):
                yield from windows_as_sent(part, self.seen.loom)

    def steps(self) -> Iterator[tuple[Window, Message, WindowUtterance | None]]:
        """Yield each message of the thread once, with its window and, for an utterance, its turn.

        What later windows repeat is left out. So are results: they belong to the utterance with their call. Calls are in
        ``tool_calls`` also where the crystal wrote them as text, and have the names, ids and arguments of the loom.
        """
        written: Counter[bytes] = Counter()
        for window in self.seen.windows(self.leaf):
            said = {uttered.at: uttered for uttered in window.uttered}
            before = written.copy()
            for at, message in enumerate(window.messages):
                if at in said:
                    yield window, message, said[at]
                    continue
                key = msgspec.json.encode(message)
                if before[key] > 0:
                    before[key] -= 1
                elif message.role in ("system", "user"):
                    written[key] += 1
                    yield window, message, None

    def results(self, turn: Turn) -> list[Message]:
        """The results that the crystal read after an utterance: a message for each call. A message of the user that asks it
        to go on is a step."""
        return [each for each in self.seen.context(turn.cantrip_id).turns.render(turn)[1:] if each.role == "tool"]

    @property
    def complete(self) -> bool:
        """Whether the thread ended by itself (LOOM-7)."""
        return self.state == "terminated"

    @property
    def reference_text(self) -> str | None:
        """The expected answer as text: JSON if it is not text itself."""
        return as_text(self.reference)

    def about(self) -> dict[str, Any]:
        """The fields of a row about its thread beside the messages: a flat mapping of texts, numbers, booleans and nulls.

        ``as_sent`` is false if a query of the thread was recorded otherwise than it is rebuilt (`ThreadSelection`).
        """
        return {
            "thread": self.leaf,
            "entity": self.entity_id,
            "cantrip": self.cantrip_id,
            "cast": self.cast_id,
            "state": self.state,
            "reason": self.reason,
            "reward": self.reward,
            "relative_reward": self.relative,
            "reference": self.reference_text,
            "sampled": self.sampled,
            "parent_turn": self.parent_turn,
            "forked_from": self.forked_from,
            "group": self.group,
            "trace_id": self.trace_id,
            "as_sent": self.seen.differing.keys().isdisjoint(self.path),
        }


def as_text(reference: Any) -> str | None:
    """An expected answer as text: JSON if it is not text itself."""
    return reference if reference is None or isinstance(reference, str) else msgspec.json.encode(reference).decode()


class Source:
    """The selected threads of a loom, one by one. ``report`` is filled in as they are exported."""

    def __init__(
        self, loom: Loom, wanted: ThreadSelection | None = None, progress: Callable[[int, int], None] | None = None
    ) -> None:
        """``progress(done, of)`` is called for each thread."""
        self.loom = loom
        self.wanted = wanted or ThreadSelection()
        self.outline = Outline(loom)
        self._endings = Endings(loom, self.outline.starts)
        self.seen = ReplayedContext(loom, self.outline)
        self.report = Report()
        self.masked = False
        """Whether text that looks like a secret is masked in the rows (`rows.write`)."""
        self._progress = progress
        self._counted: set[str] = set()
        self._taken: set[str] = set()

    @cached_property
    def groups(self) -> list[rewards.Group]:
        """The groups of threads that had the same prompt."""
        return rewards.groups(self.loom, alike=True, outline=self.outline)

    @cached_property
    def _group_of(self) -> dict[str, str]:
        # A later group replaces an earlier one: the threads that part last have most in common.
        return {leaf: group.id for group in self.groups for leaf in group.leaves}

    @cached_property
    def _with_failed(self) -> dict[tuple[str, str | None], str]:
        """The groups of casts on one intent in which some ended without a turn, by the call and the intent."""
        failed: dict[tuple[str, str | None], list[str]] = {}
        for partial in self.seen.partials.values():
            place, start = self.outline.places.get(partial.parent_id), self.outline.starts.get(partial.cast_id)
            rejected = any(each.rejected is not None for each in partial.voided)
            if place is None or place.role != "call" or start is None or not rejected:
                continue
            branches = self.outline.next.get(partial.parent_id, ())
            # An entity that tried again read the first attempt too, so its prompts differ.
            if all(self.outline.places[each].entity_id != partial.entity_id for each in branches):
                failed.setdefault((partial.parent_id, start.intent), []).append(start.id)
        found = {}
        for (call, intent), casts in failed.items():
            ids = [each for each in self.outline.next.get(call, ()) if self.outline.intent(each) == intent] + casts
            if len(ids) > 1:
                found[call, intent] = ids[0]
        return found

    def leaves(self) -> Sequence[str]:
        """The ids of the last turns of all threads, or of those selected by id. Raises `LoomError` for an unknown
        one."""
        if not self.wanted.threads:
            return self.outline.ends
        for turn_id in self.wanted.threads:
            place = self.outline.places.get(turn_id)
            if place is None or place.role == "call":
                raise LoomError(f"no thread of this loom ends with turn {turn_id!r}")
        return self.wanted.threads

    def episodes(self, *, marked: bool) -> Iterator[Episode]:
        """Yield the selected threads, in the order of their last turns. ``marked``: the format marks truncated
        threads."""
        leaves = self.leaves()
        for number, leaf in enumerate(leaves, 1):
            if self._progress is not None:
                self._progress(number, len(leaves))
            try:
                episode = self.episode(leaf)
                why = self.refused(episode, marked=marked) or self.unfit(leaf)
            except LoomError as problem:
                why = str(problem)
            if why is not None:
                self.leave_out(leaf, why)
                continue
            yield episode

    def fresh_windows(
        self, *, marked: bool, summaries: bool = False, unfit: Callable[[Episode], str | None] | None = None
    ) -> Iterator[tuple[Episode, int, Window, list[WindowUtterance]]]:
        """Yield each window of the selected threads with new utterances, its number in its thread, and these utterances
        (`fresh`). ``unfit`` says why a thread is left out, or None."""
        for episode in self.episodes(marked=marked):
            if unfit is not None and (why := unfit(episode)) is not None:
                self.leave_out(episode.leaf, why)
                continue
            for number, window, fresh in self.fresh(episode.windows(summaries=summaries)):
                yield episode, number, window, fresh
            self.count_exported(episode.leaf)

    def fresh(self, windows: Iterable[Window]) -> Iterator[tuple[int, Window, list[WindowUtterance]]]:
        """Yield the number of each window that has utterances which no earlier row has, and these utterances. So a prefix
        that forks share is trained once."""
        for number, window in enumerate(windows):
            fresh = [uttered for uttered in window.uttered if uttered.first not in self._taken]
            self._taken.update(uttered.first for uttered in window.uttered)
            if fresh:
                yield number, window, fresh

    def take(self, turn_id: str, of: str = "") -> bool:
        """Whether to export an utterance, named by its first turn, now: no earlier row has it. ``of="rejected"`` means the
        answers that were rejected before it."""
        new = of + turn_id not in self._taken
        self._taken.add(of + turn_id)
        return new

    def trees(self) -> Iterator[tuple[Episode, bool]]:
        """Yield the selected threads for a format with trees, truncated ones too, and whether a thread is only in the row of
        another one: the thread of a child, which its parent read. A child's thread that was selected by its id, and a fork of
        a child, have rows of their own."""
        children: list[str] = []
        for episode in self.episodes(marked=True):
            embedded = (
                episode.parent_turn is not None
                and episode.leaf not in self.wanted.threads
                and self.outline.tips[self.outline.own_path(episode.leaf)[0]] == episode.leaf
            )
            if embedded:
                children.append(episode.leaf)
            yield episode, embedded
        for leaf in children:
            self.leave_out(leaf, "a child's whose parent's thread is left out")

    def children(self, episode: Episode) -> Iterator[tuple[str, Episode]]:
        """Yield the turns of a thread that spawned children, each with a child's thread. Count these threads as exported."""
        for turn_id in self.outline.own_path(episode.leaf) if self.wanted.children else ():
            for begun in self.outline.spawned.get(turn_id, ()):
                leaf = self.outline.tips[begun]
                if self.outline.places[leaf].role == "call":
                    continue
                if (why := self.unfit(leaf)) is not None:
                    self.leave_out(leaf, why)
                    continue
                yield turn_id, self.episode(leaf)
                self.count_exported(leaf)

    def leave_out(self, leaf: str, why: str) -> None:
        """Count a thread as left out, only once."""
        if leaf not in self._counted:
            self._counted.add(leaf)
            self.report.left_out[why] += 1

    def count_exported(self, leaf: str) -> None:
        """Count a thread as exported, only once."""
        if leaf not in self._counted:
            self._counted.add(leaf)
            self.report.threads += 1

    def note(self, what: str) -> None:
        """Count something that the format could not represent."""
        self.report.notes[what] += 1

    def refused(self, episode: Episode, *, marked: bool) -> str | None:
        """Why a thread is not selected; None if it is."""
        wanted = self.wanted
        take_truncated = marked if wanted.truncated is None else wanted.truncated
        named = {episode.state, episode.reason}
        if wanted.outcomes and not named & set(wanted.outcomes):
            return "another outcome"
        if not episode.complete and not take_truncated and not (wanted.outcomes and named & set(wanted.outcomes)):
            return "not ended" if episode.state == "active" or episode.reason == INTERRUPTED else "truncated"
        if episode.parent_turn is not None and not wanted.children:
            return "a child's"
        if wanted.min_reward is not None and (episode.reward is None or episode.reward < wanted.min_reward):
            return "no reward" if episode.reward is None else "reward too low"
        if wanted.max_reward is not None and (episode.reward is None or episode.reward > wanted.max_reward):
            return "no reward" if episode.reward is None else "reward too high"
        if wanted.intent is not None and not self._intended(episode, wanted.intent):
            return "another intent"
        return None

    def unfit(self, leaf: str) -> str | None:
        """Why a thread cannot be written as it was: it is damaged, or a query was recorded otherwise than it is rebuilt."""
        try:
            self.seen.check(leaf)
            differs = self.seen.differs(leaf)
        except LoomError as problem:
            return str(problem)
        return DIFFERS if differs and not self.wanted.differing else None

    def _intended(self, episode: Episode, text: str) -> bool:
        casts = {self.outline.places[i].cast_id for i in self.outline.own_path(episode.leaf)}
        starts = (self.outline.starts.get(c) for c in casts if c is not None)
        return any(text.casefold() in (s.intent or "").casefold() for s in starts if s is not None)

    def reward(self, leaf: str) -> float | None:
        """The reward of a thread. A child without one has that of the thread that goes on from the turn that spawned it.

        If several do, it is the first, which also trains that turn.
        """
        own = rewards.of_thread(self.loom, leaf, outline=self.outline)
        if own is not None:
            return own
        spawner = self.outline.spawner(self.outline.own_path(leaf)[0])
        return self.reward(self.outline.tips[spawner]) if spawner in self.outline.tips else None

    def asked(self, cast_id: str | None) -> tuple[str, Any]:
        """The intent of a cast, and its expected answer (JSON data)."""
        start = self.outline.starts.get(cast_id) if cast_id is not None else None
        reference = None if start is None or start.reference is msgspec.UNSET else start.reference
        return (start.intent if start is not None else None) or "", reference

    def begun(self, turn: Turn) -> str | None:
        """The cast of a turn; if its entity only resumed one of its earlier casts, that one."""
        casts = [turn.cast_id]
        while casts[-1] is not None and (start := self.outline.starts.get(casts[-1])) is not None:
            before = self.outline.starts.get(start.resumes) if isinstance(start.resumes, str) else None
            if before is None or before.entity_id != start.entity_id or before.id in casts:
                break
            casts.append(before.id)
        return casts[-1]

    def sampled(self, turn: Turn) -> bool:
        """Whether a model sampled an utterance. If not, a script or a person wrote it: it is a demonstration."""
        if turn.metadata.sampled is not msgspec.UNSET:
            return True
        start = self.outline.starts.get(turn.cast_id) if turn.cast_id is not None else None
        return start is None or start.attributes.get("sampled") is not False

    def episode(self, leaf: str, *, failed: UtteranceRecord | None = None) -> Episode:
        """The description of the thread that ends in a turn; with ``failed`` that of a cast which wrote no turn after it."""
        turn = self.loom.turn(leaf)
        if failed is not None:
            turn = msgspec.structs.replace(turn, cast_id=failed.cast_id, entity_id=failed.entity_id)
        path = self.outline.own_path(leaf)
        start = self.outline.starts.get(turn.cast_id) if turn.cast_id is not None else None
        ending = self._endings.thread(turn)
        fork = self.loom.fork_of(turn.entity_id)
        answered = [i for i in path if self.outline.places[i].role != "call"]
        first = self.loom.turn(answered[0]) if answered else turn
        group = self._group_of.get(leaf)
        if group is None or failed is not None:
            # The others of its group may have failed before their first turn.
            if fork is not None and isinstance(fork.group, str):
                group = fork.group
            elif fork is None:
                begun = self.outline.intent(answered[0]) if answered else start.intent if start is not None else None
                group = self._with_failed.get((path[0], begun))
        return Episode(
            self.seen,
            leaf,
            ending.state,
            ending.reason,
            ending.error if ending.state == "truncated" else None,
            self.reward(leaf),
            rewards.relative_of(self.loom, leaf),
            turn.entity_id,
            turn.cantrip_id,
            turn.cast_id,
            *self.asked(turn.cast_id),
            self.sampled(turn),
            self.outline.spawner(path[0]),
            fork.from_turn if fork is not None else None,
            group,
            turn.metadata.trace_id,
            first.metadata.timestamp,
            turn.metadata.timestamp,
            path,
        )
