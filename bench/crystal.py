"""A query through a provider's crystal, next to its bare SDK; and what its import costs.

Both ask the same server on loopback, in a process of its own, in turn: the same request of forty turns and eight tools, the
same answer of a hundred pieces, which comes as fast as it can. What we add to a query is the difference of the two in one
round. The rest is the agent's own: a prompt that is sent at once after session/new waits for the SDK's import, which has begun
beside it; one that is sent by a person finds it done.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anyio

from bench.agent import AGENT, connect, workspace
from bench.measure import Row, Table, row
from bench.options import Options
from cantrip_acp.crystals.contract import Delta, Query
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.types.messages import Message, ToolCall, ToolDefinition

TURNS = 40
PIECES = 100
GOAL_MS = 5.0
THINKING_S = 6.0
"""Seconds between session/new and the first prompt of a person."""

_KEY = "sk-bench-0123456789abcdefghij"
_SERVER = "from bench.crystal import serve; serve()"
_MODELS = {
    "anthropic": "claude-opus-4-5",
    "openai (responses)": "gpt-4.1",
    "openai (chat)": "gpt-4.1",
    "google": "gemini-3-flash",
}


def serve() -> None:
    """The server: says its port, answers until its stdin ends."""
    wire, anthropic, openai, google = (
        importlib.import_module(f"tests.support.{name}")
        for name in ("provider_server", "anthropic_replies", "openai_replies", "google_replies")
    )
    words = ["piece "] * PIECES
    messages = [anthropic.start(), *anthropic.text(0, *words), *anthropic.stop()]
    responses = openai.events([openai.message_item("piece ")])
    at = next(n for n, event in enumerate(responses) if b"output_text.delta" in event)
    responses[at : at + 2] = [responses[at]] * PIECES
    chat = openai.chat_stream(*({"content": word} for word in words)).stream
    gemini = [google.chunk({"text": word}) for word in words]
    gemini.append(google.chunk({"text": ""}, finish="STOP", usageMetadata=google.usage(10, PIECES)))
    answers = {"/messages": messages, "/responses": responses, "/completions": chat, "alt=sse": gemini}

    def answer(request: Any) -> Any:
        pieces = next(pieces for end, pieces in answers.items() if request.path.endswith(end))
        return wire.sse_reply(pieces)

    with wire.Wire(answer) as server:
        print(server.port, flush=True)
        sys.stdin.read()


@contextmanager
def _server() -> Iterator[str]:
    with subprocess.Popen([sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.stdin.close()
            process.wait(20)


def _query() -> Query:
    messages = [Message("system", "You are careful. " * 100, kind="call"), Message("user", "Find out.", kind="intent")]
    for n in range(TURNS):
        call = ToolCall(f"call_{n}", "read_file", f'{{"path": "src/file_{n}.py"}}')
        messages.append(Message("assistant", f"I read file {n}.", (call,)))
        messages.append(Message("tool", "x = 1  # of many\n" * 60, tool_call_id=call.id, name="read_file"))
    schema = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
    tools = [ToolDefinition("read_file", "Reads a file.", schema)]
    tools += [ToolDefinition(f"tool_{n}", "Does what it does, carefully. " * 5, schema) for n in range(7)]
    return Query(messages, tuple(tools))


def _crystal(name: str, url: str) -> Any:
    provider = name.split()[0]
    module = importlib.import_module(f"cantrip_acp.crystals.{provider}")
    kind = {"anthropic": "AnthropicCrystal", "openai": "OpenAICrystal", "google": "GoogleCrystal"}[provider]
    options = {"api": name.split()[1].strip("()")} if " " in name else {}
    base = f"{url}/v1" if provider == "openai" else url
    return getattr(module, kind)(Endpoint(provider, _MODELS[name], base, Secret(_KEY), options=options))


Ask = Callable[[], Awaitable[AsyncIterator[Any]]]
Close = Callable[[], Awaitable[None]]


def _bare(name: str, url: str, body: dict[str, Any]) -> tuple[Ask, Close]:
    """A call of the SDK that gives a stream, and nothing around it; and the end of its connections."""
    provider = name.split()[0]
    if provider == "google":
        genai = importlib.import_module("google.genai")
        client = genai.Client(api_key=_KEY, http_options={"base_url": url}).aio
        stream = client.models.generate_content_stream
        config = {"system_instruction": body["systemInstruction"], "tools": body["tools"]}
        return lambda: stream(model=_MODELS[name], contents=body["contents"], config=config), client.aclose
    if provider == "anthropic":
        client = importlib.import_module("anthropic").AsyncAnthropic(api_key=_KEY, base_url=url, max_retries=0)
        return lambda: client.messages.create(**body), client.close
    client = importlib.import_module("openai").AsyncOpenAI(api_key=_KEY, base_url=f"{url}/v1", max_retries=0)
    create = client.responses.create if "responses" in name else client.chat.completions.create
    return lambda: create(**body), client.close


def _first(name: str, event: Any) -> bool:
    """Whether an SDK's event is a piece of text."""
    if name == "anthropic":
        return bool(event.type == "content_block_delta")
    if name == "openai (responses)":
        return bool(event.type == "response.output_text.delta")
    return name == "google" or bool(event.choices and event.choices[0].delta.content)


