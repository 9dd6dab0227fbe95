"""Secrets: never in a repr, a pickle, a loom or an event; and what is merely data stays as it is."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import pickle
import pkgutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import cantrip_acp
from cantrip_acp import Gate, GateReply, Loom
from cantrip_acp.core.history.replayed_context import ReplayedContext
from cantrip_acp.loom.query.outline import Outline
from cantrip_acp.text.redaction import MASK, Pieces, Redactor, beginning, ending, looks_secret, shared
from cantrip_acp.text.sanitize import clean_line
from cantrip_acp.types.events import Text, as_json
from cantrip_acp.types.records import Diff
from tests.support.fixtures.core import done, echo, make

SECRET = "s3cr3t-value-0123456789"


def modules() -> list[str]:
    # The trainer imports torch, which takes seconds and need not be installed. An adapter imports the library that it is for.
    skip = (
        "inside",
        "embedded.model_server",
        "demo.project",
        "__main__",
        "training.trainer",
        "training.adapters",
        "training.verifiers",
    )
    return [
        m.name
        for m in pkgutil.walk_packages(cantrip_acp.__path__, "cantrip_acp.")
        if not any(part in m.name for part in skip)
    ]


def fields(cls: type) -> dict[str, Any]:
    """Field name to whether its value is in the class's repr."""
    if dataclasses.is_dataclass(cls):
        return {f.name: f.repr for f in dataclasses.fields(cls)}
    if issubclass(cls, msgspec.Struct):
        # One with a repr of its own names what it shows there.
        return dict.fromkeys(cls.__struct_fields__, "__repr__" not in vars(cls))
    model = getattr(cls, "model_fields", None)
    if isinstance(model, dict):
        return {n: f.repr and "Secret" not in str(f.annotation) for n, f in model.items()}
    return {}


def test_no_class_shows_a_secret_field() -> None:
    seen = 0
    for name in modules():
        for _, cls in inspect.getmembers(importlib.import_module(name), inspect.isclass):
            if cls.__module__ != name or name.startswith("cantrip_acp.sandbox."):
                # What a sandbox's policy holds is what hostile code is shown: tests/sandbox see to it that it has no secret.
                continue
            for field, shown in fields(cls).items():
                seen += 1
                holds = looks_secret(field) or field in ("headers", "dependencies", "env", "environment")
                # Counts of tokens, names of variables, places of keys in a file, and ways to sign in are no secrets.
                plain = (
                    field.endswith(("_tokens", "_env", "_key_env"))
                    or "token" in field
                    or field in ("key", "thought_key", "auth_terminal", "auth", "at_key", "key_span")
                    or (field == "env" and cls.__name__ in ("Command", "Capability"))
                )
                assert not (holds and shown and not plain), f"{name}.{cls.__name__}.{field} is shown in its repr"
    assert seen > 100


def test_a_gate_hides_what_it_is_bound_to() -> None:
    gate = Gate.of(lambda *, api_key: "x", name="probe").bind(api_key=SECRET)
    assert SECRET not in repr(gate)
    assert SECRET not in json.dumps(gate.record())


def test_a_redactor_hides_itself() -> None:
    redactor = Redactor([SECRET])
    assert SECRET not in repr(redactor)
    with pytest.raises(TypeError):
        pickle.dumps(redactor)


def test_what_is_masked() -> None:
    redactor = Redactor([SECRET, "short", SECRET + "-longer"])
    assert redactor.text(f"a {SECRET}-longer b {SECRET} short") == f"a {MASK} b {MASK} short"
    assert redactor.masked({SECRET: [SECRET, 1, None, (SECRET,)]}) == {MASK: [MASK, 1, None, (MASK,)]}
    key = "sk-" + "a1B2" * 8
    assert redactor.text(key) == key, "a file that merely holds a key-like text is seen as it is"
    assert MASK in redactor.diagnostic(f"401 for {key}")
    assert MASK in redactor.diagnostic("Authorization: Bearer abcdefghijklmnop1234")


@pytest.mark.parametrize("at", range(0, 60, 3))
def test_a_cut_leaves_no_half_of_a_secret(at: int) -> None:
    """Whatever is shortened before a door sees it: each half of a secret would pass."""
    shared().add(SECRET)
    text = f"{'x' * at}{SECRET}{'y' * (60 - at)}"
    for most in (30, 31, 45):
        for shown in (
            beginning(text, most),
            ending(text, most),
            clean_line(text, most),
        ):
            rest = str(shown).replace(SECRET, "").replace(MASK, "")
            assert SECRET[:3] not in rest
            assert SECRET[-3:] not in rest


@pytest.mark.parametrize("secret", ['pass"word-\\1', "pässwort-1", "line\nbreak-1", "a+b/c=?&d e"])
def test_a_secret_is_masked_as_json_and_urls_write_it(secret: str) -> None:
    redactor = Redactor([secret])
    forms = (
        json.dumps({"key": secret}),
        json.dumps({"key": secret}, ensure_ascii=False),
        f"?key={quote(secret, safe='')}",
    )
    for text in forms:
        assert redactor.text(text) in (f'{{"key": "{MASK}"}}', f"?key={MASK}")
        # As the arguments of a call are in a record.
        assert redactor.masked({"arguments": text}) == {"arguments": redactor.text(text)}


