"""Threads as a list, side by side and added up, in every store; damaged, empty and large looms."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cantrip_acp import DefinitionError, Loom, Turn, Usage
from cantrip_acp.loom.query.diff import difference
from cantrip_acp.loom.query.listing import Listing, Spent, ThreadFilter, rewarded, when
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.loom.query.statistics import Statistics, percentile
from tests.support.loom_trees import end, grow, start, turn


@pytest.mark.parametrize(
    ("wanted", "leaves"),
    [
        (ThreadFilter(intent="fix THE"), ["v2", "u3", "t3"]),  # v2's way begins with that intent
        (ThreadFilter(intent="otherwise"), ["v2"]),
        (ThreadFilter(outcome="done"), ["t3", "w1"]),
        (ThreadFilter(outcome="truncated"), ["v2", "u3"]),
        (ThreadFilter(outcome="interrupted"), ["v2"]),
        (ThreadFilter(reward=rewarded(">0.4")), ["t3"]),
        (ThreadFilter(reward=rewarded("none")), ["x1", "v2", "w1"]),
        (ThreadFilter(gate="search"), ["v2", "u3", "t3"]),
        (ThreadFilter(gate="call_agent"), ["t3"]),
        (ThreadFilter(text="needle"), ["u3"]),
        (ThreadFilter(text="needle", gate="done"), []),
        (ThreadFilter(model="M-2"), ["v2"]),
        (ThreadFilter(since=when("2026-03-04T05:12Z")), ["x1", "v2", "u3"]),
        (ThreadFilter(until=when("2026-03-04T05:12Z"), outcome="terminated"), ["t3", "w1"]),
        (ThreadFilter(since=when("2030-01-01")), []),
    ],
)
def test_filters(wanted: ThreadFilter, leaves: list[str]) -> None:
    loom = grow(Loom.memory())
    loom.annotate_reward("t3", 0.5)
    loom.annotate_reward("u3", -1)
    assert [line.leaf for line in Listing(loom).lines(wanted)] == leaves


@pytest.mark.parametrize(
    ("words", "fits", "not_"),
    [
        (">0.5", [0.6], [0.5, None]),
        (">= .5", [0.5], [0.4]),
        ("<-1e2", [-101], [-100]),
        ("=1", [1.0], [2]),
        ("1", [1.0], [None]),
        ("!=0", [1], [0, None]),
        ("-1..1", [-1, 0, 1], [1.1, None]),
        ("any", [0], [None]),
        ("NONE", [None], [0]),
    ],
)
def test_reward_tests(words: str, fits: list[float | None], not_: list[float | None]) -> None:
    test = rewarded(words)
    assert all(test(r) for r in fits)
    assert not any(test(r) for r in not_)


@pytest.mark.parametrize("words", ["", "good", ">", ">>1", "1..", "nan", ">inf", "1 2"])
def test_what_is_no_reward_test(words: str) -> None:
    with pytest.raises(DefinitionError, match="is not a comparison of rewards"):
        rewarded(words)


def test_times() -> None:
    assert when("2026-03-04T05:06:07+02:00").isoformat() == "2026-03-04T05:06:07+02:00"
    assert (when("2026-03-04", end=True) - when("2026-03-04")).total_seconds() == pytest.approx(86400, abs=1)
    assert when("2h") < when("1h") < when("0s")
    for bad in ("", "yesterday", "2026-13-01", "9999999d", "5y", "999999w"):
        with pytest.raises(DefinitionError, match="is not a time"):
            when(bad)


def test_a_cancel_between_turns_shows_in_the_casts_end() -> None:
    loom = Loom.memory()
    loom.append(start("k", "e", "Go", 1))
    loom.append(turn("a", None, "e", "k", 2))
    loom.append(end("k", "e", 3, "cancelled", 1))
    (line,) = Listing(loom).lines()
    assert (line.state, line.outcome) == ("truncated", "cancelled")


def test_a_damaged_loom(tmp_path: Path) -> None:
    file = tmp_path / "x.loom.jsonl"
    grow(Loom.open(file)).close()
    lines = file.read_bytes().splitlines()
    # The first turn and the original's end are lost, another turn is its own parent's parent, the last line is torn.
    kept = [b"{bad" if b'"id":"t1"' in line or (b'"end"' in line and b'"k1"' in line) else line for line in lines]
    kept.insert(4, b'{"type":"turn","id":"o1","parent_id":"o2","cantrip_id":"c","entity_id":"e","cast_id":"nobody"}')
    kept.insert(5, b'{"type":"turn","id":"o2","parent_id":"o1","cantrip_id":"c","entity_id":"e","cast_id":null}')
    kept.insert(6, b'{"type":"reward","turn_id":"not here","reward":1}')
    file.write_bytes(b"\n".join(kept) + b'\n{"type":"tur')
    with Loom.open(file, readonly=True) as loom:
        assert loom.problems
        found = {line.leaf: line for line in Listing(loom).lines()}
        assert {"t3", "u3", "v2", "w1", "x1"} <= set(found)
        # What is left of the way is counted.
        assert (found["t3"].turns, found["t3"].spent.usage.total_tokens, found["t3"].state) == (2, 220, "terminated")
        assert next(Listing(loom).lines(ThreadFilter(text="needle"))).leaf == "u3"
        counted = Statistics()
        counted.add(loom)
        assert counted.record()["damage"] == len(loom.problems)
        told = difference(loom, "t3", "u3")
        assert told.parted_at is None
        assert len(told.pairs) == 2


def test_percentiles() -> None:
    values = [float(n) for n in range(1, 101)]
    assert (percentile(values, 0.5), percentile(values, 0.95), percentile([7.0], 0.95)) == (50.0, 95.0, 7.0)


def test_ten_thousand_turns_are_listed_without_being_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "big.loom.jsonl"
    with Loom.open(file) as loom:
        loom.append(Turn("root", None, "c", "e", None, role="call"))
        for n in range(100):
            loom.append(start(f"k{n}", f"e{n}", f"Do {n}", 1))
            above = "root"
            for i in range(100):
                name = f"t{n}_{i}"
                last = {"terminated": True, "reason": "done"} if i == 99 else {}
                loom.append(turn(name, above, f"e{n}", f"k{n}", 2, said="x" * 50, **last))
                above = name
            loom.append(end(f"k{n}", f"e{n}", 3, "done", 100))
            loom.annotate_reward(above, n / 100)
    read: list[str] = []
    whole = Loom._turns

    def counted(self: Loom, places: list[object]) -> list[Turn]:
        found = whole(self, places)  # type: ignore[arg-type]
        read.extend(t.id for t in found)
        return found

    monkeypatch.setattr(Loom, "_turns", counted)
    with Loom.open(file, readonly=True) as loom:
        began = time.process_time()
        lines = list(Listing(loom).lines(ThreadFilter(reward=rewarded(">=0.5"), outcome="done")))
        took = time.process_time() - began
    assert [line.turns for line in lines] == [100] * 50
    assert lines[0].spent == Spent(Usage(10000, 1000, 500, cost=25.0), 120.0)
    # Each thread's last turn, and what a rewards' lookup needs of it; never the nine thousand others.
    assert len(set(read)) <= 101
    assert took < 20


def test_a_long_chain_of_forks_does_not_grow_with_its_square() -> None:
    loom = Loom.memory()
    loom.append(start("k", "e", "Go", 1))
    above = None
    for n in range(3000):
        loom.append(turn(f"m{n}", above, "e", "k"))
        above = f"m{n}"
    for n in range(2999):
        loom.append(start(f"k{n}", f"f{n}", "Go", 2))
        loom.append(turn(f"f{n}", f"m{n}", f"f{n}", f"k{n}"))
    began = time.process_time()
    lines = list(Listing(loom).lines())
    assert len(lines) == 3000
    assert lines[0].turns == 3000
    assert time.process_time() - began < 20
    assert len(Outline(loom).parts()) == 2999
