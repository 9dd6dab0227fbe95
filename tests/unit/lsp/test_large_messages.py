"""Large messages: what is left out of them, and that nothing else is."""

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cantrip_acp.lsp.server import large_messages, wire
from cantrip_acp.lsp.server.large_messages import Skimmer, left_out

PIECES = st.text(alphabet='ab"\\{}[]:,é𝄞\n\x00', max_size=30)


@given(data=st.recursive(PIECES, lambda inner: st.lists(inner) | st.dictionaries(PIECES, inner)), cut=st.integers(1, 9))
def test_a_message_of_short_texts_stays_as_it_is(data: object, cut: int) -> None:
    body = json.dumps(data, ensure_ascii=False).encode()
    skimmer = Skimmer()
    for at in range(0, len(body), cut):
        skimmer.feed(body[at : at + cut])
    assert skimmer.body() == body


@pytest.mark.parametrize("text", ['"' * 40, "\\" * 41, 'a\\"' * 20, "\\" * 40 + '"', "é" * 60, '\\\\"' * 30])
def test_a_long_text_is_left_out(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "LONG", 30)
    message = {"method": "didOpen", "params": {"uri": 'a "b"', "text": text, "version": 1, "after": "\\"}}
    body = json.dumps(message, ensure_ascii=False).encode()
    size = len(json.dumps(text, ensure_ascii=False).encode()) - 2
    for cut in (1, 2, 3, 7, 1000):
        skimmer = Skimmer()
        for at in range(0, len(body), cut):
            skimmer.feed(body[at : at + cut])
        found = json.loads(skimmer.body())
        assert left_out(found["params"].pop("text")) == size
        message_rest = {key: value for key, value in message["params"].items() if key != "text"}
        assert found["params"] == message_rest
    assert left_out(text) == left_out("") == 0


def test_messages_around_a_large_one_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "LONG", 1000)
    bodies = [b'{"a":1}', json.dumps({"text": 'x"\\' * 2000, "n": 7}).encode(), b'{"b":2}']
    stream = b"".join(b"Content-Length: %d\r\n\r\n%s" % (len(body), body) for body in bodies)
    sizes = random.Random(4)
    left = memoryview(stream)

    def read(most: int) -> bytes:
        nonlocal left
        count = min(most, sizes.randint(1, 900))
        found, left = bytes(left[:count]), left[count:]
        return found

    first, large, last = wire.bodies(read)
    assert (first, last) == (bodies[0], bodies[2])
    assert json.loads(large)["n"] == 7
    assert left_out(json.loads(large)["text"]) > 6000


def test_a_message_with_too_much_of_everything_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_messages, "LONG", 1000)
    monkeypatch.setattr(wire, "LIMIT", 5000)
    body = json.dumps(["short"] * 2000).encode()
    stream = iter(
        [b"Content-Length: %d\r\n\r\n" % len(body), *(body[at : at + 500] for at in range(0, len(body), 500))]
    )
    with pytest.raises(ValueError, match="more than 5,000 bytes"):
        list(wire.bodies(lambda most: next(stream, b"")))