@pytest.mark.parametrize(
    "name", ["OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GH_TOKEN", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY"]
)
def test_names_that_hold_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["PATH", "KEYBOARD", "MONKEY", "HOME", "TOKENIZERS"])
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


@pytest.mark.anyio
async def test_a_diff_is_masked_too() -> None:
    def edit() -> GateReply:
        return GateReply("ok", diffs=(Diff("/f", f"old {SECRET}", f"new {SECRET}"), Diff("/g", None, SECRET)))

    entity = make({"tool_calls": [{"gate": "edit"}]}, done(), gates=["done", Gate.of(edit)]).invoke()
    shared().add(SECRET)
    async with entity.stream("go") as stream:
        events = [as_json(e) async for e in stream]
    assert SECRET not in json.dumps(events)
    (shown,) = [e["diffs"] for e in events if e["event"] == "gate_result" and e["gate"] == "edit"]
    assert shown[0]["old_text"] == f"old {MASK}"


@pytest.mark.anyio
async def test_a_key_of_the_environment_reaches_no_loom_and_no_event(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    cantrip = make(echo(f"it is {SECRET}", content=f"I saw {SECRET}"), done(SECRET), loom=Loom.open(path))
    entity = cantrip.invoke()
    shared().add(SECRET)
    async with entity.stream(f"Use {SECRET}.") as stream:
        events = [as_json(e) async for e in stream]
    assert SECRET not in path.read_text()
    assert SECRET not in json.dumps(events)
    assert MASK in path.read_text()


@pytest.mark.anyio
@pytest.mark.parametrize("where", ["gate", "id", "both"])
async def test_a_key_in_the_name_or_the_id_of_a_call_is_masked(where: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    named = {"gate": f"no{SECRET}"} if where != "id" else {"gate": "echo", "args": {"text": "x"}}
    calls = [{**named, "id": f"call_{SECRET}"}] if where != "gate" else [named]
    cantrip = make(
        {"content": "I try.", "tool_calls": calls}, done("over"), loom=Loom.open(path), gates=["done", "echo"]
    )
    entity = cantrip.invoke()
    shared().add(SECRET)
    async with entity.stream("go") as stream:
        events = [as_json(e) async for e in stream]
    assert SECRET not in path.read_text()
    assert SECRET not in json.dumps(events)
    assert MASK in path.read_text()
    assert events[-1]["result"] == "over"
    # What the model read next is what the loom's readers rebuild.
    view = ReplayedContext(cantrip.loom, Outline(cantrip.loom))
    read = [window for leaf in view.outline.ends for window in view.windows(leaf)]
    assert sum(len(window.uttered) for window in read) == 2
    assert not view.differing


@given(
    st.lists(st.text("ab", min_size=8, max_size=12), min_size=1, max_size=3),
    st.lists(st.text("abx ", max_size=9), max_size=12),
)
def test_a_secret_in_pieces_is_masked_as_in_one(secrets: list[str], pieces: list[str]) -> None:
    redactor = Redactor(secrets)
    stream = Pieces(redactor)
    out = [redactor.masked(stream.feed(piece)) for piece in pieces]
    assert "".join([*out, redactor.masked(stream.end())]) == redactor.text("".join(pieces))


def test_what_is_no_secrets_beginning_is_not_held_back() -> None:
    stream = Pieces(Redactor([SECRET]))
    assert [stream.feed(p) for p in ("Hello", " there", " s", "3cr", "et", "ly")] == [
        "Hello",
        " there",
        " ",
        "",
        "s3cret",
        "ly",
    ]


async def test_no_piece_of_a_stream_gives_a_secret_away(monkeypatch: pytest.MonkeyPatch) -> None:
    shared().add(SECRET)
    halves = [f"It is {SECRET[:9]}", SECRET[9:], " indeed"]
    cantrip = make({"content": "".join(halves), "chunks": halves}, {"thinking": f"a {SECRET}", "content": SECRET[:9]})
    for _ in range(2):
        async with cantrip.cast_stream("go") as stream:
            told = json.dumps([as_json(event) async for event in stream])
        assert SECRET not in told
    async with make({"content": "".join(halves), "chunks": halves}).cast_stream("go") as stream:
        texts = [event.delta async for event in stream if isinstance(event, Text)]
    assert "".join(texts) == f"It is {MASK} indeed"


def test_what_is_said_of_a_reward_gives_no_secret_away() -> None:
    shared().add(SECRET)
    cantrip = make(done())
    cantrip.cast_sync("go")
    leaf = cantrip.loom.leaves()[0]
    cantrip.loom.annotate_reward(leaf, 1, by=f"me {SECRET}", note=f"it said {SECRET}")
    (record,) = cantrip.loom.assigned()
    assert (record.by, record.note) == (f"me {MASK}", f"it said {MASK}")
