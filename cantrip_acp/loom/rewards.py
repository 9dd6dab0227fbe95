"""Rewards of turns and threads (§6.4, LOOM-3): who gave them, which one counts, and how threads of a group compare.

Every reward is a `RewardRecord` of its turn, and all of them are kept. There are five kinds:

- ``explicit``: given by a person or a program (`Loom.annotate_reward`, ``cantrip loom reward``).
- ``implicit``: computed from the circle's answers (`implicit`); written only on request.
- ``shaped``: given by the circle's scoring function (`cantrip_acp.core.scoring`).
- ``verifier``: given by another cantrip that read the thread (`cantrip_acp.training.judge`).
- ``relative``: compares the thread with the others of its group (`ranked`). It never replaces the other kinds.

Which reward counts:

- for a turn: the last one that is not relative.
- for a thread: its *grade*. This is the last explicit or verifier reward of its leaf, or the scoring function's reward
  at
  the cast's end. Without a grade, it is the sum of its turns' rewards; None if there are none.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.types.errors import LoomError, TurnNotFound
from cantrip_acp.types.records import RewardKind, RewardRecord, Turn

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.thread import Thread

__all__ = [
    "Group",
    "Standing",
    "assignments",
    "grade",
    "groups",
    "implicit",
    "implicit_of",
    "of_thread",
    "of_turn",
    "ranked",
    "record_implicit",
    "record_relative",
    "relative",
    "relative_of",
]

Method = Literal["grpo", "centered", "rank"]
METHODS: tuple[str, ...] = get_args(Method)
EPSILON = 1e-4
"""Added to the deviation, as trainers do, so that tiny differences between rewards do not become large ones."""


def kind(record: RewardRecord) -> RewardKind:
    """The kind of a reward. Records of older looms have none and are explicit."""
    return "explicit" if record.kind is msgspec.UNSET else record.kind


def assignments(loom: Loom, turn_id: str | None = None) -> list[RewardRecord]:
    """Every reward of one turn, or of all turns, in order: who (``by``), when, kind, note (LOOM-3).

    If a record's ``reward`` is None, its note says why there is none.
    """
    return loom.assigned(turn_id)


def of_turn(loom: Loom, turn_id: str) -> float | None:
    """The reward of a turn that counts; None if it has none. Reads no body."""
    return loom.reward(turn_id)


def of_thread(loom: Loom, leaf_id: str, *, outline: Outline | None = None) -> float | None:
    """The reward of the thread that ends in a turn: its grade, else the sum of its turns' rewards, else None.

    A child's thread begins where it was spawned. Reads few bodies or none. Raises `TurnNotFound`.
    """
    if leaf_id not in loom:
        raise TurnNotFound(f"no turn {leaf_id!r} in this loom")
    graded = grade(loom, leaf_id)
    if graded is not None:
        return graded
    path = loom.path(leaf_id) if outline is None else outline.own_path(leaf_id)
    if outline is None and any(loom.places[i].role == "call" for i in path[1:]):
        path = Outline(loom).own_path(leaf_id)
    found = [r for i in path if (r := loom.reward(i)) is not None]
    return math.fsum(found) if found else None


def grade(loom: Loom, leaf_id: str) -> float | None:
    """The last reward of a turn that is for the whole thread up to it; None if there is none."""
    given = loom.assigned(leaf_id)
    for record in reversed(given):
        if record.reward is not None and (kind(record) in ("explicit", "verifier") or record.grade is True):
            return record.reward
    # An imported turn may have its reward in its own record.
    return loom.turn(leaf_id).reward if not given and loom.reward(leaf_id) is not None else None


def relative_of(loom: Loom, leaf_id: str, group: str | None = None) -> float | None:
    """The last relative reward of a thread, in one group or in any; None if there is none."""
    for record in reversed(loom.assigned(leaf_id)):
        if kind(record) == "relative" and (group is None or record.group == group):
            return record.reward
    return None


# Implicit


def implicit(turn: Turn) -> float | None:
    """The share of a turn's gate calls and programs that succeeded, 0 to 1; None if it ran nothing.

    A gate call failed if its record is an error, a program if it has an error or an exit status other than 0.
    """
    seen = turn.observation
    bad = [r.is_error for r in seen.results] + [o.failed for o in seen.programs]
    return 1 - sum(bad) / len(bad) if bad else None


def implicit_of(thread: Thread | Sequence[Turn]) -> float:
    """A score of a thread from its circle's answers, 0 to 1: (2 × terminated + mean) / 3.

    ``terminated`` is 1 if the thread ended by itself, and 0 if it was cut off or is active (LOOM-7). ``mean`` is
    the mean of its turns' `implicit` rewards, 1 if it ran nothing. So a finished thread never scores below an
    unfinished one.
    """
    shares = [share for turn in thread if turn.role == "crystal" and (share := implicit(turn)) is not None]
    mean = math.fsum(shares) / len(shares) if shares else 1.0
    return (2 * bool(thread[-1].terminated) + mean) / 3


def record_implicit(loom: Loom, turn_ids: Iterable[str], *, by: str = "implicit") -> list[tuple[str, float]]:
    """Write the implicit reward of each turn that ran something and has no reward yet; returns what was written.

    It never hides a reward that somebody gave, and a second call adds nothing.
    """
    written: list[tuple[str, float]] = []
    for turn_id in turn_ids:
        if loom.reward(turn_id) is not None:
            continue
        turn = loom.turn(turn_id)
        share = implicit(turn) if turn.role == "crystal" else None
        if share is not None:
            loom.annotate_reward(turn_id, share, by=by, kind="implicit", note="share of calls that succeeded")
            written.append((turn_id, share))
    return written


# Comparing


@dataclass(frozen=True, slots=True)
class Group:
    """Threads that part at one turn. ``id`` names the group in relative rewards.

    ``leaves`` has one thread for each branch (its last turn), in the order of writing. Where a branch splits again, its
    first branch represents it. A fork with another intent is no part of the thread that it continues (`Outline.ends`).
    ``intent`` is the common intent; None where the intents differ.
    """

    id: str
    turn_id: str
    leaves: tuple[str, ...]
    intent: str | None = None


def groups(
    loom: Loom, turn_id: str | None = None, *, alike: bool = False, outline: Outline | None = None
) -> list[Group]:
    """The groups of at least two threads that separate at one turn, or at any turn.

    Below a ``call`` are casts of one cantrip. They can only be compared if their intents are equal, so a group there
    has one intent. Elsewhere a group is everything that parts there. With ``alike`` its members also have the same next
    intent and the same batch of forks (`ForkRecord.group`): trainers need the same prompt for each. Children are no
    branches. Raises `TurnNotFound`.
    """
    outline = outline if outline is not None else Outline(loom)
    if turn_id is not None and turn_id not in outline.places:
        raise TurnNotFound(f"no turn {turn_id!r} in this loom")
    found = []
    for at in outline.parts() if turn_id is None else [turn_id]:
        split: dict[tuple[str | None, str | None], list[str]] = {}
        at_call = outline.places[at].role == "call"
        for branch in outline.next.get(at, ()):
            intent = outline.intent(branch)
            split.setdefault((intent if alike or at_call else "", _batch(loom, outline, branch, alike)), []).append(
                branch
            )
        for (_, batch), branches in split.items():
            if len(branches) < 2:
                continue
            intents = {outline.intent(b) for b in branches}
            shared = intents.pop() if len(intents) == 1 else None
            found.append(Group(batch or branches[0], at, tuple(outline.tips[b] for b in branches), shared))
    return found


def _batch(loom: Loom, outline: Outline, branch: str, alike: bool) -> str | None:
    fork = loom.fork_of(outline.places[branch].entity_id) if alike else None
    named = None if fork is None else fork.group
    return named if isinstance(named, str) else None


def relative(rewards: Sequence[float], method: Method = "grpo") -> list[float]:
    """The rewards of a group, each relative to the others.

    ``grpo``: (r - mean) / (s + 0.0001), s the sample's standard deviation: the advantage of Group Relative Policy
    Optimization. ``centered``: r - mean. ``rank``: from 1 for the best to -1 for the worst, evenly spaced; equal
    rewards get the mean of their places. If all are equal, or there is only one, each is 0.
    """
    count = len(rewards)
    if count < 2 or min(rewards) == max(rewards):
        return [0.0] * count
    if method == "rank":
        ordered = sorted(rewards)
        # The sum of the numbers of rewards below it, and of rewards below or equal to it, gives the mean of its places.
        places = {r: bisect_left(ordered, r) + bisect_right(ordered, r) - 1 for r in set(rewards)}
        return [places[r] / (count - 1) - 1 for r in rewards]
    # Scale very large rewards, so that the computation does not overflow.
    scale = max(1.0, max(map(abs, rewards)) / 1e100)
    scaled = [r / scale for r in rewards]
    mean = math.fsum(scaled) / count
    if method == "centered":
        return [_finite((r - mean) * scale) for r in scaled]
    deviation = math.sqrt(math.fsum((r - mean) ** 2 for r in scaled) / (count - 1))
    return [(r - mean) / (deviation + EPSILON / scale) for r in scaled]


def _finite(value: float) -> float:
    most = 1.7976931348623157e308
    return max(-most, min(most, value))


@dataclass(frozen=True, slots=True)
class Standing:
    """A thread's result in its group. ``reward`` is the value that was compared; None if it has none and was not
    compared. ``rank`` counts from 1 for the best, and equal rewards share a rank."""

    leaf: str
    reward: float | None
    relative: float | None
    rank: int | None


def ranked(
    loom: Loom,
    group: Group,
    *,
    by: Literal["auto", "reward", "implicit"] = "auto",
    method: Method = "grpo",
    outline: Outline | None = None,
) -> tuple[Literal["reward", "implicit"], list[Standing]]:
    """A group's threads with relative rewards, in the group's order, and the basis of the comparison.

    ``reward`` compares the threads that have a reward (`of_thread`). ``implicit`` compares all by `implicit_of`.
    ``auto`` means ``reward`` if any thread has one, else ``implicit``.
    """
    scores: list[float | None] = []
    if by != "implicit":
        outline = outline if outline is not None else Outline(loom)
        scores = [of_thread(loom, leaf, outline=outline) for leaf in group.leaves]
    basis: Literal["reward", "implicit"] = "reward"
    if by == "implicit" or (by == "auto" and all(s is None for s in scores)):
        basis = "implicit"
        scores = [implicit_of(loom.thread(leaf)) for leaf in group.leaves]
    known = [s for s in scores if s is not None]
    ordered = sorted(known)
    values = iter(relative(known, method))
    return basis, [
        Standing(leaf, None, None, None)
        if score is None
        else Standing(leaf, score, next(values), 1 + len(known) - bisect_right(ordered, score))
        for leaf, score in zip(group.leaves, scores, strict=True)
    ]


def record_relative(
    loom: Loom, group: Group, standings: Sequence[Standing], *, by: str = "rank", note: str | None = None
) -> int:
    """Write each compared thread's relative reward to its leaf; returns how many. Older ones stay, and the last one
    counts.

    Raises `LoomError` if fewer than two threads were compared.
    """
    compared = [s for s in standings if s.relative is not None]
    if len(compared) < 2:
        raise LoomError(
            f"{len(compared)} of the {len(standings)} threads that separate at {group.turn_id} have a reward; ranking needs two. "
            "Give them one (cantrip loom reward), or compare by implicit rewards"
        )
    for standing in compared:
        if standing.relative is not None:
            loom.annotate_reward(standing.leaf, standing.relative, by=by, kind="relative", group=group.id, note=note)
    return len(compared)
