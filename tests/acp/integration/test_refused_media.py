"""What a provider refuses to read (an image, a PDF, a sound) is left out of later queries, and the record says so."""

from __future__ import annotations

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support import anthropic_replies as anthropic
from tests.support import openai_replies as openai
from tests.support.acp_client import InProcessClient
from tests.support.images import png
from tests.support.provider_server import Reply, Request, Wire

CANTRIP = str(Path(sys.executable).parent / "cantrip")
RED, BLUE, GREEN = (png(bytes(color)) for color in ((255, 0, 0), (0, 0, 255), (0, 255, 0)))
PDF = b"%PDF-1.4\n1 0 obj<</Type/Catalog>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF\n"


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Provider:
    """A server that refuses requests which hold certain media, as the real ones do, and else answers by a script.

    ``named``: its errors name the part. ``most``: it refuses the media only in requests with more media than that.
    """

    def __init__(self, kind: str, *refuses: bytes, named: bool = True, most: int = 0, status: int = 400) -> None:
        self.kind, self.named, self.most, self.status = kind, named, most, status
        self.refuses = [coded(each) for each in refuses]
        self.script: list[Reply] = []
        self.refused = 0
        self.bodies: list[str] = []
        """The requests that were accepted."""

    def __call__(self, request: Request) -> Reply:
        body = request.json()
        if self.kind == "anthropic":
            problem = anthropic.problem(request)
        else:
            problem = openai.refused(request)
        assert problem is None, problem
        found = list(places(body["messages" if self.kind != "responses" else "input"]))
        for path, text in found if len(found) > self.most else ():
            if any(data in text for data in self.refuses):
                self.refused += 1
                return self.no(path)
        self.bodies.append(request.body.decode())
        return self.script.pop(0)

    def no(self, path: Sequence[str | int]) -> Reply:
        words = "Could not process image"
        if self.kind == "anthropic":
            where = f"messages.{'.'.join(map(str, path))}.image.source.base64.data: " if self.named else ""
            return anthropic.refusal(self.status, "invalid_request_error", where + words)
        root = "input" if self.kind == "responses" else "messages"
        where = root + "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in path)
        return openai.refusal(self.status, f"Invalid '{where}': {words}" if self.named else words)

    def says(self, words: str = "Good.") -> None:
        self.script.append(
            anthropic.says(words)
            if self.kind == "anthropic"
            else openai.responds(openai.message_item(words))
            if self.kind == "responses"
            else openai.said(words)
        )

    def calls(self, *paths: str) -> None:
        """Read files, all of them in one answer."""
        args = [json.dumps({"path": path}) for path in paths]
        if self.kind == "anthropic":
            uses = [
                anthropic.use(n, "read_file", each, id=f"toolu_{path}"[:40])
                for n, (each, path) in enumerate(zip(args, ["a1", "b2", "c3"], strict=False))
            ]
            self.script.append(anthropic.stream(anthropic.start(), *uses, anthropic.stop("tool_use")))
        elif self.kind == "responses":
            self.script.append(
                openai.responds(
                    *(openai.call_item(f"call_{n}", "read_file", each, f"fc_{n}") for n, each in enumerate(args))
                )
            )
        else:
            deltas = [openai.call_delta(n, f"call_{n}", "read_file", each) for n, each in enumerate(args)]
            self.script.append(openai.chat_stream(*deltas, finish="tool_calls"))


