"""The code of docs/python.md runs, from top to bottom, with a local server that speaks as Ollama does."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Cantrip
from tests.support.openai_replies import chat_stream
from tests.support.provider_server import Reply, Request, Wire, json_reply

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def ollama(request: Request) -> Reply:
    """Answers in words, or with done where the answer has a type."""
    if request.path == "/api/show":
        return json_reply({"capabilities": ["completion", "tools"]})
    if request.path != "/v1/chat/completions":
        return json_reply({"models": []})
    body = request.json()
    done = next(tool["function"] for tool in body["tools"] if tool["function"]["name"] == "done")
    if "verdict" not in done["parameters"]["properties"]["answer"].get("properties", {}):
        return chat_stream({"role": "assistant", "content": f"{len(body['messages'])} messages"})
    args = json.dumps({"answer": {"verdict": "accept", "reasons": ["It is short."]}})
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "done", "arguments": args}}
    return chat_stream({"role": "assistant", "tool_calls": [call]}, finish="tool_calls")


def code(block: str) -> str:
    """A block without the prompts and the output of an interactive session."""
    if not block.startswith(">>> "):
        return block
    return "".join(line[4:] + "\n" for line in block.splitlines() if line.startswith((">>> ", "... ")))


def test_the_code_of_the_page_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {"__name__": "page"}
    with Wire(ollama) as wire:
        monkeypatch.setenv("OLLAMA_HOST", wire.url)
        for block in BLOCKS:
            exec(compile(code(block), "docs/python.md", "exec", dont_inherit=True), scope)
        asyncio.run(scope["follow"](Cantrip("ollama:qwen3", max_turns=3), "Greet."))
        asyncio.run(scope["group"](str(tmp_path / "group.loom.jsonl")))
    assert scope["review"] == scope["Review"](verdict="accept", reasons=["It is short."])
    assert scope["cantrip"].sources[0].servers == (scope["notes"], scope["issues"])
    printed = capsys.readouterr().out.splitlines()
    assert "accept" in printed
    assert {"0 1 messages", "1 1 messages"} <= set(printed)
    assert "1 messagesended: text" in printed
    assert printed.count("0.5 3 messages") == 4
