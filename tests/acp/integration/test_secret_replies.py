"""A model that says a secret of this process: wherever in its reply, and wherever the stream cuts it, it comes out nowhere.

Beside the secret it says a marker that is none. The marker comes out, so the test would see the secret.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.support.acp_client import RawClient
from tests.support.command_line import run
from tests.support.openai_replies import DONE, chat_stream, chunk, counts
from tests.support.provider_server import Reply, Request, Wire, json_reply, sse, sse_reply

FORMATS = (
    "trl-sft", "atif", "inspect", "trl-prompts", "trl-kto", "trl-stepwise", "art", "verifiers",
    "openai", "otlp",
)  # fmt: skip
KEY = "said-key-0123456789abcdef"
MARKER = "marker-that-is-no-secret"
SAID = f"{MARKER} {KEY} and more"


def cut(text: str) -> Iterator[str]:
    """The text in pieces that are shorter than the secret."""
    return (text[at : at + 5] for at in range(0, len(text), 5))


def call(name: str, args: Any) -> Reply:
    head = {"index": 0, "id": f"call_{KEY}", "type": "function", "function": {"name": name, "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": part}} for part in cut(json.dumps(args))]
    return chat_stream(*({"tool_calls": [each]} for each in (head, *parts)), finish="tool_calls")


def thought() -> Reply:
    pieces = [chunk({"reasoning_content": part}, check=False) for part in cut(SAID)]
    return sse_reply([*pieces, chunk({"content": "So."}), chunk({}, "stop"), chunk(None, usage=counts()), DONE])


def failing_stream() -> Reply:
    return sse_reply([chunk({"content": "Well"}), sse({"error": {"message": SAID, "type": "t", "code": 400}})])


REPLIES: dict[str, Callable[[], Reply]] = {
    "text": lambda: chat_stream(*({"content": part} for part in cut(SAID))),
    "text in one piece": lambda: chat_stream({"content": SAID}),
    "thinking": thought,
    "arguments": lambda: call("echo", {"text": SAID}),
    "a gate that there is not": lambda: call(f"{MARKER}-{KEY}", {}),
    "a command": lambda: call("bash", {"command": f"echo '{SAID}'; echo {SAID} >&2"}),
    "an error": lambda: json_reply({"error": {"message": SAID, "type": "t", "code": "c"}}, 400),
    "an error of a page": lambda: Reply(400, {"content-type": "text/html"}, f"<html><b>{SAID}</b></html>".encode()),
    "an error in the stream": failing_stream,
}
ERRORS = ("an error", "an error of a page", "an error in the stream")


@pytest.fixture
def traces() -> Iterator[Wire]:
    with Wire(lambda _: json_reply({})) as traces:
        yield traces


def environment(base: Path, traces: Wire) -> dict[str, str]:
    return {
        "CANTRIP_CONFIG_DIR": str(base / "config"),
        "CANTRIP_STATE_DIR": str(base / "state"),
        "OPENAI_API_KEY": KEY,
        "OTEL_EXPORTER_OTLP_ENDPOINT": traces.url,
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT": "true",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
    }


def recipe(base: Path, wire: Wire) -> Path:
    file = base / "r.yaml"
    file.write_text(f"""
crystal: {{provider: openai, model: gpt-4.1-mini, api_key_env: OPENAI_API_KEY, base_url: "{wire.url}/v1", api: chat}}
retry: {{base_s: 0.01, max_retries: 1}}
circle:
  medium: bash
  gates: [done, echo]
  wards: [{{max_turns: 5}}]
