"""Calling a gate as the executor does: the handler with a context, awaited where it wants that."""

from tests.support.fixtures.gates import call, workspace  # noqa: F401
