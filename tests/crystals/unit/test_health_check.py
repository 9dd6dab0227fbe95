"""Whether a provider answers: asked over a real connection, and what is said of each way to fail."""

import json
import threading

import pytest

from cantrip_acp.crystals.health_check import probe
from cantrip_acp.crystals.keys import Secret
from tests.support.provider_server import Cut, Hold, Reply, Request, Wire, json_reply

KEY = Secret("sk-probe-0123456789abcdefgh")
SIGNED = {
    "anthropic": ("x-api-key", KEY.reveal(), "/v1/models?limit=1"),
    "openai": ("authorization", f"Bearer {KEY.reveal()}", "/models"),
    "google": ("x-goog-api-key", KEY.reveal(), "/v1beta/models?pageSize=1"),
    "openrouter": ("authorization", f"Bearer {KEY.reveal()}", "/key"),
    "local": ("authorization", f"Bearer {KEY.reveal()}", "/models"),
}


@pytest.mark.parametrize("provider", SIGNED)
def test_it_asks_for_what_costs_nothing(provider: str) -> None:
    with Wire([json_reply({"data": []})]) as wire:
        answer = probe(provider, wire.url, KEY, {"X-Team": Secret("blue")})
    assert answer.ok, answer
    assert answer.text == "answers"
    (request,) = wire.requests
    header, value, path = SIGNED[provider]
    assert (request.method, request.path, request.headers[header]) == ("GET", path, value)
    assert request.headers["x-team"] == "blue"


@pytest.mark.parametrize(
    ("reply", "ok", "says"),
    [
        (json_reply({"error": f"no such key: {KEY.reveal()}"}, 401), False, "refuses the key (401): "),
        (json_reply({"error": "no"}, 403), False, "refuses the key (403): "),
        (json_reply({}, 404), True, "answers, but has no /models (404)"),
        (json_reply({"error": "busy"}, 503), False, "answers 503: "),
        (Reply(302, {"location": "http://127.0.0.1:1/elsewhere"}), False, "answers 302"),
        (Reply(raw=[b"garbage\r\n\r\n", Cut()]), False, "cannot be reached: "),
        (Reply(raw=[Cut()]), False, "cannot be reached: "),
    ],
)
def test_each_way_to_fail(reply: Reply, ok: bool, says: str) -> None:
    with Wire([reply]) as wire:
        answer = probe("openai", wire.url, KEY, {})
    assert answer.ok is ok
    assert answer.text.startswith(says), answer
    assert KEY.reveal() not in repr(answer)
    assert len(wire.requests) <= 1


def test_a_silent_server_is_given_up() -> None:
    with Wire([Reply(raw=[Hold()])]) as wire:
        answer = probe("openai", wire.url, KEY, {}, timeout=0.3)
    assert not answer.ok
    assert answer.text == "no answer within 0.3 seconds"


def test_nobody_there() -> None:
    with Wire([]) as wire:
        url = wire.url
    assert "cannot be reached" in probe("ollama", url, None, {}).text
    assert "cannot be reached" in probe("local", "http://no-such-host.invalid/v1", None, {}).text


def test_a_flood_is_not_read_to_its_end() -> None:
    stop = threading.Event()

    def answer(request: Request) -> Reply:
        def flood() -> object:
            while not stop.is_set():
                yield b"x" * 65536

        return Reply(200, {}, stream=flood())  # type: ignore[arg-type]

    with Wire(answer) as wire:
        found = probe("openai", wire.url, KEY, {})
        stop.set()
    assert found.ok
    assert json.dumps(found.text)
