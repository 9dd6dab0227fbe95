"""Suites written on the spot, and the command that runs them."""

from tests.support.fixtures.conformance import command, outcomes, write  # noqa: F401
