"""Completion in the shell, as click's script asks for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import GREETER, recipe, run


def offered(folder: Path, *words: str) -> list[str]:
    """What the Tab key offers in fish after these words; the last one is incomplete."""
    done = run(
        cwd=folder,
        _CANTRIP_COMPLETE="fish_complete",
        COMP_WORDS=" ".join(("cantrip", *words[:-1])),
        COMP_CWORD=words[-1],
    )
    return [line.split(",", 1)[1].split("\t")[0] for line in done.out.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("loom", "export", "--format", "tr"), "trl-sft"),
        (("models", "ope"), "openrouter"),
        (("models", "pu"), "pull"),
        (("models", "anthropic:claude-op"), "anthropic:claude-opus-5-5"),
        (("cast", "greeter", "-m", "olla"), "ollama:"),
        (("cast", "greeter", "-m", "anthropic:claude-op"), "anthropic:claude-opus-5-5"),
        (("repl", "--model", "claude-op"), "claude-opus-5-5"),
        (("cast", "./r.cantrip.yaml", "x", "-m", "fa"), "fast"),
        (("eval", "suite.yaml", "-m", "embed"), "embedded"),
    ],
)
def test_names(tmp_path: Path, words: tuple[str, ...], expected: str) -> None:
    recipe(tmp_path, GREETER.replace("name: greeter\n", "name: greeter\ncrystals: {fast: 'ollama:qwen3'}\n"))
    found = offered(tmp_path, *words)
    assert expected in found
    assert all(each.startswith(words[-1]) for each in found)


def test_turns_of_a_loom(tmp_path: Path) -> None:
    loom = tmp_path / "x.loom.jsonl"
    done = run("cast", recipe(tmp_path, GREETER), "Hi.", "--loom", loom, cwd=tmp_path)
    last = [word for word in done.out.split() if word.startswith("t_")][-1]
    found = offered(tmp_path, "loom", "fork", str(loom), "t_")
    assert found[0] == last
    assert len(found) == 2
    assert offered(tmp_path, "loom", "fork", "none.loom.jsonl", "t_") == []
