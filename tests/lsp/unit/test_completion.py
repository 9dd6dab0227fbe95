"""Completion and hover: in whole files and in broken ones; ``^`` is the cursor."""

from pathlib import Path

import pytest
from lsprotocol import types

from cantrip_acp.lsp.recipes.completion import completions, resolve
from cantrip_acp.lsp.server.documents import OpenDocument
from cantrip_acp.lsp.server.positions import TextDocument


def at(source: str, folder: Path, name: str = "a.cantrip.yaml") -> list[types.CompletionItem]:
    offset = source.index("^")
    held = OpenDocument((folder / name).as_uri(), TextDocument(source.replace("^", "", 1)), 1)
    return completions(held, held.text.position(offset), folder)


def offered(source: str, folder: Path, name: str = "a.cantrip.yaml") -> list[str]:
    found = []
    for item in at(source, folder, name):
        assert isinstance(item.text_edit, types.TextEdit)
        found.append(item.text_edit.new_text)
    return found


CASES = [
    ("^", "circle: ", "done"),
    ("na^\ncircle: [", "name: ", "circle: "),
    ("circle:\n  ^", "gates: ", "name: "),
    ("circle:\n  ^\n  gates: [done]\n", "wards: ", "gates: "),
    ("circle:\n  gates: [do^", "done", "gates: "),
    ("circle:\n  gates: [done, ^]\n  wards: [{^", "read_file", "done"),
    ("circle:\n  gates:\n    - done\n    - re^\nbroken [\n", "read_file", "done"),
    ("circle:\n  gates:\n  - done\n  - ^", "plan", "done"),
    ("circle:\n  gates:\n    - name: read_file\n      ^\n", "root: ", "command: "),
    ("circle:\n  gates:\n    - name: ^\n", "search", "root: "),
    ("circle:\n  gates: ^", "[done]", "done"),
    ("circle:\n  gates:\n    ^", "- done", "done"),
    ("circle:\n  wards:\n    - max_turns: 3\n    - ^\n", "bash_network: ", "medium: "),
    ("circle:\n  wards:\n    ^\n", "- max_turns: ", "medium: "),
    ("circle:\n  wards: [{^}]\n", "max_turns: ", "medium: "),
    ("circle:\n  wards:\n    - bash_network: ^\n", "false", "on"),
    ("circle:\n  wards:\n    - remove_gate: [^]\n", "fetch", "max_turns: "),
    ("circle:\n  medium: ^", "code", "openai:gpt-6.1-sol"),
    ("crystal: ^", "anthropic:claude-sonnet-5-5", "done"),
    ("crystals:\n  small: open^", "openai:gpt-6.1-sol", "done"),
    ("crystal:\n  provider: openai\n  model: ^", "gpt-6.1-sol", "anthropic:claude-sonnet-5-5"),
    ("crystal:\n  provider: ^", "ollama", "gpt-6.1-sol"),
    ("crystals:\n  small: human\nfolding: {summarizer: ^}", "small", "done"),
    ("call:\n  system_prompt_file: ^", "prompt.md", "circle: "),
    ("call:\n  system_prompt_file: inner/^", "inner/more.md", "prompt.md"),
    ("loom:\n  store: ^", "jsonl", "call: "),
    ("circle:\n  gates:\n    - python: ^", "inner/", "prompt.md"),
    ("circle:\n  gates:\n    - name: search\n      root: ^", "inner/", "prompt.md"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "more.md").touch()
    (tmp_path / "prompt.md").touch()
    return tmp_path


@pytest.mark.parametrize(("source", "there", "not_there"), CASES)
def test_yaml(source: str, there: str, not_there: str, folder: Path) -> None:
    found = offered(source, folder)
    assert there in found
    assert not_there not in found


@pytest.mark.parametrize("source", ["call:\n  system_prompt: |\n    ^", "name: a # ^", "call: {system_prompt: '^'}"])
def test_nothing_in_prose(source: str, folder: Path) -> None:
    assert offered(source, folder) == []


def test_models_say_what_they_cost(folder: Path) -> None:
    item = next(i for i in at("crystal: ^", folder) if i.label == "anthropic:claude-sonnet-5-5")
    assert item.detail is not None
    assert "tokens of context" in item.detail
    assert "$" in item.detail


def test_a_gate_is_explained_when_it_is_looked_at(folder: Path) -> None:
    item = next(i for i in at("circle: {gates: [^]}", folder) if i.label == "read_file")
    assert "read_file(" in str(resolve(item).documentation)
