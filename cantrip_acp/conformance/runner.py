"""Runs cases, each in its own folder and against the real loop, and checks the result. No case affects another."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import anyio

from cantrip_acp.conformance.actions import CaseRun
from cantrip_acp.conformance.case import Case, missing_features
from cantrip_acp.conformance.evidence import Evidence
from cantrip_acp.conformance.expect import check_expectations
from cantrip_acp.conformance.grammar import Problem
from cantrip_acp.conformance.setup import CaseSetup

CASE_LIMIT_S = 180.0
"""A case that takes more seconds than this fails. It is more than any default ward allows for a turn."""

Status = Literal["passed", "failed", "skipped"]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a case. ``problems`` are why it failed, ``reason`` is why it was skipped."""

    case: Case
    status: Status
    problems: tuple[Problem, ...] = ()
    reason: str = ""
    duration_ms: float = 0.0


async def run_case(case: Case) -> Outcome:
    """Run one case and return its outcome. Failures of the case are part of the outcome and are never raised."""
    if case.problem is None and case.data.get("skip") in (True, "on"):
        return Outcome(case, "skipped", reason="the suite says to skip it")
    broken = case.problems()
    if broken:
        return Outcome(case, "failed", tuple(broken))
    absent = missing_features(case)
    if absent is not None:
        return Outcome(case, "skipped", reason=absent)
    if not case.actions:
        return Outcome(case, "skipped", reason="it has no action: it names a rule that is tested elsewhere")
    started = time.perf_counter()
    problems = await _perform(case)
    duration = (time.perf_counter() - started) * 1000
    return Outcome(case, "failed" if problems else "passed", tuple(problems), duration_ms=duration)


async def _perform(case: Case) -> list[Problem]:
    with tempfile.TemporaryDirectory(
        prefix="cantrip-conformance-", dir=_scratch(), ignore_cleanup_errors=True
    ) as folder:
        performance = CaseRun(CaseSetup(case, Path(folder)))
        try:
            with anyio.fail_after(CASE_LIMIT_S):
                await performance.run(case)
            return list(check_expectations(case, Evidence(performance)))
        except TimeoutError:
            return [Problem(performance.failed_at, f"did not end within {CASE_LIMIT_S:g} s")]
        except Exception as error:  # noqa: BLE001
            # A bug of the product: the suite continues, and this case reports the error.
            return [Problem(performance.failed_at, f"crashed: {_error_text(error)}")]


def _scratch() -> str:
    """The folder for cases' folders, without links in its path, so that a path in a case is exactly the path that is
    used."""
    return os.path.realpath(tempfile.gettempdir())


def _error_text(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_error_text(inner) for inner in error.exceptions)
    return f"{type(error).__name__}: {error}"


def select_cases(cases: Sequence[Case], rules: Sequence[str]) -> list[Case]:
    """The cases of these rules: ``LOOP-3`` for one rule, ``LOOP`` for a family; all cases if no rule is given."""
    if not rules:
        return list(cases)
    wanted = {rule.upper().rstrip("*").rstrip("-") for rule in rules}
    return [case for case in cases if case.rule.upper() in wanted or case.rule.upper().rpartition("-")[0] in wanted]
