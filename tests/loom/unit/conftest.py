"""A place in each kind of store."""

from tests.support.fixtures.loom import kept, place, postgres, shared, small_disk  # noqa: F401
