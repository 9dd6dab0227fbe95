"""An editor's session with a real provider's client: a cantrip-acp process, the official SDK, a server at wire level."""

import base64
import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient
from tests.support.provider_server import Cut, Hold, Piece, Reply, Request, Until, Wire, json_reply, sse, sse_reply

KEY = "sk-session-0123456789abcdefgh"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0").decode()


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "gpt-5.4-mini", "choices": choices}
    return sse(head | more)


def end(finish: str = "stop", prompt: int = 100, said: int = 10) -> list[Piece]:
    usage = {"prompt_tokens": prompt, "completion_tokens": said, "total_tokens": prompt + said}
    return [chunk({}, finish), chunk(None, usage=usage), sse("[DONE]")]


def words(*parts: str) -> list[Piece]:
    return [chunk({"content": part}) for part in parts]


def echo(prompt: int) -> Reply:
    call = {
        "index": 0,
        "id": f"call_{prompt}",
        "type": "function",
        "function": {"name": "echo", "arguments": '{"text":"x"}'},
    }
    return sse_reply([chunk({"tool_calls": [call]}), *end("tool_calls", prompt=prompt, said=0)])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


class Started:
    """An agent whose recipe asks a wire server."""

    def __init__(self, tmp_path: Path, wire: Wire, model: str, wards: str, notices: bool) -> None:
        recipe = tmp_path / "r.yaml"
        recipe.write_text(
            f"crystal: {{provider: openai, model: {model}, api: chat}}\nretry: {{base_s: 0.01, max_retries: 2}}\n"
            f"circle: {{gates: [done, echo], wards: {wards}}}\n"
        )
        environment = {"CANTRIP_BASE_URL": f"{wire.url}/v1", "CANTRIP_API_KEY": KEY}
        self.agent = RawClient("--recipe", str(recipe), env=environment)
        self.agent.initialize(**({"session": {"notices": {}}} if notices else {}))


Start = Any


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    agents: list[RawClient] = []

    def begin(
        wire: Wire, model: str = "gpt-5.4-mini", wards: str = "[{max_turns: 9}]", *, notices: bool = False
    ) -> RawClient:
        agent = Started(tmp_path, wire, model, wards, notices).agent
        agents.append(agent)
        return agent

    yield begin
    for agent in agents:
        agent.process.kill()
        agent.process.communicate()


def said(message: dict[str, Any], kind: str = "agent_message_chunk") -> bool:
    update = message.get("params", {}).get("update", {})
    return bool(update.get("sessionUpdate") == kind)


def turns(result: dict[str, Any]) -> list[dict[str, Any]]:
    lines = Path(result["_meta"]["cantrip"]["loom"]).read_text().splitlines()
    return [r for r in map(json.loads, lines) if r["type"] == "turn" and r["role"] == "crystal"]


def test_the_first_word_comes_before_the_last_is_sent(start: Start, folder: Path) -> None:
    go = threading.Event()
    with Wire([sse_reply([*words("Hel"), Until(go), *words("lo."), *end()])]) as wire:
        agent = start(wire)
        prompt = agent.start_prompt(agent.session(folder))
        first = agent.until(said)
        assert first["params"]["update"]["content"]["text"] == "Hel"
        assert not go.is_set()
        go.set()
        result = agent.answer(prompt)["result"]
    assert result["stopReason"] == "end_turn"
    (request,) = wire.requests
    assert request.path == "/v1/chat/completions"
    assert request.headers["authorization"] == f"Bearer {KEY}"
    (usage,) = agent.updates("usage_update")
    assert (usage["used"], usage["size"]) == (110, 400_000)
    cost = (100 * 0.75 + 10 * 4.5) / 1e6
    assert usage["cost"] == {"amount": pytest.approx(cost), "currency": "USD"}
    assert result["_meta"]["cantrip"]["usage"]["cost"] == pytest.approx(cost)
    assert turns(result)[0]["metadata"]["cost"] == pytest.approx(cost)


@pytest.mark.parametrize("asked", [True, False])
def test_ids_of_requests_where_a_harness_asks_for_them(start: Start, folder: Path, asked: bool) -> None:
    with Wire([echo(10), sse_reply([*words("Done."), *end()])]) as wire:
        agent = start(wire)
        meta = {"_meta": {"ai.prime.acp/semantic-edges-v1": True}} if asked else {}
        agent.prompt(agent.session(folder, **meta))
    ids = [request.headers.get("x-acp-model-request-id") for request in wire.requests]
    assert len(ids) == 2
    assert (all(ids) and len(set(ids)) == 2) if asked else ids == [None, None]


