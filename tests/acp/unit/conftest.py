"""Agents on scripted recipes: in this process, or each a process of its own."""

from tests.support.fixtures.acp import folder, recipe, start, start_process  # noqa: F401
