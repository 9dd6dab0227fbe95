"""Small ways to make a cantrip for the tests of the core."""

from tests.support.fixtures.core import anyio_backend  # noqa: F401
