"""Statistics of samples: rates and means with confidence intervals, pass@k, and regressions against an earlier result.

All intervals are of 95 %. Nothing here is random between two runs: the one permutation test has a fixed seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, stdev
from typing import Any

Z = NormalDist().inv_cdf(0.975)
ALPHA = 0.05
"""A difference counts as a regression if its probability without any regression is below this."""
_PERMUTATIONS = 10_000

Interval = tuple[float, float]


def wilson(rate: float, n: float) -> Interval:
    """Wilson's interval of a pass rate of ``n`` samples (1927). ``n`` may be an effective number, thus not whole."""
    middle = rate + Z * Z / (2 * n)
    width = Z * math.sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n))
    return max((middle - width) / (1 + Z * Z / n), 0.0), min((middle + width) / (1 + Z * Z / n), 1.0)


def clustered_wilson(groups: Sequence[Sequence[bool]]) -> Interval:
    """Wilson's interval of the pass rate over tasks with several samples each.

    Samples of one task resemble each other, so they count as fewer: their number is divided by the design effect (Kish), the
    variance by tasks over the variance of independent samples, from 1 to the number of samples of a task. Where every
    sample passed, or none, it cannot be estimated, and each task counts as one sample.
    """
    samples = [passed for group in groups for passed in group]
    n, tasks = len(samples), len(groups)
    rate = fmean(samples)
    effect = n / tasks
    if 0 < rate < 1 and tasks > 1:
        between = tasks / (tasks - 1) * sum((sum(group) - rate * len(group)) ** 2 for group in groups) / n**2
        effect = min(max(between / (rate * (1 - rate) / n), 1.0), effect)
    elif tasks == 1:
        effect = 1.0
    return wilson(rate, n / effect)


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Student's t interval of a mean. None if the values do not differ, because then it cannot be estimated."""
    if len(set(values)) < 2:
        return None
    half = _t(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def _t(df: int) -> float:
    """The 97.5 % quantile of Student's t: exact for 1 and 2 degrees of freedom, else by Hill's expansion (within 0.004)."""
    if df == 1:
        return math.tan(math.pi * 0.475)
    if df == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z = Z
    return z + math.fsum(
        term / df**power
        for power, term in enumerate(
            (
                (z**3 + z) / 4,
                (5 * z**5 + 16 * z**3 + 3 * z) / 96,
                (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
                (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
            ),
            1,
        )
    )


def pass_at(n: int, passed: int, k: int) -> float:
    """The probability that at least one of ``k`` samples passes, estimated without bias from ``n`` ones (Chen et al. 2021)."""
    return 1.0 - math.comb(n - passed, k) / math.comb(n, k)


# --- Cells: the samples of one task with one crystal, and those of all tasks with one crystal.


@dataclass(frozen=True, slots=True)
class Cell:
    """The totals of some samples. ``errors`` samples were not judged; they are in no rate. ``interval`` is that of the pass
    rate.

    ``cost`` (US dollars) and the tokens are sums of known values, None if none is known; ``unknown_cost`` and
    ``unknown_tokens`` count the samples without complete values. ``pass_at`` is pass@k for the largest k that every task has.
    Turns and seconds are means.
    """

    samples: int
    passed: int
    errors: int
    rate: float | None
    interval: Interval | None
    score: float | None
    score_interval: Interval | None
    k: int
    pass_at: float | None
    turns: float | None
    seconds: float | None
    tokens_in: int | None
    tokens_out: int | None
    unknown_tokens: int
    cost: float | None
    unknown_cost: int


def cell(samples: Sequence[Mapping[str, Any]]) -> Cell:
    """The cell of some samples (records of `run`), of one task or of several."""
    judged = [s for s in samples if s["outcome"] != "error"]
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for sample in judged:
        groups.setdefault(sample["task"], []).append(sample)
    passes = [[s["outcome"] == "passed" for s in group] for group in groups.values()]
    scores = [[float(s["score"]) for s in group] for group in groups.values()]
    means = [fmean(group) for group in scores]
    k = min(map(len, passes), default=0)
    return Cell(
        samples=len(samples),
        passed=sum(map(sum, passes)),
        errors=len(samples) - len(judged),
        rate=sum(map(sum, passes)) / len(judged) if judged else None,
        interval=clustered_wilson(passes) if judged else None,
        score=fmean([s for group in scores for s in group]) if judged else None,
        score_interval=mean_interval(means if len(means) > 1 else [s for group in scores for s in group]),
        k=k,
        pass_at=fmean([pass_at(len(group), sum(group), k) for group in passes]) if judged else None,
        turns=_mean([s["turns"] for s in judged]),
        seconds=_mean([s["seconds"] for s in judged]),
        tokens_in=_known([s["usage"]["prompt_tokens"] for s in samples]),
        tokens_out=_known([s["usage"]["completion_tokens"] for s in samples]),
        unknown_tokens=sum(bool(s["usage"]["queries_without_usage"]) for s in samples),
        cost=_known([s["usage"]["cost"] for s in samples]),
        unknown_cost=sum(bool(s["usage"]["queries_without_cost"]) for s in samples),
    )


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _known(values: Sequence[Any]) -> Any:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# --- Regressions.


@dataclass(frozen=True, slots=True)
class Comparison:
    """One crystal in two results, over the tasks that are the same in both, or over one ``task``.

    ``p`` is the probability of a difference at least as bad if nothing became worse. ``regression`` says whether it counts.
    """

    crystal: str
    baseline: str
    task: str | None
    before: float
    after: float
    what: str
    p: float
    regression: bool


def compare(
    crystal: str,
    baseline: str,
    before: Mapping[str, Sequence[Mapping[str, Any]]],
    after: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    any_drop: bool = False,
) -> list[Comparison]:
    """Compare the samples of the same tasks: first over all tasks, then each task that has become worse.

    The test permutes the samples within each task, one-sided: with pass and fail it is exact (over one task Fisher's test, over
    tasks with one sample each McNemar's), with other scores it draws permutations. A task counts if its p is below `ALPHA` after
    Holm's correction for the number of tasks. With ``any_drop`` every lower rate counts, as fits a crystal that answers the same
    each time.
    """
    samples = [s for found in (before, after) for group in found.values() for s in group]
    binary = all(s["score"] in (0, 1) for s in samples)
    what = "pass rate" if binary else "mean score"
    value: Callable[[Mapping[str, Any]], float] = (
        (lambda s: float(s["outcome"] == "passed")) if binary else (lambda s: float(s["score"]))
    )
    pairs = {
        task: ([value(s) for s in before[task]], [value(s) for s in after[task]]) for task in after if task in before
    }
    if not pairs:
        return []

    def compared(task: str | None, of: list[tuple[list[float], list[float]]], p: float, counts: bool) -> Comparison:
        old, new = (fmean([fmean(pair[side]) for pair in of]) for side in (0, 1))
        return Comparison(crystal, baseline, task, old, new, what, p, new < old and (any_drop or counts))

    every = list(pairs.values())
    p = worse_by_chance(every)
    found = [compared(None, every, p, p < ALPHA)]
    ps = sorted((worse_by_chance([pair]), task) for task, pair in pairs.items())
    counts = True
    for number, (p, task) in enumerate(ps):
        # Holm: once one does not count, no larger one does.
        counts = counts and p < ALPHA / (len(ps) - number)
        one = compared(task, [pairs[task]], p, counts)
        if one.after < one.before:
            found.append(one)
    return found


# --- Differences between the crystals of one result.


@dataclass(frozen=True, slots=True)
class Difference:
    """The advantage of the second crystal over the first on the tasks that both were judged on. ``tasks`` is their number.

    ``p`` is two-sided: the probability of a difference at least as large in either direction if the two were exchangeable.
    ``interval`` is None if it cannot be estimated. ``counts`` says whether the difference is significant, after Holm's
    correction for the number of pairs of crystals.
    """

    first: str
    second: str
    tasks: int
    what: str
    before: float
    after: float
    difference: float
    interval: Interval | None
    p: float
    counts: bool = False


def differences(cells: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]) -> list[Difference]:
    """The difference of each pair of crystals. ``cells`` has the judged samples of each crystal by task.

    The samples are paired by task. The test permutes them within each task, as `compare` does, and doubles the smaller of its
    two one-sided probabilities. The interval of a difference of pass rates combines the two intervals of `clustered_wilson`
    by squaring and adding (Newcombe 1998; MOVER, Zou and Donner 2008), with the correlation of the two crystals over the
    tasks. The interval of a difference of mean scores is Student's t interval of the differences of the tasks.
    """
    found = []
    names = list(cells)
    for number, first in enumerate(names):
        for second in names[number + 1 :]:
            tasks = [task for task in cells[first] if task in cells[second]]
            if tasks:
                found.append(_difference(first, second, [(cells[first][t], cells[second][t]) for t in tasks]))
    counting = True
    for place, each in enumerate(sorted(found, key=lambda one: one.p)):
        counting = counting and each.p < ALPHA / (len(found) - place)
        found[found.index(each)] = replace(each, counts=counting)
    return found


def _difference(
    first: str, second: str, of: Sequence[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]]
) -> Difference:
    binary = all(s["score"] in (0, 1) for pair in of for group in pair for s in group)

    def values(group: Sequence[Mapping[str, Any]]) -> list[float]:
        return [float(s["outcome"] == "passed") if binary else float(s["score"]) for s in group]

    pairs = [(values(old), values(new)) for old, new in of]
    means = [[fmean(pair[side]) for pair in pairs] for side in (0, 1)]
    p = min(worse_by_chance(pairs), worse_by_chance([(new, old) for old, new in pairs]))
    if binary:
        before, after = (fmean([value for pair in pairs for value in pair[side]]) for side in (0, 1))
        groups = [[[value == 1 for value in pair[side]] for pair in pairs] for side in (0, 1)]
        (low1, high1), (low2, high2) = (clustered_wilson(side) for side in groups)
        r = _correlation(means[0], means[1])
        below = _square_and_add(after - low2, high1 - before, r)
        above = _square_and_add(high2 - after, before - low1, r)
        interval: Interval | None = max(after - before - below, -1.0), min(after - before + above, 1.0)
    else:
        before, after = fmean(means[0]), fmean(means[1])
        interval = mean_interval([new - old for old, new in zip(means[0], means[1], strict=True)])
    what = "pass rate" if binary else "mean score"
    return Difference(first, second, len(of), what, before, after, after - before, interval, min(1.0, 2 * p))


def _square_and_add(one: float, other: float, correlation: float) -> float:
    return math.sqrt(max(one * one - 2 * correlation * one * other + other * other, 0.0))


def _correlation(first: Sequence[float], second: Sequence[float]) -> float:
    """Pearson's correlation; 0 if one of the two does not vary."""
    if len(set(first)) < 2 or len(set(second)) < 2:
        return 0.0
    one, two = fmean(first), fmean(second)
    both = sum((a - one) * (b - two) for a, b in zip(first, second, strict=True))
    return both / math.sqrt(sum((a - one) ** 2 for a in first) * sum((b - two) ** 2 for b in second))


def worse_by_chance(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """The probability that exchangeable samples of tasks are at least as bad as the second ones."""
    if all(value in (0, 1) for pair in pairs for side in pair for value in side):
        return _exact(pairs)
    pools = [[*old, *new] for old, new in pairs]
    seen = sum(fmean(new) - fmean(old) for old, new in pairs)
    source, hits = random.Random(0), 0
    for _ in range(_PERMUTATIONS):
        total = 0.0
        for pool, (old, _new) in zip(pools, pairs, strict=True):
            source.shuffle(pool)
            total += fmean(pool[len(old) :]) - fmean(pool[: len(old)])
        hits += total <= seen + 1e-12
    return (hits + 1) / (_PERMUTATIONS + 1)


def _exact(pairs: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
    """The probability of `worse_by_chance` for pass and fail: the convolution of the tasks' hypergeometric distributions."""
    chances = {0: 1.0}
    seen = 0
    for old, new in pairs:
        passed, n, of = int(sum(old) + sum(new)), len(new), len(old) + len(new)
        seen += int(sum(new))
        whole = math.comb(of, n)
        own = {
            k: math.comb(passed, k) * math.comb(of - passed, n - k) / whole
            for k in range(max(0, n - of + passed), min(n, passed) + 1)
        }
        joint: dict[int, float] = {}
        for total, chance in chances.items():
            for k, more in own.items():
                joint[total + k] = joint.get(total + k, 0.0) + chance * more
        chances = joint
    return min(sum(chance for total, chance in chances.items() if total <= seen), 1.0)
