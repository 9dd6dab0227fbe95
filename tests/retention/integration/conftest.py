"""Each test has its own folder for temporary files: those of other processes are not its leftovers."""

from tests.support.fixtures.retention import temp  # noqa: F401