def places(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The parts of a request that are media, with their places."""
    if isinstance(value, list):
        for n, each in enumerate(value):
            yield from places(each, (*path, n))
    elif isinstance(value, dict):
        if value.get("type") in ("image", "document", "image_url", "input_image", "input_file", "file", "input_audio"):
            yield path, json.dumps(value)
            return
        for key in ("content", "output"):
            yield from places(value.get(key), (*path, key))


MODELS = {"anthropic": "claude-haiku-4-5", "responses": "gpt-5.1", "chat": "gpt-5.1"}


class Session:
    def __init__(self, tmp_path: Path, kind: str) -> None:
        self.kind, self.tmp_path, self.folder = kind, tmp_path, tmp_path / "folder"
        self.folder.mkdir()
        for name, data in (("red.png", RED), ("blue.png", BLUE), ("green.png", GREEN)):
            (self.folder / name).write_bytes(data)
        recipe = tmp_path / "r.yaml"
        api = "" if kind == "anthropic" else f", api: {kind}"
        provider = "anthropic" if kind == "anthropic" else "openai"
        recipe.write_text(
            f"crystal: {{provider: {provider}, model: {MODELS[kind]}{api}}}\n"
            "retry: {base_s: 0.01, max_retries: 1}\n"
            "circle: {gates: [done, read_file], wards: [{max_turns: 9}]}\n"
        )
        self.argv = ("--recipe", str(recipe), "--state-dir", str(tmp_path / "state"))

    def start(self, wire: Wire) -> Any:
        agent = InProcessClient(*self.argv)
        agent.initialize()
        where = "anthropic" if self.kind == "anthropic" else "openai"
        url = wire.url if self.kind == "anthropic" else f"{wire.url}/v1"
        agent.call("providers/set", {"providerId": where, "apiType": where, "baseUrl": url, "headers": {"X-Key": "k"}})
        return agent

    def check(self) -> None:
        """The record is what was sent."""
        looms = sorted((self.tmp_path / "state").rglob("*.loom.jsonl"))
        assert looms
        for loom in looms:
            checked = subprocess.run(
                [CANTRIP, "loom", "check", str(loom)], capture_output=True, text=True, timeout=60, check=False
            )
            assert checked.returncode == 0, checked.stdout + checked.stderr
            assert "is not what this version rebuilds" not in checked.stdout


def image(data: bytes) -> dict[str, str]:
    return {"type": "image", "data": coded(data), "mimeType": "image/png"}


def send(agent: Any, session: str, *blocks: dict[str, Any], text: str = "go") -> dict[str, Any]:
    reply: dict[str, Any] = agent.answer(
        agent.ask("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}, *blocks]})
    )
    return reply


def shown(agent: Any) -> str:
    return json.dumps(agent.updates())


@pytest.fixture(params=["anthropic", "responses", "chat"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
def test_an_image_of_a_tool_is_refused_once(tmp_path: Path, kind: str, named: bool) -> None:
    made, server = Session(tmp_path, kind), Provider(kind, BLUE, named=named)
    server.calls("red.png", "blue.png")
    for _ in range(6):
        server.says()
    with Wire(server) as wire:
        agent = made.start(wire)
        session = agent.session(made.folder)
        assert "result" in send(agent, session)
        assert "result" in send(agent, session)
        agent.call("session/close", {"sessionId": session})
        agent.close()
        told = shown(agent)
        first = server.refused
        # The one that was accepted is still there.
        assert [coded(RED) in each and coded(BLUE) not in each for each in server.bodies[1:]] == [True, True]
        assert "blue.png" in told
        assert "attach it again, smaller or in another format" in told
        again = made.start(wire)
        again.call("session/load", {"sessionId": session, "cwd": str(made.folder), "mcpServers": []})
        assert "result" in send(again, session)
        fork = again.call("session/fork", {"sessionId": session, "cwd": str(made.folder), "mcpServers": []})[
            "sessionId"
        ]
        assert "result" in send(again, fork)
        assert "result" in send(again, session)
        again.close()
    assert server.refused == first == 1
    assert all(coded(RED) in each and coded(BLUE) not in each for each in server.bodies[1:])
    assert "the provider refused it" in server.bodies[-1]
    made.check()


def test_an_image_of_the_prompt_is_refused_with_what_to_do(tmp_path: Path, kind: str) -> None:
    made, server = Session(tmp_path, kind), Provider(kind, BLUE)
    for _ in range(3):
        server.says()
    with Wire(server) as wire:
        agent = made.start(wire)
        session = agent.session(made.folder)
        assert "result" in send(agent, session, image(RED))
        failed = send(agent, session, image(BLUE))["error"]
        assert "Could not process image" in json.dumps(failed)
        assert "send the prompt again without" in json.dumps(failed)
        assert "result" in send(agent, session, image(GREEN))
        agent.close()
    assert server.refused == 1
    assert [coded(RED) in each for each in server.bodies] == [True, True]
    made.check()


@pytest.mark.parametrize("named", [True, False], ids=["named", "not named"])
def test_an_old_image_that_becomes_too_much_is_left_out(tmp_path: Path, kind: str, named: bool) -> None:
    """Providers take a large image alone, and refuse it beside many others."""
    made, server = Session(tmp_path, kind), Provider(kind, RED, named=named, most=1)
    for _ in range(4):
        server.says()
    with Wire(server) as wire:
        agent = made.start(wire)
        session = agent.session(made.folder)
        assert "result" in send(agent, session, image(RED))
        assert "result" in send(agent, session, image(BLUE))
        before = server.refused
        assert "result" in send(agent, session, image(GREEN))
        assert "result" in send(agent, session)
        agent.close()
    assert server.refused == before
    assert coded(BLUE) in server.bodies[-1]
    assert coded(GREEN) in server.bodies[-1]
    assert coded(RED) not in server.bodies[-1]
    made.check()


@pytest.mark.parametrize("status", [400, 404, 413, 415, 422])
def test_a_provider_that_refuses_all_images(tmp_path: Path, kind: str, status: int) -> None:
    made, server = Session(tmp_path, kind), Provider(kind, RED, BLUE, GREEN, named=False, status=status)
    server.calls("red.png", "blue.png", "green.png")
    for _ in range(3):
        server.says()
    with Wire(server) as wire:
        agent = made.start(wire)
        session = agent.session(made.folder)
        assert "result" in send(agent, session)
        count = server.refused
        assert "result" in send(agent, session)
        assert server.refused == count
        assert "error" in send(agent, session, image(RED))
        assert "result" in send(agent, session)
        agent.close()
    assert not any(coded(each) in server.bodies[-1] for each in (RED, BLUE, GREEN))
    made.check()


@pytest.mark.parametrize("kind", ["anthropic", "responses"])
def test_a_document_that_the_provider_cannot_read(tmp_path: Path, kind: str) -> None:
    """It was read once, and is refused in a later request."""
    made, server = Session(tmp_path, kind), Provider(kind, PDF, most=1)
    for _ in range(3):
        server.says()
    document = {
        "type": "resource",
        "resource": {"uri": "file:///a.pdf", "mimeType": "application/pdf", "blob": coded(PDF)},
    }
    with Wire(server) as wire:
        agent = made.start(wire)
        session = agent.session(made.folder)
        assert "result" in send(agent, session, document)
        assert "result" in send(agent, session, image(RED))
        assert server.refused == 1
        assert "result" in send(agent, session)
        agent.close()
    assert server.refused == 1
    assert coded(PDF) in server.bodies[0]
    assert coded(PDF) not in server.bodies[-1]
    assert "a.pdf" in shown(agent)
    made.check()


def test_another_refusal_costs_no_image(tmp_path: Path, kind: str) -> None:
    """The whole request is refused, with or without images: the first answer is shown, and nothing is left out."""
    made, server = Session(tmp_path, kind), Provider(kind)
    server.calls("red.png")
    no = server.no(())
    server.script += [no] * 4
    with Wire(server) as wire:
        agent = made.start(wire)
        session = agent.session(made.folder)
        failed = send(agent, session)
        assert re.search("Could not process image", json.dumps(failed))
        server.script.clear()
        server.says()
        assert "result" in send(agent, session)
        agent.close()
    assert coded(RED) in server.bodies[-1]
    made.check()
