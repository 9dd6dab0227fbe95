"""Looms and a browser to look at them."""

from tests.support.fixtures.loom_view import chromium, kept, postgres, sample, view, watch, watched  # noqa: F401
