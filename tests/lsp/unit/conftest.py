"""A server a test, ended with it."""

from tests.support.fixtures.lsp import client, connect  # noqa: F401
