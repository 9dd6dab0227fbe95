"""The names in the tables of the language server: each leads to a function."""

from __future__ import annotations

import importlib

import pytest

from cantrip_acp.lsp.commands.registry import COMMANDS
from cantrip_acp.lsp.looms import answers as loom_answers
from cantrip_acp.lsp.recipes import answers as recipe_answers
from cantrip_acp.lsp.server import features

# No lens has data that must be resolved. A client that asks all the same gets the lens back.
WITHOUT_ANSWER = {"lens_resolved"}


@pytest.mark.parametrize("name", sorted({name for name, _ in features.METHODS.values()} - WITHOUT_ANSWER))
def test_each_method_has_an_answer(name: str) -> None:
    assert any(callable(getattr(module, name, None)) for module in (recipe_answers, loom_answers))


@pytest.mark.parametrize("command", COMMANDS.values(), ids=list(COMMANDS))
def test_each_command_has_a_function(command: object) -> None:
    assert callable(getattr(importlib.import_module(command.module), command.function))  # type: ignore[attr-defined]
