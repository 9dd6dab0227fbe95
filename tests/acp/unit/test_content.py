"""What a prompt's blocks become: an intent, context that is read, and attachments that a crystal may look at."""

import base64
from typing import Any

import msgspec
import pytest

from cantrip_acp.acp.protocol import ContentBlock
from cantrip_acp.acp.sessions.prompt.prompt_content import read_prompt
from cantrip_acp.acp.wire.jsonrpc import RpcError

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n\0").decode()


def read(*blocks: dict[str, Any]) -> Any:
    return read_prompt(msgspec.convert(list(blocks), list[ContentBlock]))


TEXT = {"type": "text", "text": "Look."}


def test_a_picture_and_a_sound_are_attached() -> None:
    intent, context = read(
        {"type": "image", "data": PNG, "mimeType": "image/PNG", "uri": "file:///a/shot.png"},
        TEXT,
        {"type": "audio", "data": "AAEC", "mimeType": "audio/wav; codecs=1"},
    )
    assert intent == "Look."
    picture, sound = (block.attachment for block in context)
    assert (picture.kind, picture.mime, picture.data, picture.uri, picture.title) == (
        "image", "image/png", PNG, "file:///a/shot.png", "shot.png",
    )  # fmt: skip
    assert (sound.kind, sound.mime, sound.uri) == ("audio", "audio/wav", None)


@pytest.mark.parametrize(
    ("mime", "kind"),
    [
        ("image/png", "image"),
        ("audio/ogg", "audio"),
        ("application/pdf", "document"),
        (None, "document"),
        ("application/zip", "document"),
    ],
)
def test_what_is_no_text_of_a_resource_is_attached(mime: str | None, kind: str) -> None:
    blob = base64.b64encode(b"\xff\0\xfe").decode()
    intent, (block,) = read(
        {"type": "resource", "resource": {"uri": "file:///a/b.bin", "blob": blob, "mimeType": mime}}, TEXT
    )
    assert intent == "[@b.bin](file:///a/b.bin) Look."
    assert block.attachment.kind == kind
    assert block.attachment.mime == (mime or "application/octet-stream")
    assert block.title == "b.bin"


def test_text_in_a_blob_is_read() -> None:
    blob = base64.b64encode("ö = 1".encode()).decode()
    _, (block,) = read(
        {"type": "resource", "resource": {"uri": "file:///a.py", "blob": blob, "mimeType": "text/x-python"}}, TEXT
    )
    assert (block.text, block.attachment) == ("ö = 1", None)


@pytest.mark.parametrize(
    ("block", "field", "problem"),
    [
        ({"type": "image", "data": "no base 64", "mimeType": "image/png"}, "prompt[0].data", "is not base64"),
        ({"type": "image", "data": "", "mimeType": "image/png"}, "prompt[0].data", "holds no data"),
        ({"type": "audio", "data": "AAEC", "mimeType": "sound"}, "prompt[0].mimeType", "must be a media type"),
        ({"type": "audio", "data": "AAEC", "mimeType": "image/png"}, "prompt[0].mimeType", "a media type of audio"),
        ({"type": "image", "data": "AAEC", "mimeType": "text/html"}, "prompt[0].mimeType", "a media type of image"),
        ({"type": "image", "data": PNG, "mimeType": "image/png\r\nx: y"}, "prompt[0].mimeType", "must be a media type"),
        ({"type": "resource", "resource": {"uri": "a:b", "blob": "%"}}, "prompt[0].resource.blob", "is not base64"),
        ({"type": "resource", "resource": {"uri": "a:b"}}, "prompt[0].resource", "a text or a blob"),
    ],
)
def test_what_cannot_be_read_is_told(block: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(RpcError, match=problem) as caught:
        read(block, TEXT)
    assert caught.value.code == -32602
    assert field in str(caught.value)


def test_a_picture_alone_is_the_question() -> None:
    intent, context = read({"type": "image", "data": PNG, "mimeType": "image/png"})
    assert intent == "See what is attached."
    assert [block.attachment is not None for block in context] == [True]


@pytest.mark.parametrize(
    ("data", "said", "mime", "kind"),
    [
        (b"\x89PNG\r\n\x1a\n\0", "image/jpeg", "image/png", "image"),
        (b"\xff\xd8\xff\xe0", "image/png", "image/jpeg", "image"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "application/octet-stream", "image/webp", "image"),
        (b"%PDF-1.7", "image/png", "application/pdf", "document"),
        (b"<svg/>", "image/svg+xml", "image/svg+xml", "image"),
    ],
)
def test_a_picture_is_what_its_bytes_tell(data: bytes, said: str, mime: str, kind: str) -> None:
    _, (block,) = read({"type": "image", "data": base64.b64encode(data).decode(), "mimeType": said}, TEXT)
    assert (block.attachment.mime, block.attachment.kind) == (mime, kind)


def test_a_file_alone_is_the_question() -> None:
    link = {"type": "resource_link", "name": "a.py", "uri": "file:///a.py"}
    assert read(link)[0] == "[@a.py](file:///a.py)"
    resource = {"type": "resource", "resource": {"uri": "file:///b.py", "text": "b = 1"}}
    assert read(resource, {"type": "text", "text": " "})[0] == "[@b.py](file:///b.py) "


def test_a_name_is_no_place_for_a_text() -> None:
    intent, (link, _) = read(
        {"type": "resource_link", "name": "y" * 1_000_000, "uri": "file:///a", "description": "z" * 1_000_000},
        {"type": "resource", "resource": {"uri": "file:///" + "x" * 60_000, "text": "b = 1"}},
    )
    assert len(intent) < 70_000
    assert (len(link.name), link.uri) == (1_001, "file:///a")
    assert link.description.endswith("more characters of this resource are not shown]")


@pytest.mark.parametrize("uri", [None, "file:///a/shot.png"])
def test_a_picture_that_is_left_out_is_the_question_too(uri: str | None) -> None:
    large = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(20_971_520)).decode()
    intent, (block,) = read({"type": "image", "data": large, "mimeType": "image/png", "uri": uri})
    assert intent == "See what is attached."
    assert block.attachment is None
    assert block.text.startswith("[Left out: an image (image/png, 20,971,528 bytes)")


def test_no_words_and_no_picture_are_no_intent() -> None:
    with pytest.raises(RpcError, match="intent is required"):
        read({"type": "text", "text": " "})
