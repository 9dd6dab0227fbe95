"""A browser to look at the page of a batch."""

from tests.support.fixtures.loom_view import chromium, watched  # noqa: F401
