"""The policy of a project: it makes limits stricter, and its mistakes have a line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cantrip_acp.tuplespace.errors import TupleError
from cantrip_acp.tuplespace.tuples import AgentTerms
from cantrip_acp.tuplespace.workers.guardrails import (
    Policy,
    cpu_percent,
    lane_concurrency,
    max_waiting,
    needed_mb,
    read_policy,
)

WHOLE = """\
# For laptops
cpu_quota_pct: 60
lane_concurrency: 4
max_lane_concurrency: 8
queue_maxsize: 100
free_mb: 2000
agent_terms:
  budget_usd: 0.5
  max_retries: 1
  disk_quota_mb: 100
"""


def policy(folder: Path, text: str | bytes) -> Policy:
    (folder / ".catalog").mkdir(exist_ok=True)
    (folder / ".catalog" / "policy.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_policy(folder)


def test_a_policy_limits_what_the_environment_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = policy(tmp_path, WHOLE)
    assert (cpu_percent(found), lane_concurrency(None, policy=found), max_waiting(found), needed_mb(found)) == (
        60, 4, 100, 2000,
    )  # fmt: skip
    assert lane_concurrency(8, policy=found) == 8
    with pytest.raises(TupleError, match=r"at most 8 are allowed: \.catalog/policy\.yaml of the project says so"):
        lane_concurrency(9, policy=found)
    for name, value in (
        ("CPU_QUOTA_PCT", "30"),
        ("LANE_CONCURRENCY", "2"),
        ("QUEUE_MAXSIZE", "9"),
        ("FREE_MB", "5000"),
    ):
        monkeypatch.setenv(f"YOOL_TUPLE_{name}", value)
    assert (cpu_percent(found), lane_concurrency(None, policy=found), max_waiting(found), needed_mb(found)) == (
        30, 2, 9, 5000,
    )  # fmt: skip


def test_a_policy_never_allows_more(tmp_path: Path) -> None:
    loose = policy(tmp_path, "cpu_quota_pct: 100\nmax_lane_concurrency: 9999\nqueue_maxsize: 999999\nfree_mb: 1\n")
    for call in (cpu_percent, max_waiting, needed_mb):
        assert call(loose) == call(Policy())
    with pytest.raises(TupleError, match="at most 64 are allowed: set YOOL_TUPLE_MAX_LANE_CONCURRENCY"):
        lane_concurrency(65, policy=loose)


def test_a_tuple_gets_the_stricter_of_both_limits(tmp_path: Path) -> None:
    found = policy(tmp_path, WHOLE)
    asked = AgentTerms(budget_usd=2, max_retries=0, budget_tokens=7, deadline_iso="2030-01-01T00:00:00Z")
    assert found.limit(asked) == AgentTerms(
        budget_usd=0.5, max_retries=0, disk_quota_mb=100, budget_tokens=7, deadline_iso="2030-01-01T00:00:00Z"
    )
    assert Policy().limit(asked) is asked


@pytest.mark.parametrize("text", ["", "# nothing\n", "agent_terms: {}\n"])
def test_an_empty_policy_limits_nothing(text: str, tmp_path: Path) -> None:
    assert policy(tmp_path, text) == Policy() == read_policy(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("\ncpu: 5\n", r":2: cpu is not a limit; the limits are cpu_quota_pct, lane_concurrency"),
        ("cpu_quota_pct: 101\n", r":1: cpu_quota_pct: Expected `int` <= 100"),
        ("free_mb: 1\nqueue_maxsize: many\n", r":2: queue_maxsize: Expected `int"),
        ("free_mb: 1\nfree_mb: 2\n", r":2: found duplicate key"),
        ("agent_terms:\n  budget: 1\n", r":2: agent_terms\.budget is not a limit; the limits are budget_usd"),
        ("agent_terms:\n  max_retries: 1\n  budget_usd: -1\n", r":3: agent_terms\.budget_usd: Expected"),
        ("agent_terms:\n  deadline_iso: 2030-01-01T00:00:00Z\n", r":2: agent_terms"),
        ("agent_terms: 5\n", r":1: agent_terms: Expected `object`"),
        ("free_mb: true\n", r":1: free_mb: Expected `int"),
        ("- free_mb\n", r":1: it must have a key and a value in each line"),
        ("free_mb: [\n", r":2: "),
        ("agent_terms: &a {budget_usd: &b {x: *b}}\n", r"policy\.yaml"),
        ("a: " * 5000, r"policy\.yaml"),
        (b"\xff\xfe", r"not UTF-8"),
        ("#" * 100_001, r"more than 100,000 bytes"),
    ],
)
def test_a_mistake_has_its_line(text: str | bytes, why: str, tmp_path: Path) -> None:
    with pytest.raises(TupleError, match=why):
        policy(tmp_path, text)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text(WHOLE)
    (tmp_path / ".catalog").mkdir()
    (tmp_path / ".catalog" / "policy.yaml").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(TupleError, match=r"policy\.yaml: it cannot be read"):
        read_policy(tmp_path)
    os.unlink(tmp_path / ".catalog" / "policy.yaml")
    os.mkfifo(tmp_path / ".catalog" / "policy.yaml")
    with pytest.raises(TupleError, match=r"policy\.yaml: it cannot be read"):
        read_policy(tmp_path)
