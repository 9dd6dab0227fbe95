"""The sweep: a key of its own in every place where one may be, then a look at everything that came out or was kept."""

import base64
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient
from tests.support.command_line import run
from tests.support.provider_server import Piece, Reply, Request, Wire, json_reply, sse, sse_reply

KEY = "sk-sweep-key-0123456789"
PLANTED = {
    "variable": "ghp-sweep-variable-0123456789",
    "dotenv": "sweep-dotenv-0123456789",
    "header": "sweep-header-0123456789",
    "environment header": "sweep-env-header-0123456789",
    "key": KEY,
}
PASSWORD = "sweep-password-0123456789"
LOGIN = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
EVERY = list(PLANTED.values())


def chunk(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    return sse(head | more)


def end(finish: str) -> list[Piece]:
    usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
    return [chunk({}, finish), chunk(None, usage=usage), sse("[DONE]")]


def calls(*wanted: tuple[str, Any]) -> Reply:
    """Gate calls, their arguments in pieces that cut secrets in two."""
    pieces: list[Piece] = []
    for index, (name, args) in enumerate(wanted):
        head = {"index": index, "id": f"call_{index}", "type": "function"}
        pieces.append(chunk({"tool_calls": [head | {"function": {"name": name, "arguments": ""}}]}))
        text = json.dumps(args)
        for start in range(0, len(text), 11):
            part = {"index": index, "function": {"arguments": text[start : start + 11]}}
            pieces.append(chunk({"tool_calls": [part]}))
    return sse_reply([*pieces, *end("tool_calls")])


def speech(text: str) -> Reply:
    """Words in pieces that cut secrets in two."""
    return sse_reply([*(chunk({"content": text[i : i + 7]}) for i in range(0, len(text), 7)), *end("stop")])


def error(status: int, headers: Mapping[str, str] | None = None) -> Reply:
    words = f"your key {' '.join(EVERY)} is not what we like"
    return json_reply({"error": {"message": words, "type": "t", "code": "c"}}, status, headers)


class Place:
    """A machine with a secret in every place, and a provider that repeats them all."""

    def __init__(self, tmp_path: Path, wire: Wire, traces: Wire, key_in: str) -> None:
        self.base = tmp_path
        self.project, self.config, self.state = (tmp_path / n for n in ("project", "config", "state"))
        for folder in (self.project, self.config, self.state):
            folder.mkdir()
        self.log = tmp_path / "agent.log"
        (self.project / "notes.txt").write_text(
            "\n".join([*EVERY, PASSWORD, LOGIN] if key_in == "login" else EVERY) + "\n"
        )
        self.recipe = tmp_path / "r.yaml"
        self.recipe.write_text(f"""
crystal:
  provider: openai
  model: gpt-4.1-mini
  {"" if key_in in ("header", "login") else "api_key_env: OPENAI_API_KEY"}
  base_url: "http://{f"me:{PASSWORD}@" if key_in == "login" else ""}127.0.0.1:{wire.port}/v1"
  headers: {{X-Team: {PLANTED["header"]}{f", Authorization: Bearer {KEY}" if key_in == "header" else ""}}}
retry: {{base_s: 0.01, max_retries: 1}}
circle:
  medium: bash
  gates: [done, read_file, search, echo]
  wards: [{{max_turns: 9}}, {{bash_writable_paths: [workspace]}}]
""")
        self.environment = {
            "CANTRIP_CONFIG_DIR": str(self.config),
            "CANTRIP_STATE_DIR": str(self.state),
            "CANTRIP_HEADERS": f"X-Lane: {PLANTED['environment header']}",
            "GH_TOKEN": PLANTED["variable"],
            "OTEL_EXPORTER_OTLP_ENDPOINT": traces.url,
            "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        dotenv = f"SOME_SECRET={PLANTED['dotenv']}\n"
        if key_in in ("environment", "login"):
            self.environment["OPENAI_API_KEY"] = KEY
        elif key_in == "dotenv":
            dotenv += f"export OPENAI_API_KEY='{KEY}'\n"
        elif key_in == "keyring":
            ring = {
                "PYTHON_KEYRING_BACKEND": "keyrings.alt.file.PlaintextKeyring",
                "XDG_DATA_HOME": str(tmp_path / "ring"),
            }
            self.environment |= ring | {"HOME": str(tmp_path)}
            script = f"import keyring; keyring.set_password('cantrip', 'OPENAI_API_KEY', {KEY!r})"
            subprocess.run(
                [sys.executable, "-c", script], check=True, env={**self.environment, "PATH": "/usr/bin:/bin"}
            )
        (self.config / ".env").write_text(dotenv)
        (self.config / ".env").chmod(0o600)

    def kept(self) -> dict[str, str]:
        """Every file that was written, but for those that held secrets from the beginning."""
        given = {self.recipe, self.config / ".env", self.project / "notes.txt"}
        files = [p for p in self.base.rglob("*") if p.is_file() and p not in given and "ring" not in p.parts]
        return {str(p): p.read_bytes().decode("utf-8", "replace") for p in files}


SCRIPT = [
    lambda: calls(
        ("read_file", {"path": "notes.txt"}),
        ("search", {"pattern": "sweep"}),
        ("echo", {"text": " ".join(EVERY)}),
        ("bash", {"command": f"cat notes.txt; echo '{EVERY[0]}' >&2; cat notes.txt | tr -d '\\n'"}),
        ("bash", {"command": "{ env; cat /proc/*/environ /proc/*/cmdline; set; } > seen.txt 2>&1; wc -c seen.txt"}),
    ),
    lambda: error(429, {"retry-after": "0.01", "x-echo": KEY}),
    lambda: speech(f"They are: {' '.join(EVERY)}. All of them."),
    lambda: error(400),
]


def provider(request: Request, state: list[int]) -> Reply:
    state[0] += 1
    return SCRIPT[(state[0] - 1) % len(SCRIPT)]()


@pytest.fixture
def served() -> Iterator[tuple[Wire, Wire]]:
    state = [0]
    with Wire(lambda request: provider(request, state)) as wire, Wire(lambda _: json_reply({})) as traces:
        yield wire, traces


def holds_none(what: str, text: str) -> None:
    for secret in (*EVERY, PASSWORD, LOGIN):
        assert secret not in text, f"{what} holds {secret}: …{text[max(0, text.index(secret) - 200) :][:400]}"


def look_everywhere(place: Place, wire: Wire, traces: Wire, said: Mapping[str, str]) -> None:
    for what, text in {**said, **place.kept()}.items():
        holds_none(what, text)
    for request in wire.requests:
        if b"my key is" not in request.body:  # what a person says reaches the model as it was said
            holds_none(f"{request.path}'s body", request.body.decode())
        holds_none("the path", request.path)
        assert request.headers["x-team"] == PLANTED["header"]
        assert "x-lane" not in request.headers, "a recipe's base_url gets no header of the environment"
    assert traces.requests, "no trace was exported"
    for request in traces.requests:
        holds_none("a trace", request.body.decode("utf-8", "replace"))
    # What ran in the sandbox saw none of it in its environment or in any process.
    assert "PATH" in (place.project / "seen.txt").read_text(errors="replace")


@pytest.mark.sandbox
@pytest.mark.parametrize("key_in", ["environment", "dotenv", "keyring", "header", "login"])
def test_an_editors_session(tmp_path: Path, served: tuple[Wire, Wire], key_in: str) -> None:
    wire, traces = served
    place = Place(tmp_path, wire, traces, key_in)
    agent = RawClient("--recipe", str(place.recipe), "--log-file", str(place.log), env=place.environment)
    agent.initialize()
    session = agent.session(place.project)
    assert agent.prompt(session)["stopReason"] == "end_turn"
    asked = {"sessionId": session, "prompt": [{"type": "text", "text": f"my key is {KEY}"}]}
    failed = agent.error("session/prompt", asked)
    assert failed["code"] == -32603
    assert agent.process.stdin is not None
    agent.process.stdin.close()
    agent.process.stdin = None
    out, err = agent.process.communicate(timeout=60)
    said = {"stdout": json.dumps(agent.seen) + out.decode(), "stderr": err.decode()}
    assert "[redacted]" in said["stdout"]
    look_everywhere(place, wire, traces, said)
    authorization = {request.headers["authorization"] for request in wire.requests}
    assert authorization == {f"Basic {LOGIN}" if key_in == "login" else f"Bearer {KEY}"}


@pytest.mark.sandbox
@pytest.mark.parametrize("options", [[], ["--json"]], ids=["text", "json"])
def test_the_command_line(tmp_path: Path, served: tuple[Wire, Wire], options: list[str]) -> None:
    wire, traces = served
    place = Place(tmp_path, wire, traces, "environment")
    said = {}
    for attempt in (1, 2):
        done = run(
            "cast",
            place.recipe,
            f"my key is {KEY}",
            "--cwd",
            place.project,
            *options,
            cwd=tmp_path,
            **place.environment,
        )
        assert done.status == (0 if attempt == 1 else 1), done.err
        said |= {f"stdout {attempt}": done.out, f"stderr {attempt}": done.err}
    shown = run("loom", "thread", next((place.state / "looms").iterdir()), cwd=tmp_path, **place.environment)
    said["loom thread"] = shown.out + shown.err
    look_everywhere(place, wire, traces, said)
