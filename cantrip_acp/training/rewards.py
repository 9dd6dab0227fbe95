"""Rewards of turns and threads (§6.4, LOOM-3): who gave what, what counts, and how threads of a group compare.

Every reward is a `RewardRecord` of its turn, and each is kept. Five kinds:

- ``explicit``: somebody's word (`Loom.annotate_reward`, ``cantrip loom reward``).
- ``implicit``: computed from what the circle answered (`implicit`), written only where somebody asks for it.
- ``shaped``: by the scoring function of the circle (`cantrip_acp.core.scoring`).
- ``verifier``: by another cantrip that read the thread (`cantrip_acp.training.judge`).
- ``relative``: how the thread did among its group (`ranked`). It never replaces the others; it stands beside them.

What counts:

- of a turn: the last one that is not relative.
- of a thread: its *grade*, which is the last explicit or verifier's reward of its leaf, or what a scoring function gave
  it at the cast's end; where it has no grade, the sum of its turns' rewards; None where it has none at all.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import msgspec

from cantrip_acp.core.errors import LoomError, TurnNotFound
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.loom.records.turn import RewardKind, RewardRecord, Turn

if TYPE_CHECKING:
    from cantrip_acp.loom.loom import Loom
    from cantrip_acp.loom.query.thread import Thread

Method = Literal["grpo", "centered", "rank"]
METHODS: tuple[str, ...] = get_args(Method)
EPSILON = 1e-4
"""Added to the deviation, as trainers do, so that nearly equal rewards are not blown up."""


def kind(record: RewardRecord) -> RewardKind:
    """Where a reward comes from; records of older looms say nothing and are explicit."""
    return "explicit" if record.kind is msgspec.UNSET else record.kind


def assignments(loom: Loom, turn_id: str | None = None) -> list[RewardRecord]:
    """Every reward that was ever given to a turn, or to any, in order: who (``by``), when, kind, note (LOOM-3).

    A record whose ``reward`` is None says in its note why whoever was to give one could not.
    """
    return loom.assigned(turn_id)


def of_turn(loom: Loom, turn_id: str) -> float | None:
    """The reward of a turn that counts; None where it has none. No body is read."""
    return loom.reward(turn_id)


def of_thread(loom: Loom, leaf_id: str, *, outline: Outline | None = None) -> float | None:
    """The reward of the thread that ends in a turn: its grade, else the sum of its turns' rewards, else None.

    A child's thread begins where it was spawned. No body is read. Raises `TurnNotFound`.
    """
    if leaf_id not in loom:
        raise TurnNotFound(f"no turn {leaf_id!r} in this loom")
    graded = grade(loom, leaf_id)
    if graded is not None:
        return graded
    path = loom.path(leaf_id) if outline is None else outline.own(leaf_id)
    if outline is None and any(loom.places[i].role == "call" for i in path[1:]):
        path = Outline(loom).own(leaf_id)
    found = [r for i in path if (r := loom.reward(i)) is not None]
    return math.fsum(found) if found else None


def grade(loom: Loom, leaf_id: str) -> float | None:
    """The last reward of a turn that is meant for the whole thread up to it; None where it has none."""
    given = loom.assigned(leaf_id)
    for record in reversed(given):
        if record.reward is not None and (kind(record) in ("explicit", "verifier") or record.grade is True):
            return record.reward
    # A turn may have come with its reward, as imported ones do.
    return loom.turn(leaf_id).reward if not given and loom.reward(leaf_id) is not None else None


def relative_of(loom: Loom, leaf_id: str, group: str | None = None) -> float | None:
    """The last relative reward of a thread, in one group or in any; None where it was never ranked."""
    for record in reversed(loom.assigned(leaf_id)):
        if kind(record) == "relative" and (group is None or record.group == group):
            return record.reward
    return None


# Implicit


def implicit(turn: Turn) -> float | None:
    """Did it work? The share of what a turn ran that succeeded, 0 to 1; None where it ran nothing.

    What it ran: each gate call (failed where its record is an error) and each program of the medium (failed where it left
    an error, or an exit status that is not 0).
    """
    seen = turn.observation
    bad = [r.is_error for r in seen.results] + [o.failed for o in seen.programs]
    return 1 - sum(bad) / len(bad) if bad else None


def implicit_of(thread: Thread | Sequence[Turn]) -> float:
    """How a thread went by what its circle answered, 0 to 1: (2 × terminated + mean) / 3.

    ``terminated`` is 1 where the thread ended by itself and 0 where it was cut off or goes on (LOOM-7); ``mean`` is that of
    its turns' `implicit` rewards, 1 where it ran nothing. So a thread that finished is always above one that did not.
    """
    shares = [share for turn in thread if turn.role == "crystal" and (share := implicit(turn)) is not None]
    mean = math.fsum(shares) / len(shares) if shares else 1.0
    return (2 * bool(thread[-1].terminated) + mean) / 3


def record_implicit(loom: Loom, turn_ids: Iterable[str], *, by: str = "implicit") -> list[tuple[str, float]]:
    """Write the implicit reward of each of these turns that ran something and has no reward yet; what was written.

    What somebody gave is never covered by it, and doing it twice adds nothing.
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

    ``leaves`` are one a branch, in order of writing: where a branch has branches of its own, the leaf that was there
    first stands for it. ``intent`` is the one they share; None where they do not.
    """

    id: str
    turn_id: str
    leaves: tuple[str, ...]
    intent: str | None = None


def groups(
    loom: Loom, turn_id: str | None = None, *, alike: bool = False, outline: Outline | None = None
) -> list[Group]:
    """The groups of two threads or more that part at a turn, or at any turn.

    What hangs on a ``call`` are casts of one cantrip, which are comparable where their intents are the same; so there a
    group is of one intent. Elsewhere it is all that parts there, unless ``alike`` asks for the same intent from there on
    and the same batch of forks (`ForkRecord.group`), as trainers need it: the same prompt for each. Children are no branches.
    Raises `TurnNotFound`.
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
    """Rewards of a group, each relative to the others'.

    ``grpo``: (r - mean) / (s + 0.0001), s the sample's standard deviation: the advantage of Group Relative Policy
    Optimization. ``centered``: r - mean. ``rank``: from 1 for the best to -1 for the worst, evenly spaced; equal ones share the
    mean of their places. Where all are equal, and of a single one, 0 by each.
    """
    count = len(rewards)
    if count < 2 or min(rewards) == max(rewards):
        return [0.0] * count
    if method == "rank":
        ordered = sorted(rewards)
        # Below it, and below it or equal: the mean of its places counts from the middle of the two.
        places = {r: bisect_left(ordered, r) + bisect_right(ordered, r) - 1 for r in set(rewards)}
        return [places[r] / (count - 1) - 1 for r in rewards]
    # The largest rewards there can be must not overflow on the way.
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
    """A thread in its group. ``reward`` is what it was compared by, None where it has none and so was not compared;
    ``rank`` counts from 1 for the best, and equal ones share one."""

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
    """A group's threads with relative rewards, in the group's order, and what they were compared by.

    ``reward`` compares those that have a reward (`of_thread`); ``implicit`` compares all by `implicit_of`; ``auto`` is the first
    where any has a reward, else the second.
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
    """Write each compared thread's relative reward to its leaf; how many. Older ones stay, and the last counts.

    Raises `LoomError` where fewer than two threads were compared.
    """
    compared = [s for s in standings if s.relative is not None]
    if len(compared) < 2:
        raise LoomError(
            f"{len(compared)} of the {len(standings)} threads that part at {group.turn_id} have a reward; ranking takes two. "
            "Give them one (cantrip loom reward), or compare by implicit rewards"
        )
    for standing in compared:
        if standing.relative is not None:
            loom.annotate_reward(standing.leaf, standing.relative, by=by, kind="relative", group=group.id, note=note)
    return len(compared)
