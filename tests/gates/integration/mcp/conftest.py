"""Real servers, each a process of its own."""

from tests.support.fixtures.mcp import circle, listening, program, sdk_program  # noqa: F401