def test_effort_and_crystal_for_the_next_prompt(start: Start, folder: Path) -> None:
    with Wire([sse_reply([*words("One."), *end()]), sse_reply([*words("Two."), *end()])]) as wire:
        agent = start(wire)
        session = agent.session(folder)
        agent.prompt(session)
        params = {"sessionId": session, "configId": "effort", "value": "low"}
        options = agent.call("session/set_config_option", params)["configOptions"]
        assert {each["id"]: each["currentValue"] for each in options}["effort"] == "low"
        agent.prompt(session)
    first, second = (request.json() for request in wire.requests)
    assert first.get("reasoning_effort") != "low"
    assert second["reasoning_effort"] == "low"
    assert second["messages"][-1]["content"] == "go"
    assert len(second["messages"]) > len(first["messages"])


def test_a_cancel_closes_the_stream(start: Start, folder: Path) -> None:
    with Wire([sse_reply([*words("Hel"), Hold()])]) as wire:
        agent = start(wire)
        session = agent.session(folder)
        prompt = agent.start_prompt(session)
        agent.until(said)
        agent.tell("session/cancel", {"sessionId": session})
        result = agent.answer(prompt)["result"]
        assert result["stopReason"] == "cancelled"
        assert wire.wait_gone()
    assert turns(result) == []


@pytest.mark.parametrize("notices", [False, True])
def test_a_cut_stream_is_asked_again_and_the_user_sees_it(start: Start, folder: Path, notices: bool) -> None:
    busy = Reply(429, {"content-type": "application/json", "retry-after": "0.2"}, b'{"error":{"message":"slow down"}}')
    with Wire([sse_reply([*words("half a"), Cut()]), busy, sse_reply([*words("whole"), *end()])]) as wire:
        agent = start(wire, notices=notices)
        result = agent.prompt(agent.session(folder))
    assert result["stopReason"] == "end_turn"
    (turn,) = turns(result)
    assert turn["utterance"]["content"] == "whole"
    if notices:
        told = [update["description"] for update in agent.updates("notice")]
        # What was shown of the attempt that broke is void, and named.
        assert "What it said above does not count" in told.pop(0)
    else:
        thoughts = agent.updates("agent_thought_chunk")
        told = [u["content"]["text"] for u in thoughts if u["messageId"].endswith(":retry")]
    assert len(told) == 2
    assert "the stream was cut" in told[0]
    assert "asking again at once" in told[0]
    assert "429" in told[1]
    assert "slow down" in told[1]
    assert "asking again in 0.2 s" in told[1]
    (voided,) = turn["metadata"]["voided"]
    assert "half a" in json.dumps(voided)


def test_a_limit_of_cost_by_real_prices(start: Start, folder: Path) -> None:
    with Wire([echo(100_000), echo(100_001), echo(100_002)]) as wire:
        agent = start(wire, wards="[{max_turns: 9}, {max_cost_usd: 0.1}]")
        result = agent.prompt(agent.session(folder))
    # 100,000 tokens cost 0.075 dollars.
    assert result["stopReason"] == "max_tokens"
    about = result["_meta"]["cantrip"]
    assert (about["reason"], about["turns"]) == ("max_cost", 2)
    assert about["usage"]["cost"] == pytest.approx(0.15, rel=0.001)
    assert turns(result)[-1]["truncated"]


def test_a_limit_of_tokens(start: Start, folder: Path) -> None:
    with Wire([echo(100), echo(101), echo(102)]) as wire:
        agent = start(wire, wards="[{max_turns: 9}, {max_total_tokens: 150}]")
        result = agent.prompt(agent.session(folder))
    assert (result["stopReason"], result["_meta"]["cantrip"]["turns"]) == ("max_tokens", 2)


@pytest.mark.parametrize("model", ["gpt-5.4-mini", "gpt-of-tomorrow"])
def test_a_picture_reaches_a_model_that_takes_it(start: Start, folder: Path, model: str) -> None:
    with Wire([sse_reply([*words("A dot."), *end()])]) as wire:
        agent = start(wire, model)
        image = {"type": "image", "data": PNG, "mimeType": "image/png", "uri": "file:///a/dot.png"}
        new = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})
        # The client knows before it sends one.
        (option,) = [each for each in new["configOptions"] if each["id"] == "model"]
        assert option["_meta"]["cantrip"]["images"] is (model == "gpt-5.4-mini")
        asked = {"sessionId": new["sessionId"], "prompt": [{"type": "text", "text": "What is it?"}, image]}
        assert agent.call("session/prompt", asked)["stopReason"] == "end_turn"
    body = wire.requests[0].body.decode()
    if model == "gpt-5.4-mini":
        assert f"data:image/png;base64,{PNG}" in body
    else:
        assert PNG not in body
        assert "Left out: an image (image/png, 9 bytes) 'dot.png': gpt-of-tomorrow takes no images" in body


