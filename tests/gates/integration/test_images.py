"""Images that gates give: read from files, kept in the loom, counted, folded, shown to readers, exported."""

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cantrip_acp import Call, Cantrip, Circle, ScriptedCrystal
from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.protocol import ClientAbilities
from cantrip_acp.acp.render.event_translator import Translator
from cantrip_acp.acp.render.loaded_session import loaded_updates
from cantrip_acp.core.folding.policy import ATTACHMENT_TOKENS, tokens_of
from cantrip_acp.core.folding.summary import Digest, transcript
from cantrip_acp.core.turn_renderer import MOST_IMAGES
from cantrip_acp.gates.contract import Gate, GateReply
from cantrip_acp.gates.files.file_content import LARGEST_IMAGE, image_attachment
from cantrip_acp.gates.files.read_file import READ_FILE
from cantrip_acp.loom.loom import Loom
from cantrip_acp.training.export.rows import rendered
from cantrip_acp.training.export.verifiers import convert_message
from cantrip_acp.types import events
from cantrip_acp.types.errors import GateError
from cantrip_acp.types.messages import Attachment, Message
from cantrip_acp.types.records import GateRecord
from tests.support.fixtures.gates import call_in, context_of
from tests.support.images import png

DATA = base64.b64encode(png()).decode()
IMAGE = Attachment("image", "image/png", DATA)
EMPTY: dict[str, Any] = {"type": "object", "properties": {}}


# --- read_file


@pytest.mark.parametrize(
    ("data", "mime"),
    [
        (png(), "image/png"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0", "image/jpeg"),
        (b"GIF89a\1\0\1\0\0\0\0", "image/gif"),
        (b"RIFF\x1a\0\0\0WEBPVP8L", "image/webp"),
    ],
)
def test_an_image_is_read_as_one(tmp_path: Path, data: bytes, mime: str) -> None:
    (tmp_path / "a.img").write_bytes(data)
    reply = call_in(context_of(tmp_path), READ_FILE, path="a.img")
    assert reply.attachments == (Attachment("image", mime, base64.b64encode(data).decode(), title="a.img"),)
    assert reply.result == f"[image: a.img, {mime}, {len(data)} bytes]"


def test_a_large_image_is_read_in_pieces(tmp_path: Path) -> None:
    data = png() + bytes(2_000_000)
    (tmp_path / "a.png").write_bytes(data)
    [image] = call_in(context_of(tmp_path), READ_FILE, path="a.png").attachments
    assert base64.b64decode(image.data) == data


def test_one_that_is_too_large_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png() + bytes(LARGEST_IMAGE))
    with pytest.raises(GateError, match="an image of 3,750,"):
        call_in(context_of(tmp_path), READ_FILE, path="a.png")


def test_a_text_that_begins_like_an_image_is_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("GIF89a is a format")
    reply = call_in(context_of(tmp_path), READ_FILE, path="a.txt")
    assert (reply.result, reply.attachments) == ("GIF89a is a format", ())


@pytest.mark.parametrize(
    ("mime", "data"), [("image/jpeg", DATA), ("image/png", "no base64!"), ("image/svg+xml", DATA), ("image/png", "")]
)
def test_a_stranger_s_image_must_be_what_it_says(mime: str, data: str) -> None:
    """A provider that cannot read an image refuses every later request that has it."""
    assert image_attachment("image/png", DATA) == IMAGE
    assert image_attachment(mime, data) is None


# --- a cast


def pictures(count: int = 1, **options: Any) -> Gate:
    def handler(args: Any, context: Any) -> GateReply:
        return GateReply("taken", attachments=tuple(Attachment("image", "image/png", DATA) for _ in range(count)))

    return Gate("shoot", "Takes a picture.", EMPTY, handler, **options)


SHOOT = {"tool_calls": [{"gate": "shoot", "args": {}}]}


def cantrip(gate: Gate, *responses: Any, medium: str = "conversation", window: int | None = None, **more: Any) -> Any:
    crystal = ScriptedCrystal(
        responses or [SHOOT, {"content": "A red dot."}], record_inputs=True, context_window=window
    )
    circle = Circle(medium=medium, gates=[gate, "done"], wards=[{"max_turns": 9}])
    return Cantrip(crystal, Call(), circle, **more), crystal


def images(message: Message) -> int:
    return len(message.attachments)


