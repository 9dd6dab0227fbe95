"""Fixtures of the tests of files and databases."""

from tests.support.fixtures.loom import postgres  # noqa: F401
