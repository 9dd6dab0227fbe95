"""Real servers made with the official SDK, each a process of its own."""

from tests.support.fixtures.mcp import circle, listening, program  # noqa: F401