async def test_the_loom_has_it_once_and_everybody_is_shown_it(tmp_path: Path) -> None:
    path = tmp_path / "a.loom.jsonl"
    made, crystal = cantrip(pictures())
    translator, updates = Translator(ClientAbilities()), list[acp.Update]()
    with Loom.open(path) as loom:
        async with made.invoke(loom=loom) as entity, entity.stream("Look") as stream:
            async for event in stream:
                updates += translator.translate(event)
                if isinstance(event, events.GateFinished):
                    assert event.record.attachments == (IMAGE,)
            past = list(loaded_updates(entity, ClientAbilities()))
    assert path.read_text().count(DATA) == 1
    assert [images(m) for m in crystal.invocations[1].messages if m.role == "tool"] == [1]
    shown = acp.Content(acp.ImageContent(DATA, "image/png"))
    for seen in (updates, past):
        called = [u for u in seen if isinstance(u, acp.ToolCall | acp.ToolCallUpdate) and u.content]
        assert shown in (called[-1].content or []), "the client is shown the image, live and after a reload"
    with Loom.open(path, readonly=True) as loom:
        [turn] = [t for t in loom.turns() if t.observation.results]
    assert turn.observation.results[0].attachments == (IMAGE,)


def test_records_without_images_are_as_before() -> None:
    assert b"attachments" not in msgspec.json.encode(GateRecord("echo", {}, "x"))


async def test_a_gate_that_gives_no_image_fails() -> None:
    gate = Gate("shoot", "", EMPTY, lambda a, c: GateReply("x", attachments=(Attachment("audio", "audio/wav", "aa"),)))
    made, crystal = cantrip(gate)
    await made.cast("Look")
    [answer] = [m for m in crystal.invocations[1].messages if m.role == "tool"]
    assert answer.is_error
    assert "attachments must be images" in (answer.content or "")


async def test_images_count_in_the_context_and_a_fold_drops_them_with_a_note() -> None:
    assert tokens_of(Message("tool", "x", attachments=(IMAGE,))) >= ATTACHMENT_TOKENS
    made, crystal = cantrip(pictures(2), *[SHOOT] * 4, {"content": "ok"}, folding={"trigger_after_turns": 3})
    await made.cast("Look")
    last = crystal.invocations[-1].messages
    [fold] = [m for m in last if m.kind == "fold"]
    assert "shoot({}) ok [2 images left out]" in (fold.content or "")
    assert sum(map(images, last)) < sum(map(images, crystal.invocations[2].messages)) + 2


async def test_images_that_alone_fill_the_window_are_cut() -> None:
    made, crystal = cantrip(pictures(8), SHOOT, {"content": "ok"}, window=8_000)
    await made.cast("Look")
    [answer] = [m for m in crystal.invocations[1].messages if m.role == "tool"]
    assert answer.attachments == ()
    assert answer.content == "taken\n[8 images cut here; the loom has them]"


@pytest.mark.parametrize("ephemeral", [True, "after_use"])
async def test_an_ephemeral_image_is_seen_as_long_as_its_result(ephemeral: Any) -> None:
    made, crystal = cantrip(pictures(ephemeral=ephemeral), SHOOT, SHOOT, {"content": "ok"})
    await made.cast("Look")
    counts = [[images(m) for m in q.messages if m.role == "tool"] for q in crystal.invocations]
    assert counts == ([[], [0], [0, 0]] if ephemeral is True else [[], [1], [0, 1]])


def test_a_summarizer_is_told_that_there_were_images() -> None:
    from cantrip_acp.types.records import Observation, Turn, TurnMetadata, Utterance

    record = GateRecord("shoot", {}, "taken", attachments=(IMAGE,))
    turn = msgspec.convert(
        {
            "id": "t",
            "type": "turn",
            "entity_id": "e",
            "cantrip_id": "c",
            "cast_id": "x",
            "parent_id": None,
            "sequence": 1,
            "role": "crystal",
            "utterance": msgspec.to_builtins(Utterance("hm")),
            "observation": msgspec.to_builtins(Observation((record,))),
            "metadata": msgspec.to_builtins(TurnMetadata()),
        },
        Turn,
    )
    digest = Digest()
    digest.add(1, turn, "Look")
    assert "[1 image left out]" in digest.text()
    assert "-> taken [1 image left out]" in transcript([(1, turn)], 1_000)


@pytest.mark.sandbox
async def test_a_program_s_images_stand_with_its_output() -> None:
    code = {"tool_calls": [{"gate": "python", "args": {"code": "for n in range(3): shoot()"}}]}
    made, crystal = cantrip(pictures(4), code, {"content": "ok"}, medium="code")
    await made.cast("Look")
    [answer] = [m for m in crystal.invocations[1].messages if m.role == "tool"]
    assert images(answer) == MOST_IMAGES
    assert (answer.content or "").endswith("[4 more images are not shown; one program shows 8 at most]")


# --- exports


def test_exports_say_what_they_do_with_it() -> None:
    noted = list[str]()
    message = Message("tool", "taken", tool_call_id="c", name="shoot", attachments=(IMAGE,))
    chat = rendered(message, arguments="text", thinking=None, note=noted.append)
    assert chat["content"] == "taken\n[image: image/png]"
    assert noted == ["an image of a tool's result is exported only as its name"]
    kept = convert_message(message, noted.append)["content"]
    assert kept[0] == {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
