"""How long from a cancel to the reply: busy command, streaming model, pending permission, tree of children.

Each by `session/cancel` and by `$/cancel_request` in turns, in one agent. The model streams over HTTP from a server on
this machine; the command ignores every polite signal and burns the processor while it is cancelled.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.agent import AGENT, Connection, connect, workspace
from bench.measure import Row, Table, row
from bench.options import Options

ROUNDS = 30
ASK = "session/request_permission"
BUSY = "trap '' TERM INT HUP; echo started; (while :; do :; done) & setsid sleep 1000 & while :; do :; done"


class _Stream(BaseHTTPRequestHandler):
    """A chat completion that never ends: a word each 10 ms."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        delta = {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
        event = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", **delta}
        with contextlib.suppress(OSError):
            while True:
                self.wfile.write(b"data: " + json.dumps(event).encode() + b"\n\n")
                self.wfile.flush()
                time.sleep(0.01)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def _model() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Stream)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()


def _cases(url: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    """Name, recipe without its name, and the words of a message that says that it is under way."""
    shell = {"medium": "bash", "gates": ["done", "call_agent_batch"], "wards": [{"max_turns": 9}, {"max_depth": 1}]}
    talk = {"medium": "conversation", "gates": ["done", "write_file"], "wards": [{"max_turns": 9}]}
    busy = {"bash": BUSY, "repeat": True}
    family = {"bash": "call_agent_batch one two three", "when": "go", "repeat": True}
    write = {"repeat": True, "tool_calls": [{"gate": "write_file", "args": {"path": "a", "content": "b"}}]}
    yield "busy command", {"crystal": {"provider": "scripted", "responses": [busy]}, "circle": shell}, "started"
    yield (
        "streaming model",
        {"crystal": {"provider": "local", "model": "m", "base_url": url}, "circle": talk},
        "agent_message_chunk",
    )
    yield "pending permission", {"crystal": {"provider": "scripted", "responses": [write]}, "circle": talk}, ASK
    yield (
        "three children, each in a busy command",
        {"crystal": {"provider": "scripted", "responses": [family, busy]}, "circle": shell},
        "Child 3** (running)",
    )


def _cancels(
    recipe: Mapping[str, Any], sign: str, folder: Path, environment: Mapping[str, str], rounds: int
) -> Iterator[float]:
    """Seconds from each cancel to its reply."""
    path = folder.parent / "cancel.cantrip.yaml"
    # JSON is YAML.
    path.write_text(json.dumps({"name": "cancel", **recipe}))
    with connect([*AGENT, "--recipe", str(path)], environment, folder) as agent:
        agent.initialize()
        session = agent.session()
        if sign != ASK:
            agent.reply(agent.send("session/set_mode", {"sessionId": session, "modeId": "trusted"}))
        # The first one also loads what only prompts need.
        for number in range(rounds + 1):
            prompt = agent.prompt(session)
            _await(agent, sign, prompt)
            # Busy by now, and not only begun.
            time.sleep(0.05)
            began = time.perf_counter()
            if number % 2:
                agent.tell("$/cancel_request", {"requestId": prompt})
            else:
                agent.tell("session/cancel", {"sessionId": session})
            message = _await(agent, None, prompt)
            took = time.perf_counter() - began
            reason = message.get("result", {}).get("stopReason")
            if reason != "cancelled" and message.get("error", {}).get("code") != -32800:
                raise RuntimeError(f"a cancelled prompt was answered otherwise: {message}")
            if number:
                yield took


def _await(agent: Connection, sign: str | None, prompt: int) -> dict[str, Any]:
    """The first message that shows ``sign``, or the reply."""
    while True:
        line = agent.output.readline()
        if not line:
            raise EOFError("the agent is gone (its stderr is above)")
        message: dict[str, Any] = json.loads(line)
        if message.get("id") == prompt and "method" not in message:
            if sign is not None:
                raise RuntimeError(f"it ended before it was cancelled: {message}")
            return message
        if sign is not None and sign in line.decode():
            return message


def run(options: Options) -> Table:
    rows: list[Row] = []
    with _model() as url, workspace("responses: [{content: hello, repeat: true}]\n") as (folder, environment):
        for name, recipe, sign in _cases(url):
            samples = [1000 * each for each in _cancels(recipe, sign, folder, environment, options.rounds(ROUNDS))]
            worst = row(
                name,
                samples,
                "ms",
                baseline=rows[0] if rows else None,
                goal="p95 <= 200 ms",
            )
            rows.append(worst)
    return Table("cancel", "from a cancel to the reply of the prompt that it ends", tuple(rows))
