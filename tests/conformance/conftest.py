"""Suites written on the spot, and the command that runs them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from cantrip_acp.cli.commands.conformance import conformance
from cantrip_acp.conformance.runner import Outcome, run_case
from cantrip_acp.conformance.suite import read_suite

HERE = Path(__file__).parent
ROOT = HERE.parent.parent


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    """A suite's text to a file."""

    def written(text: str) -> Path:
        path = tmp_path / "suite.yaml"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return path

    return written


@pytest.fixture
def outcomes(write: Callable[[str], Path]):
    """A suite's text to the outcomes of its cases."""

    async def ran(text: str) -> list[Outcome]:
        return [await run_case(case) for case in read_suite(write(text))]

    return ran


@pytest.fixture
def command() -> Callable[..., Result]:
    """Run ``cantrip conformance`` with these arguments."""

    def ran(*args: object) -> Result:
        return CliRunner().invoke(conformance, [str(a) for a in args], catch_exceptions=False)

    return ran