@pytest.mark.parametrize("notices", [True, False])
@pytest.mark.parametrize(
    ("model", "lost"),
    [
        (
            "gpt-of-tomorrow",
            "audio or PDF files and other documents. It got the message without: note.wav, a.pdf, b.pdf.",
        ),
        ("gpt-5.4-mini", "audio. It got the message without: note.wav."),
    ],
)
def test_what_a_model_cannot_read_is_told_at_once_and_after_a_reload(
    start: Start, folder: Path, model: str, lost: str, notices: bool
) -> None:
    (folder / "b.pdf").write_bytes(b"%PDF-1.4 linked")
    pdf = base64.b64encode(b"%PDF-1.4 embedded").decode()
    wav = base64.b64encode(b"RIFF....WAVEfmt ").decode()
    prompt = [
        {"type": "text", "text": "What is it?"},
        {"type": "resource", "resource": {"uri": "file:///a/note.wav", "blob": wav, "mimeType": "audio/wav"}},
        {"type": "resource", "resource": {"uri": "file:///a/a.pdf", "blob": pdf, "mimeType": "application/pdf"}},
        {"type": "resource_link", "name": "b.pdf", "uri": (folder / "b.pdf").as_uri()},
        {"type": "resource", "resource": {"uri": "file:///a/t.txt", "blob": "SGVsbG8=", "mimeType": "text/plain"}},
    ]

    def told(since: int) -> list[tuple[str, str]]:
        """What the user sees of notices and answers, in order."""
        updates = [m["params"]["update"] for m in agent.seen[since:] if m.get("method") == "session/update"]
        return [
            (each["sessionUpdate"], each.get("description") or each["content"]["text"])
            for each in updates
            if each["sessionUpdate"] in ("notice", "agent_message_chunk")
        ]

    with Wire([sse_reply([*words("Noise."), *end()])]) as wire:
        agent = start(wire, model, notices=notices)
        new = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})
        (option,) = [each for each in new["configOptions"] if each["id"] == "model"]
        known = model == "gpt-5.4-mini"
        assert option["_meta"]["cantrip"] == {"images": known, "audio": False, "documents": known}
        session = new["sessionId"]
        assert agent.call("session/prompt", {"sessionId": session, "prompt": prompt})["stopReason"] == "end_turn"
        live = told(0)
        kind = "notice" if notices else "agent_message_chunk"
        assert live[0] == (kind, f"{model} cannot read {lost}")
        assert "Noise." in live[1][1]
        agent.call("session/close", {"sessionId": session})
        since = len(agent.seen)
        agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
        assert told(since) == live
    body = wire.requests[0].body.decode()
    assert f"an audio (audio/wav, 16 bytes) 'note.wav': {model} takes no audio" in body


def test_a_picture_that_the_provider_refuses_is_not_sent_again(start: Start, folder: Path) -> None:
    def answer(request: Request) -> Reply:
        if "image_url" in request.body.decode():
            return json_reply({"error": {"message": "Could not process image", "type": "invalid_request_error"}}, 400)
        return sse_reply([*words("Fine."), *end()])

    with Wire(answer) as wire:
        agent = start(wire)
        session = agent.session(folder)
        image = {"type": "image", "data": PNG, "mimeType": "image/png"}
        asked = {"sessionId": session, "prompt": [{"type": "text", "text": "What is it?"}, image]}
        assert "Could not process image" in agent.error("session/prompt", asked)["message"]
        assert agent.prompt(session, "Never mind, go on.")["stopReason"] == "end_turn"
    assert "What is it?" not in wire.requests[-1].body.decode()


def test_the_sdk_is_imported_behind_session_new(folder: Path, tmp_path: Path) -> None:
    log = tmp_path / "imports"
    argv = [sys.executable, "-X", "importtime", "-c", "from cantrip_acp.acp.start import main; main([])"]
    with open(log, "wb") as stderr:
        environment = {"CANTRIP_CRYSTAL": "openai:gpt-5.4-mini", "OPENAI_API_KEY": KEY}
        agent = RawClient(argv=argv, env=environment, stderr=stderr)
    try:
        agent.initialize()
        agent.session(folder)
        deadline = time.monotonic() + 60
        while " openai\n" not in log.read_text():
            assert time.monotonic() < deadline, "the SDK was not imported behind session/new"
            time.sleep(0.05)
    finally:
        agent.process.kill()
        agent.process.communicate()


def test_without_a_key_the_client_is_told_what_to_set(folder: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "r.yaml"
    recipe.write_text("crystal: anthropic:claude-haiku-4-5\ncircle: {gates: [done], wards: [{max_turns: 3}]}\n")
    agent = RawClient("--recipe", str(recipe))
    try:
        agent.initialize()
        error = agent.error("session/new", {"cwd": str(folder), "mcpServers": []})
        assert error["code"] == -32000
        assert "no key for anthropic: set ANTHROPIC_API_KEY" in error["message"]
        assert ".env" in error["message"]
    finally:
        agent.process.kill()
        agent.process.communicate()
