"""The tests of `tests/conformance/unit/test_command.py` that start processes."""

from __future__ import annotations

import json

from tests.support.fixtures.conformance import HERE


def test_the_wrong_suite_fails_case_by_case(command) -> None:
    result = command(HERE / "wrong.yaml", "--json")
    assert result.exit_code == 1
    counts = json.loads(result.stdout.splitlines()[-1])
    assert counts["passed"] == counts["skipped"] == 0
