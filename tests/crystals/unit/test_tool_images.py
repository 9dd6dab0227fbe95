"""Images of tool results, as each provider is sent them."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle
from cantrip_acp.crystals.anthropic.messages import rendered
from cantrip_acp.crystals.catalog.types import ModelInfo
from cantrip_acp.crystals.endpoint import Endpoint
from cantrip_acp.crystals.keys import Secret
from cantrip_acp.crystals.local.crystal import LocalCrystal
from cantrip_acp.crystals.openai.responses_api import OpenAICrystal
from cantrip_acp.types import events
from cantrip_acp.types.messages import Attachment, Message, ToolCall
from tests.support import anthropic_replies as anthropic
from tests.support import google_replies as google
from tests.support import openai_replies as openai
from tests.support.images import png
from tests.support.provider_server import Wire

SEES = ModelInfo(images=True, known=True, max_output=8_000)
BLIND = ModelInfo(known=True, max_output=8_000)


DATA = base64.b64encode(png()).decode()
SAID = f"[image: shot.png, image/png, {len(png())} bytes]"
NOTE = f"[Left out: an image (image/png, {len(png())} bytes) 'shot.png': {{}} takes no images.]"


async def second_request(make: Callable[[Wire], Any], answers: Any, folder: Path) -> Any:
    """The request that follows a call of `read_file` on an image."""
    (folder / "shot.png").write_bytes(png())
    with Wire(answers) as wire:
        circle = Circle(gates=["read_file", "done"], wards=[{"max_turns": 4}], workspace=folder)
        await Cantrip(make(wire), Call(), circle).cast("What is on shot.png?")
        return wire.requests[1].json()


ARGS = '{"path": "shot.png"}'


def claude(info: ModelInfo) -> Callable[[Wire], Any]:
    return lambda wire: anthropic.crystal(wire.url, info=info)


@pytest.mark.parametrize("info", [SEES, BLIND])
async def test_anthropic_takes_them_in_the_result(info: ModelInfo, tmp_path: Path) -> None:
    replies = [anthropic.calls("read_file", {"path": "shot.png"}), anthropic.says()]
    body = await second_request(claude(info), anthropic.checked(replies), tmp_path)
    [result] = body["messages"][-1]["content"]
    assert result["type"] == "tool_result"
    words, image = result["content"]
    assert words == {"type": "text", "text": SAID}
    image.pop("cache_control", None)
    if info is SEES:
        assert image == {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    else:
        assert image == {"type": "text", "text": NOTE.format(anthropic.MODEL)}


def responses(info: ModelInfo) -> Callable[[Wire], Any]:
    options = {"api": "responses"}
    return lambda wire: OpenAICrystal(
        Endpoint("openai", openai.MODEL, wire.url + "/v1", Secret("sk-test-0123456789"), info=info, options=options)
    )


@pytest.mark.parametrize("info", [SEES, BLIND])
async def test_openai_responses_takes_them_in_the_output(info: ModelInfo, tmp_path: Path) -> None:
    replies = openai.strict(
        openai.responds(openai.call_item("call_1", "read_file", ARGS)), openai.responds(openai.message_item("ok"))
    )
    body = await second_request(responses(info), replies, tmp_path)
    output = body["input"][-1]
    assert (output["type"], output["call_id"]) == ("function_call_output", "call_1")
    words, image = output["output"]
    assert words == {"type": "input_text", "text": SAID}
    if info is SEES:
        assert image == {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{DATA}"}
    else:
        assert image == {"type": "input_text", "text": NOTE.format(openai.MODEL)}


@pytest.mark.parametrize("info", [SEES, BLIND])
@pytest.mark.parametrize("model", ["gemini-3-flash", "gemini-2.5-flash"])
async def test_gemini_takes_them_in_the_response_or_behind_it(model: str, info: ModelInfo, tmp_path: Path) -> None:
    replies = google.checked(
        [
            google.stream(
                google.chunk(google.call("read_file", {"path": "shot.png"}, sign=google.SIGN), finish="STOP")
            ),
            google.says("ok"),
        ]
    )
    body = await second_request(lambda wire: google.crystal(wire.url, model, info=info), replies, tmp_path)
    inline = {"inlineData": {"mimeType": "image/png", "data": DATA}}
    answers = [content["parts"] for content in body["contents"][2:]]
    response = answers[0][0]["functionResponse"]
    if info is BLIND:
        assert response["response"] == {"output": f"{SAID}\n{NOTE.format(model)}"}
        assert "parts" not in response
        assert len(answers) == 1
    elif model.startswith("gemini-3"):
        assert response["response"] == {"output": SAID}
        assert response["parts"] == [inline]
        assert len(answers) == 1
    else:
        assert response["response"] == {"output": SAID}
        assert "parts" not in response
        assert answers[1:] == [[{"text": "[Images of the result of read_file]"}, inline]]


@pytest.mark.parametrize("model", ["gemini-3-flash", "gemini-2.5-flash"])
async def test_gemini_reads_a_note_in_place_of_a_gif(model: str, tmp_path: Path) -> None:
    """Gemini takes images, but no GIF."""
    gif = base64.b64decode("R0lGODlhAQABAIAAAP8AAAAAACH5BAAAAAAALAAAAAABAAEAAAICRAEAOw==")
    (tmp_path / "shot.gif").write_bytes(gif)
    call = google.chunk(google.call("read_file", {"path": "shot.gif"}, sign=google.SIGN), finish="STOP")
    with Wire(google.checked([google.stream(call), google.says("ok")])) as wire:
        circle = Circle(gates=["read_file", "done"], wards=[{"max_turns": 4}], workspace=tmp_path)
        await Cantrip(google.crystal(wire.url, model, info=SEES), Call(), circle).cast("What is on shot.gif?")
        sent = wire.requests[1].json()["contents"]
    note = f"[Left out: an image (image/gif, {len(gif)} bytes) 'shot.gif': {model} does not take image/gif.]"
    texts = str(sent)
    assert note in texts
    assert "inlineData" not in texts
    assert base64.b64encode(gif).decode() not in texts


def chat(info: ModelInfo) -> Callable[[Wire], Any]:
    options = {"api": "chat"}
    return lambda wire: OpenAICrystal(
        Endpoint("openai", openai.MODEL, wire.url + "/v1", Secret("sk-test-0123456789"), info=info, options=options)
    )


@pytest.mark.parametrize("info", [SEES, BLIND])
async def test_chat_completions_takes_them_in_the_next_message(info: ModelInfo, tmp_path: Path) -> None:
    """Its tool messages hold text alone."""
    replies = openai.strict(
        openai.chat_stream(openai.call_delta(0, "callid001", "read_file", ARGS), finish="tool_calls"), openai.said("ok")
    )
    body = await second_request(chat(info), replies, tmp_path)
    if info is BLIND:
        assert body["messages"][-1] == {
            "role": "tool",
            "tool_call_id": "callid001",
            "content": f"{SAID}\n{NOTE.format(openai.MODEL)}",
        }
        return
    tool, user = body["messages"][-2:]
    assert tool == {"role": "tool", "tool_call_id": "callid001", "content": SAID}
    assert user == {
        "role": "user",
        "content": [
            {"type": "text", "text": "[Images of the result of read_file]"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}},
        ],
    }


@pytest.mark.parametrize("status", [400, 422])
async def test_an_image_that_the_provider_refuses_is_left_out_with_a_notice(status: int, tmp_path: Path) -> None:
    """Otherwise no later query of the entity would be served."""
    (tmp_path / "shot.png").write_bytes(png())
    replies = [
        anthropic.calls("read_file", {"path": "shot.png"}),
        anthropic.refusal(status, "invalid_request_error", "messages.2.content.0: Could not process image"),
        anthropic.says("ok"),
    ]
    with Wire(anthropic.checked(replies)) as wire:
        circle = Circle(gates=["read_file", "done"], wards=[{"max_turns": 4}], workspace=tmp_path)
        async with Cantrip(claude(SEES)(wire), Call(), circle).cast_stream("go") as stream:
            told = [event.text async for event in stream if isinstance(event, events.Noticed)]
    assert len(told) == 1
    assert "Could not process image" in told[0]
    assert DATA in wire.requests[1].body.decode()
    assert DATA not in wire.requests[2].body.decode()
    assert "the provider refused it.]" in wire.requests[2].body.decode()


async def test_calls_in_text_have_them_beside_the_results(tmp_path: Path) -> None:
    def make(wire: Wire) -> Any:
        info = msgspec.structs.replace(SEES, tools=False)
        return LocalCrystal(Endpoint("vllm", openai.MODEL, wire.url + "/v1", info=info, options={"tools": "text"}))

    fence = f'```tool_call\n{{"name": "read_file", "arguments": {ARGS}}}\n```'
    body = await second_request(make, openai.strict(openai.said(fence), openai.said("ok")), tmp_path)
    image, words = body["messages"][-1]["content"]
    assert image == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
    assert SAID in words["text"]


async def test_an_image_of_a_failed_program_stands_behind_the_result() -> None:
    """Anthropic refuses a failed result that holds more than text."""
    messages = [
        Message("user", "go"),
        Message("assistant", None, (ToolCall("t1", "bash"),)),
        Message(
            "tool", "exit 1", tool_call_id="t1", is_error=True, attachments=(Attachment("image", "image/png", DATA),)
        ),
    ]
    result, beside = rendered(messages, "claude", SEES).messages[-2:]
    assert [part["type"] for part in result["content"][0]["content"]] == ["text"]
    assert [part["type"] for part in beside["content"]] == ["image"]