""")
    return file


def answering(first: Callable[[], Reply]) -> Callable[[Request], Reply]:
    """The first request gets the reply; every later one too if it is an error, else a word."""
    seen: list[Request] = []

    def answer(request: Request) -> Reply:
        seen.append(request)
        return (
            first()
            if len(seen) == 1 or first in [REPLIES[each] for each in ERRORS]
            else chat_stream({"content": "Ok."})
        )

    return answer


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def joined(messages: Any) -> bytes:
    """The texts under each key of the messages, one after the other: what a client that puts pieces together shows."""
    texts: defaultdict[str, list[str]] = defaultdict(list)

    def gather(key: str, value: Any) -> None:
        if isinstance(value, str):
            texts[key].append(value)
        elif isinstance(value, dict):
            for name, each in value.items():
                gather(name, each)
        elif isinstance(value, list):
            for each in value:
                gather(key, each)

    gather("", messages)
    return "\n".join("".join(each) for each in texts.values()).encode()


def look(told: dict[str, bytes], *controls: str) -> None:
    """None of it has the secret, and each of the controls has the marker."""
    for what, data in told.items():
        assert KEY.encode() not in data, f"{what}: {data[max(0, data.index(KEY.encode()) - 300) :][:500]!r}"
    for what in controls:
        assert MARKER.encode() in b"".join(data for name, data in told.items() if what in name), f"no marker: {what}"


@pytest.mark.sandbox
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("where", REPLIES)
def test_a_secret_in_a_reply_leaves_by_no_door_of_the_agent(
    where: str, version: int, tmp_path: Path, traces: Wire
) -> None:
    (tmp_path / "project").mkdir()
    with Wire(answering(REPLIES[where])) as wire:
        agent = RawClient(
            "--recipe", str(recipe(tmp_path, wire)), "--log-file", str(tmp_path / "agent.log"),
            env=environment(tmp_path, traces),
        )  # fmt: skip
        if version == 1:
            agent.initialize()
        else:
            agent.initialize_v2()
        session = agent.session(tmp_path / "project")
        asked = {"sessionId": session, "prompt": [{"type": "text", "text": "go"}]}
        if version == 1 and where in ERRORS:
            agent.error("session/prompt", asked)
        else:
            agent.call("session/prompt", asked)
        if version == 2:
            agent.until(lambda message: message.get("params", {}).get("update", {}).get("state") == "idle")
        agent.call(
            "_cantrip/context" if version == 1 else "session/list", {"sessionId": session} if version == 1 else {}
        )
        assert agent.process.stdin is not None
        agent.process.stdin.close()
        agent.process.stdin = None
        out, err = agent.process.communicate(timeout=60)
    told = {"the wire": json.dumps(agent.seen, ensure_ascii=False).encode() + out, "stderr": err}
    told |= {f"a trace {n}": request.body for n, request in enumerate(traces.requests)} | files(tmp_path / "state")
    told |= {"the wire, joined": joined(agent.seen), "log": (tmp_path / "agent.log").read_bytes()}
    assert traces.requests
    look(told, "the wire", ".loom.jsonl", "a trace")


@pytest.mark.parametrize("as_json", [False, True], ids=["text", "json"])
@pytest.mark.parametrize("where", REPLIES)
def test_a_secret_in_a_reply_leaves_by_no_door_of_the_command_line(
    where: str, as_json: bool, tmp_path: Path, traces: Wire
) -> None:
    given = environment(tmp_path, traces)
    loom = tmp_path / "state" / "a.loom.jsonl"
    loom.parent.mkdir()
    with Wire(answering(REPLIES[where])) as wire:
        options = ["--json"] if as_json else ["--full"]
        done = run("cast", recipe(tmp_path, wire), "go", "--loom", loom, *options, cwd=tmp_path, **given)
    told = {"printed": done.out.encode() + done.err.encode(), **files(tmp_path / "state")}
    if as_json:
        told["printed, joined"] = joined([json.loads(line) for line in done.out.splitlines()])
    # Another process, which knows the key too, or not: in the loom it is masked already.
    shown = run("loom", "thread", loom, cwd=tmp_path, **(given if as_json else {}))
    told["loom thread"] = shown.out.encode() + shown.err.encode()
    page = tmp_path / "page.html"
    assert run("loom", "view", loom, "--html", page, cwd=tmp_path).status == 0
    told["page"] = page.read_bytes()
    look(told, "printed", "a.loom.jsonl", "page")


@pytest.mark.parametrize("format_", FORMATS)
def test_a_secret_in_a_reply_is_in_no_export(format_: str, tmp_path: Path, traces: Wire) -> None:
    given = environment(tmp_path, traces)
    loom = tmp_path / "a.loom.jsonl"
    said = {"n": 0}

    def answer(request: Request) -> Reply:
        said["n"] += 1
        return REPLIES["arguments" if said["n"] == 1 else "text"]()

    with Wire(answer) as wire:
        assert run("cast", recipe(tmp_path, wire), SAID, "--loom", loom, cwd=tmp_path, **given).status == 0
    assert run("loom", "reward", loom, "--implicit", cwd=tmp_path, **given).status == 0
    out = tmp_path / "out"
    done = run("loom", "export", loom, "--format", format_, "--raw", "-o", out, cwd=tmp_path, **given)
    assert done.status == 0, done.err
    data = out.read_bytes()
    if format_ == "inspect":
        with ZipFile(out) as archive:
            data += b"".join(map(archive.read, archive.namelist()))
    assert KEY.encode() not in data
    assert KEY not in done.out + done.err
    assert MARKER.encode() in data
