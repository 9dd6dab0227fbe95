"""Secrets at the doors: whatever is written, sent, logged or traced has none, at whatever place of whatever class it was."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from cantrip_acp import Loom
from cantrip_acp.acp.permissions import request
from cantrip_acp.acp.render import event_translator
from cantrip_acp.core.event_hub import ChildHub, EventHub
from cantrip_acp.gates.contract import GateReply
from cantrip_acp.telemetry import tracing
from cantrip_acp.text import redaction
from cantrip_acp.text.logs import logger
from cantrip_acp.text.redaction import MASK, Redactor
from cantrip_acp.types.events import Event
from cantrip_acp.types.records import LoomHeader, Record, RewardRecord, Turn
from tests.support.secret_places import SECRET, with_secret

RECORDS: tuple[Any, ...] = get_args(Record)
OF_ACP = (request.PermissionAsked, event_translator.TerminalOpened, event_translator.Checkpoint)


def events() -> list[Any]:
    def below(cls: Any) -> Iterator[Any]:
        for each in cls.__subclasses__():
            yield each
            yield from below(each)

    return sorted(set(below(Event)), key=lambda cls: str(cls.__name__))


def named(cls: Any) -> str:
    return str(cls.__name__)


@pytest.fixture(params=[True, False], ids=["masked", "control"])
def masks(request: pytest.FixtureRequest) -> bool:
    """Whether the process knows the secret. The control shows that the test would see it."""
    if request.param:
        redaction.shared().add(SECRET)
    return bool(request.param)


def test_every_class_has_places() -> None:
    assert len(events()) > 20
    assert set(OF_ACP) <= set(events())
    for cls in (*RECORDS, *events(), GateReply):
        assert cls in OF_ACP or any(True for _ in with_secret(cls)), f"{cls} has no place for a word"


@pytest.mark.parametrize("kind", ["memory", "file", "database"])
@pytest.mark.parametrize("cls", RECORDS, ids=named)
def test_a_record_is_masked_in_the_loom(cls: Any, kind: str, masks: bool, tmp_path: Path) -> None:
    for number, (place, record) in enumerate(with_secret(cls)):
        path = tmp_path / f"{number}.{'db' if kind == 'database' else 'jsonl'}"
        address = f"sqlite:{path}" if kind == "database" else path
        loom = Loom.memory() if kind == "memory" else Loom.open(address)
        needed = record.turn_id if isinstance(record, RewardRecord) else getattr(record, "parent_id", None)
        if needed is not None:
            loom.append(Turn(needed, None, "k", "e", None))
        seen: list[Any] = []
        loom.observe(lambda _, each, seen=seen: seen.append(each))  # type: ignore[misc]
        written = loom.append(record)
        stored = [each for _, each in loom._store.scan()] if cls is not LoomHeader else [loom.header]
        loom.close()
        kept = path.read_bytes() if kind != "memory" else b""
        told = b"".join(map(msgspec.json.encode, [written, *seen, *stored])) + kept
        assert (SECRET.encode() in told) is not masks, f"{cls.__name__}.{place}"


@pytest.mark.anyio
@pytest.mark.parametrize("child", [False, True], ids=["own", "child"])
@pytest.mark.parametrize("cls", [each for each in events() if each not in OF_ACP], ids=named)
async def test_an_event_is_masked_in_the_hub(cls: Any, child: bool, masks: bool) -> None:
    for place, event in with_secret(cls):
        hub = top = EventHub()
        if child:
            link: Any = type("Link", (), {"call_id": "c", "index": None})
            hub = ChildHub(top, link, "e_child")
        with top.listening() as above, hub.listening() as own:
            await hub.send(event)
            told = msgspec.json.encode([await each.receive() for each in (above, own)], enc_hook=str)
        assert (SECRET.encode() in told) is not masks, f"{cls.__name__}.{place}"


def test_a_reply_is_masked_before_its_changes_are_made(masks: bool) -> None:
    for place, reply in with_secret(GateReply):
        told = msgspec.json.encode(redaction.shared().masked(reply))
        assert (SECRET.encode() in told) is not masks, place


@pytest.mark.parametrize("traceback", [False, True])
def test_a_log_has_no_secret(traceback: bool, masks: bool) -> None:
    log, file = logger("cantrip_acp.tests.doors"), io.StringIO()
    handler = logging.StreamHandler(file)
    log.addHandler(handler)
    try:
        raise ValueError(SECRET)
    except ValueError as error:
        log.error("it failed: %s", "see below" if traceback else error, exc_info=traceback)
    finally:
        log.removeHandler(handler)
    assert (SECRET in file.getvalue()) is not masks
    assert (MASK in file.getvalue()) is masks


def test_a_span_has_no_secret(masks: bool) -> None:
    kept: list[Any] = []

    class Span:
        def set_attributes(self, attributes: Any) -> None:
            kept.append(attributes)

    span = tracing.MaskedSpan(Span())
    span.set_attribute("a", SECRET)
    span.set_attributes({"b": [SECRET], SECRET: 1})
    assert (SECRET in repr(kept)) is not masks


def test_what_is_no_words_stays(masks: bool) -> None:
    """A signed field goes where it holds a secret; base64 and the place of a workspace stay."""
    from cantrip_acp.types.messages import Attachment
    from cantrip_acp.types.records import Utterance

    shared = redaction.shared()
    image = Attachment("image", "image/png", SECRET)
    assert shared.masked(image) is image
    signed = Utterance("a", provider={"signature": "x", "thinking": SECRET})
    assert shared.masked(signed).provider is (msgspec.UNSET if masks else signed.provider)


def test_what_holds_no_secret_is_not_copied() -> None:
    redactor = Redactor([SECRET])
    for value in ("a", {"a": [1]}, Turn("t", None, "k", "e", None), GateReply({"a": 1}), [("a",)]):
        assert redactor.masked(value) is value


@pytest.mark.parametrize(
    "secret", ['quo"ted-secret', "back\\slash-secret", "tab\tsecret-1", "ümlaut-secret", "half-\ud800-secret"]
)
def test_a_secret_with_any_characters_is_found(secret: str) -> None:
    redactor = Redactor([secret])
    assert redactor.masked({"a": [f"x {secret}"]}) == {"a": [f"x {MASK}"]}
    assert redactor.masked(Turn(f"t{secret}", None, "k", "e", None)).id == f"t{MASK}"
