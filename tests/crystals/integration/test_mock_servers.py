"""Our crystals against mocks of the providers' APIs that others wrote: whole casts through the real command line.

`aimock` (npm) speaks OpenAI's two APIs, Anthropic's, Google's, OpenRouter's and Ollama's. It was made by reading what the
providers send, not what we expect.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.recipes import load
from cantrip_acp.recipes.build.build import build
from cantrip_acp.types.errors import CrystalError
from cantrip_acp.types.events import as_json
from tests.support.command_line import recipe, run

AIMOCK = Path(__file__).parent / "aimock/node_modules/@copilotkit/aimock/dist/cli.js"
KEY = "planted-mock-key-0123456789"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not AIMOCK.exists(),
    reason="node or aimock is not installed here; .ci/setup --tests does",
)

WAYS: dict[str, dict[str, Any]] = {
    "anthropic": {"provider": "anthropic", "model": "claude-sonnet-5", "path": ""},
    "openai-responses": {"provider": "openai", "model": "gpt-5", "path": "/v1", "api": "responses"},
    "openai-chat": {"provider": "openai", "model": "gpt-4.1", "path": "/v1", "api": "chat"},
    "google": {"provider": "google", "model": "gemini-3.8-flash", "path": ""},
    "openrouter": {"provider": "openrouter", "model": "anthropic/claude-sonnet-5", "path": "/api/v1"},
    "local": {"provider": "local", "model": "qwen3", "path": "/v1"},
}

CALLS = [{"name": "echo", "arguments": {"text": "hi there"}}, {"name": "echo", "arguments": {"wrong": 1}}]
FINISH = {"name": "done", "arguments": {"answer": "said hi"}}
USED = {"prompt_tokens": 111, "input_tokens": 111, "completion_tokens": 22, "output_tokens": 22}
USED |= {"promptTokenCount": 111, "candidatesTokenCount": 22, "totalTokenCount": 133, "total_tokens": 133}

FIXTURES = [
    {
        "match": {"userMessage": "Say hi", "turnIndex": 0},
        "response": {"content": "I try it.", "toolCalls": CALLS, "usage": USED},
    },
    {"match": {"userMessage": "Say hi", "turnIndex": 1}, "response": {"toolCalls": [FINISH], "usage": USED}},
    {"match": {"userMessage": "Use words"}, "response": {"content": "Just words, ∀ a few, in many small pieces."}},
    {
        "match": {"userMessage": "Be busy", "sequenceIndex": 0},
        "response": {"error": {"message": "slow down", "type": "rate_limit_error"}, "status": 429, "retryAfter": 1},
    },
    {
        "match": {"userMessage": "Be busy", "sequenceIndex": 1},
        "response": {"content": "cut in the middle of its words"},
        "truncateAfterChunks": 2,
    },
    {"match": {"userMessage": "Be busy"}, "response": {"content": "at last"}},
    {
        "match": {"userMessage": "Refuse the key"},
        "response": {"error": {"message": "invalid key", "type": "authentication_error"}, "status": 401},
    },
]


@dataclass(frozen=True)
class Server:
    url: str

    def journal(self, test: str) -> list[dict[str, Any]]:
        """The requests of a test; each has counters of its own over there."""
        with urllib.request.urlopen(f"{self.url}/__aimock/journal?testId={test}", timeout=60) as reply:
            found: list[dict[str, Any]] = json.load(reply)
        return found


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    fixtures = tmp_path_factory.mktemp("aimock") / "fixtures.json"
    fixtures.write_text(json.dumps({"fixtures": FIXTURES}))
    command = ["node", str(AIMOCK), "-p", "0", "-f", str(fixtures), "--strict", "--chunk-size", "7"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert process.stdout is not None
        said = ""
        for line in process.stdout:
            said += line
            found = re.search(r"listening on (http://\S+)", line)
            if found:
                break
        else:
            pytest.fail(f"aimock did not start: {said}")
        # It writes a line a request; nobody may wait for them to be read.
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield Server(found[1])
    finally:
        process.kill()
        process.wait()


def written(server: Server, folder: Path, way: str) -> Path:
    """A recipe for a provider at the mock, whose requests are counted by themselves."""
    about = dict(WAYS[way])
    made = {
        "crystal": {
            "base_url": server.url + about.pop("path"),
            "api_key_env": "MOCK_KEY",
            "headers": {"X-Test-Id": folder.name},
            **about,
        },
        "call": {"system_prompt": "Be brief.", "max_tokens": 500},
        "circle": {"gates": ["done", "echo"], "wards": [{"max_turns": 4}]},
        "retry": {"base_s": 0.01},
    }
    return recipe(folder, json.dumps(made))


@dataclass
class Cast:
    """A cast to its end: its events as JSON, its loom, and what it failed with."""

    events: list[dict[str, Any]]
    turns: list[Any]
    result: Any = None
    error: CrystalError | None = None


async def cast(server: Server, folder: Path, way: str, intent: str, monkeypatch: pytest.MonkeyPatch) -> Cast:
    monkeypatch.setenv("MOCK_KEY", KEY)
    loom = Loom.memory()
    found = Cast([], [])
    async with build(load(written(server, folder, way), folder), workspace=folder).invoke(loom=loom) as entity:
        try:
            async with entity.stream(intent) as stream:
                async for event in stream:
                    found.events.append(as_json(event))
            found.result = stream.result.result
        except CrystalError as error:
            found.error = error
    found.turns = [turn for thread in loom.threads() for turn in thread.acted]
    assert KEY not in repr(found)
    return found


@pytest.mark.parametrize("way", WAYS)
async def test_a_cast_with_calls(server: Server, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = await cast(server, tmp_path, way, "Say hi.", monkeypatch)
    assert done.result == "said hi", done.error
    assert "".join(e["delta"] for e in done.events if e["event"] == "text").startswith("I try it.")
    first, second = done.turns
    assert [c.gate for c in first.utterance.tool_calls] == ["echo", "echo"]
    assert [r.is_error for r in first.observation.results] == [False, True]
    assert (first.metadata.tokens_prompt, first.metadata.tokens_completion) == (111, 22)
    assert second.terminated
    requests = server.journal(tmp_path.name)
    assert len(requests) == 2
    said = json.dumps(requests[1]["body"])
    assert "hi there" in said
    assert "missing required argument" in said
    assert KEY not in "".join(r["path"] for r in requests)


@pytest.mark.parametrize("way", WAYS)
async def test_words_come_in_pieces(server: Server, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    done = await cast(server, tmp_path, way, "Use words.", monkeypatch)
    pieces = [e["delta"] for e in done.events if e["event"] == "text"]
    assert len(pieces) > 3
    assert "".join(pieces) == done.result == "Just words, ∀ a few, in many small pieces."


@pytest.mark.parametrize("way", WAYS)
async def test_a_busy_provider_and_a_cut_stream_are_asked_again(
    server: Server, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await cast(server, tmp_path, way, "Be busy.", monkeypatch)
    assert done.result == "at last", done.error
    assert [e["status"] for e in done.events if e["event"] == "retry"] == [429, None]
    assert len(server.journal(tmp_path.name)) == 3
    assert [turn.utterance.content for turn in done.turns] == ["at last"]


@pytest.mark.parametrize("way", WAYS)
async def test_a_refused_key_is_not_tried_again(
    server: Server, tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = await cast(server, tmp_path, way, "Refuse the key.", monkeypatch)
    assert done.error is not None
    assert (done.error.status, done.turns) == (401, [])
    assert len(server.journal(tmp_path.name)) == 1


def test_by_the_command_line(server: Server, tmp_path: Path) -> None:
    done = run("cast", written(server, tmp_path, "google"), "Say hi.", "--json", cwd=tmp_path, MOCK_KEY=KEY)
    assert done.status == 0, done.err + done.out
    assert done.lines[-1]["result"] == "said hi"
    assert KEY not in done.out + done.err