async def _measure(name: str, url: str, rounds: int, samples: dict[str, list[float]]) -> None:
    query = _query()
    crystal = _crystal(name, url)
    bare, close = _bare(name, url, await _body(name, query))

    async def by_sdk() -> tuple[float, float]:
        began = time.perf_counter()
        first = 0.0
        async for event in await bare():
            if not first and _first(name, event):
                first = time.perf_counter() - began
        return first * 1000, (time.perf_counter() - began) * 1000

    async def by_us() -> tuple[float, float]:
        began = time.perf_counter()
        first = 0.0

        async def emit(delta: Delta) -> None:
            nonlocal first
            first = first or time.perf_counter() - began

        response = await crystal.query(query, emit)
        whole = time.perf_counter() - began
        assert response.content and first
        return first * 1000, whole * 1000

    for number in range(rounds + 3):
        # In turn, and each first in every other round: what one leaves behind for the collector, the other may meet.
        if number % 2:
            sdk, ours = await by_sdk(), await by_us()
        else:
            ours, sdk = await by_us(), await by_sdk()
        if number >= 3:
            samples.setdefault("bare", []).append(sdk[1])
            samples.setdefault("whole", []).append(ours[1] - sdk[1])
            samples.setdefault("first", []).append(ours[0] - sdk[0])
    await crystal.aclose()
    await close()


async def _body(name: str, query: Query) -> dict[str, Any]:
    """The request that the crystal makes, for the SDK to send the same."""
    wire, builders = (
        importlib.import_module(f"tests.support.{each}") for each in ("provider_server", f"{name.split()[0]}_replies")
    )
    reply = {
        "anthropic": lambda: builders.says(),
        "openai (responses)": lambda: builders.responds(builders.message_item("x")),
        "openai (chat)": lambda: builders.said("x"),
        "google": lambda: builders.says("x"),
    }[name]()
    with wire.Wire([reply]) as server:
        crystal = _crystal(name, server.url)

        async def emit(delta: Delta) -> None: ...

        await crystal.query(query, emit)
        await crystal.aclose()
        body: dict[str, Any] = server.requests[0].json()
        return body


def _imports(module: str, rounds: int) -> list[float]:
    """Milliseconds to import an SDK in a fresh interpreter that has ours already."""
    code = f"import cantrip_acp.core.entity, time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    out = []
    for _ in range(rounds):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        out.append(float(done.stdout) * 1000)
    return out


def _prompts(url: str, rounds: int, wait: float) -> list[float]:
    """Milliseconds from a session's first prompt, ``wait`` seconds after session/new, to its first piece."""
    out = []
    for _ in range(rounds):
        with workspace("") as (folder, environment):
            environment |= {
                "CANTRIP_CRYSTAL": "anthropic:claude-opus-4-5",
                "CANTRIP_BASE_URL": url,
                "CANTRIP_API_KEY": _KEY,
            }
            with connect(AGENT, environment, folder) as agent:
                agent.initialize()
                session = agent.session()
                time.sleep(wait)
                began = time.perf_counter()
                request = agent.prompt(session)
                while agent.receive().get("params", {}).get("update", {}).get("sessionUpdate") != "agent_message_chunk":
                    pass
                out.append((time.perf_counter() - began) * 1000)
                agent.reply(request)
    return out


def run(options: Options) -> Table:
    rows: list[Row] = []
    with _server() as url:
        for name in _MODELS:
            samples: dict[str, list[float]] = {}
            anyio.run(_measure, name, url, options.rounds(100), samples)
            rows.append(row(f"{name}: bare SDK, whole answer", samples["bare"], "ms"))
            for kind, words in (("whole", "we add to the whole"), ("first", "we add to the first piece")):
                rows.append(
                    row(
                        f"{name}: {words}",
                        samples[kind],
                        "ms",
                        goal=f"<= {GOAL_MS:g} ms",
                    )
                )
        for module in ("anthropic", "openai", "google.genai"):
            rows.append(row(f"import {module}", _imports(module, options.rounds(5)), "ms"))
        at_once = row("first prompt at once after session/new", _prompts(url, options.rounds(5), 0), "ms")
        later = row(f"first prompt {THINKING_S:g} s later", _prompts(url, options.rounds(5), THINKING_S), "ms")
    rows += [at_once, later]
    return Table("crystal", f"a query of {TURNS} turns answered in {PIECES} pieces, next to the bare SDK", tuple(rows))
