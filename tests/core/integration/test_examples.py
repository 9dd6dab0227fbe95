"""Every script in `examples/`, without a key: what it prints, and what its entity really did."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip, DefinitionError
from tests.support.openai_replies import chat_stream
from tests.support.provider_server import Reply, Request, Wire, json_reply

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = {path.stem: path for path in sorted((ROOT / "examples").glob("*.py"))}

PRINTS: dict[str, list[str]] = {
    "01_hello": ["It comes from a book on the language C, which Kernighan and Ritchie wrote in 1978."],
    "02_own_gate": ["It lasted 193 days."],
    "03_structured_output": ["accept, 4 of 5: fine language; little plot"],
    "04_streaming_events": ["Let me look. [weather {'town': 'Turin'}]", "Yes, take one.", "2 turns"],
    "05_batch": [
        "bug: The app crashes at start.",
        "question: How do I export my data?",
        "failed: I want a refund. (this answer is part of the script)",
        "payment: My card was charged twice.",
    ],
    "06_children": ["Rome began as villages on hills, Tokyo as a fishing village, and Lima as a colonial capital."],
    "07_forks_and_rewards": [
        "0.50 It swims.",
        "0.25 It plays a lot.",
        "0.12 It eats fish and sleeps on the water.",
        "0.08 It is a mammal of rivers and coasts that uses stones as tools.",
    ],
    "08_mcp_server": ["There are 12 pens left."],
    "09_local_model": ["It scatters blue light. (7 tokens)", "Then red light is left. (7 tokens)"],
    "10_data_analysis": ["Bergen: 117.4 mm"],
}
DOES: dict[str, list[Any]] = {
    "02_own_gate": [
        "argument 'end' is not valid: Input should be a valid date or datetime, invalid character in year",
        193,
    ],
    "03_structured_output": [
        "arguments do not fit gate done(answer): answer.stars: 9 is greater than the maximum of 5",
        {"verdict": "accept", "stars": 4, "reasons": ["fine language", "little plot"]},
    ],
    "06_children": [["As villages on hills.", "As a fishing village.", "As a colonial capital."]],
    "08_mcp_server": [12],
    "10_data_analysis": [{"town": "Bergen", "millimetres": pytest.approx(117.4)}],
}
"""What the gates of an example gave, where a script could say anything."""


def ollama(request: Request) -> Reply:
    """A server of Ollama with the model qwen3. Its second answer is for the question at sunset."""
    if request.path == "/api/show":
        return json_reply({"capabilities": ["completion", "tools"]})
    if request.path != "/v1/chat/completions":
        return json_reply({"models": []})
    sunset = "sunset" in request.json()["messages"][-1]["content"]
    words = "Then red light is left." if sunset else "It scatters blue light."
    usage = {"prompt_tokens": 20, "completion_tokens": 7, "total_tokens": 27}
    return chat_stream({"role": "assistant", "content": words}, usage=usage)


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> dict[str, Any]:
    """Run an example as a person does, in any folder; returns its variables."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", [str(EXAMPLES[name]), *arguments])
    return runpy.run_path(str(EXAMPLES[name]), run_name="__main__")


@pytest.mark.sandbox
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_without_a_key(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Wire(ollama) as wire:
        monkeypatch.setenv("OLLAMA_HOST", wire.url)
        made = run(name, tmp_path, monkeypatch)
    printed = capsys.readouterr().out.splitlines()
    if name == "05_batch":
        # Those that finish at the same time come in any order; the slow one comes last.
        assert printed[-1] == PRINTS[name][-1]
        assert sorted(printed) == sorted(PRINTS[name])
    else:
        assert printed == PRINTS[name]
    if name in DOES:
        cantrip = made["cantrip"]
        assert isinstance(cantrip, Cantrip)
        records = [record for turn in cantrip.loom.turns() for record in turn.observation.results]
        assert [record.result for record in records] == DOES[name]


@pytest.mark.parametrize("name", EXAMPLES)
def test_its_argument_is_the_crystal(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DefinitionError, match="'nobody:model' is not a crystal"):
        run(name, tmp_path, monkeypatch, "nobody:model")


def test_there_are_ten_and_each_is_checked() -> None:
    assert list(EXAMPLES) == list(PRINTS)
    assert len(EXAMPLES) == 10
