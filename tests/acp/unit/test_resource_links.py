"""Links in a prompt: what they lead to is pinned before the intent, by the gates' rules, bounded, and recorded."""

import base64
import json
import time
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.acp.sessions.prompt.prompt_content import MAX_ATTACHMENT, MAX_TEXT, Target, parse_link
from tests.acp.integration.test_files import BOTH, Editor
from tests.support.acp_client import SOON, RawClient
from tests.support.fixtures.acp import Start

END = {"content": "Seen."}


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("file:///w/a.py", Target("/w/a.py")),
        ("file://localhost/w/a%20b.py#L10-20", Target("/w/a b.py", 10, 20)),
        ("file:///w/a.py#L10", Target("/w/a.py", 10, 10)),
        ("file:///w/a.py#L10:20", Target("/w/a.py", 10, 20)),
        ("file:///w/a.py#L20-L10", Target("/w/a.py", 10, 20)),
        ("file:///w/a.py#L10C5-L20C3", Target("/w/a.py", 10, 20)),
        ("file:///w/a.py#10-20", Target("/w/a.py", 10, 20)),
        ("file:///w/a.py#L0", Target("/w/a.py")),
        ("file:///w/a.md#a-heading", Target("/w/a.md")),
        ("file:///w/a.py?symbol=main#L3:9", Target("/w/a.py", 3, 9, "main")),
        ("file:///w/src/", Target("/w/src/")),
        ("zed:///agent/file?path=%2Fw%2Fa.py", Target("/w/a.py")),
        ("zed:///agent/selection?path=/w/a.py#L1:2", Target("/w/a.py", 1, 2)),
        ("zed:///agent/symbol/main?path=/w/a.py#L1:2", Target("/w/a.py", 1, 2, "main")),
        ("zed:///agent/git-diff?base=main", Target(diff=True, base="main")),
        ("git-diff:?base=v1&path=src", Target(path="src", diff=True, base="v1")),
        ("git-diff:", Target(diff=True)),
        ("/w/a.py#L5", Target("/w/a.py", 5, 5)),
        ("src/a.py", Target("src/a.py")),
        ("file://elsewhere/w/a.py", None),
        ("https://example.org/git-diff?path=/w", None),
        ("zed:///agent/thread/1?name=x", None),
        ("file:///a\0b", None),
        ("file://[", None),
        ("#L1", None),
        ("", None),
        ("file:///" + "x" * 10_000, None),
    ],
)
def test_what_an_address_leads_to(uri: str, expected: Target | None) -> None:
    assert parse_link(uri) == expected


def link(folder: Path | str, name: str, **more: Any) -> dict[str, Any]:
    return {"type": "resource_link", "name": name.partition("#")[0], "uri": f"file://{folder}/{name}", **more}


def pinned(agent: RawClient, session: str, *blocks: dict[str, Any]) -> list[dict[str, Any]]:
    """The context records of a prompt with these blocks."""
    before = len(agent.seen)
    text = {"type": "text", "text": "Look: "}
    result = agent.call("session/prompt", {"sessionId": session, "prompt": [text, *blocks]})
    assert result["stopReason"] == "end_turn", agent.seen[before:]
    loom = Path(result["_meta"]["cantrip"]["loom"]).read_text()
    records = [json.loads(line) for line in loom.splitlines()]
    casts = [record["id"] for record in records if record["type"] == "cast"]
    return [record for record in records if record["type"] == "context" and record["cast_id"] == casts[-1]]


def test_nothing_is_said_to_be_nothing(start: Start, folder: Path) -> None:
    (folder / "none").mkdir()
    (folder / "empty.txt").write_text("")
    agent = start([END])
    records = pinned(agent, agent.session(folder), link(folder, "none"), link(folder, "empty.txt"))
    assert [record["text"] for record in records] == ["[there is nothing in it]"] * 2


def test_files_lines_and_folders_are_pinned(start: Start, folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src/a.py").write_text("one\ntwo\nthree\nfour\n")
    (folder / "odd name.txt").write_bytes("gr\xfc\xdfe\n".encode("latin-1"))
    agent = start([END])
    records = pinned(
        agent, agent.session(folder), link(folder, "src/a.py#L2-3"), link(folder, "src/a.py", description="The program."),
        link(folder, "src/"), link(folder, "odd%20name.txt"), {"type": "resource_link", "name": "web", "uri": "https://example.org/"},
    )  # fmt: skip
    assert [(record["title"], record["text"]) for record in records] == [
        ("src/a.py: lines 2 to 3", "two\nthree\n"), ("src/a.py", "The program.\none\ntwo\nthree\nfour\n"),
        ("src/", "a.py"), ("odd%20name.txt", "grüße\n\n[not UTF-8; shown as Windows-1252, which is a guess]"),
    ]  # fmt: skip
    assert records[0]["uri"] == f"file://{folder}/src/a.py#L2-3"


def test_what_cannot_be_had_is_named(start: Start, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("outside-secret")
    (folder / "way").symlink_to(tmp_path)
    (folder / ".env").write_text("KEY=hidden-secret")
    (folder / "data.zip").write_bytes(b"PK\x03\x04\0")
    agent = start([END])
    records = pinned(
        agent, agent.session(folder), link(folder, "absent.py", title="Gone"), link(tmp_path, "outside.txt"),
        link(folder, "way/outside.txt"), link(folder, "../outside.txt"), link(folder, ".env"), link(folder, "data.zip"),
        link(folder, "way/"), link("", "etc/passwd"),
    )  # fmt: skip
    texts = [record["text"] for record in records]
    expected = [
        "no such file: 'absent.py'",
        *["leads outside"] * 3,
        "is hidden",
        "binary file (ZIP",
        "leads outside",
        "leads outside",
    ]
    assert all(part in text for part, text in zip(expected, texts, strict=True)), texts
    assert texts[0].startswith("Gone\n[no such file")
    assert "secret" not in json.dumps(records)


def test_further_folders_and_unsaved_text_are_within_reach(start: Start, folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "b.txt").write_text("other\n")
    (folder / "a.txt").write_text("saved\n")
    agent = start([END], capabilities=BOTH)
    editor = Editor(agent)
    editor.open = {str(folder / "a.txt"): "typed\nmore\n"}
    session = agent.session(folder, additionalDirectories=[str(other)])
    records = pinned(agent, session, link(folder, "a.txt"), link(folder, "a.txt#L2"), link(other, "b.txt"))
    assert [record["text"] for record in records] == ["typed\nmore\n", "more\n", "other\n"]


def test_sizes_are_bounded_with_a_marker(start: Start, folder: Path) -> None:
    (folder / "long.txt").write_text("a line of text\n" * 20_000)
    for number in range(6):
        (folder / f"{number}.txt").write_text("x" * 60_000)
    agent = start([END, END, END])
    session = agent.session(folder)
    (record,) = pinned(agent, session, link(folder, "long.txt"))
    assert len(record["text"]) < 66_000
    assert "read on with offset" in record["text"][-200:]
    records = pinned(agent, session, *[link(folder, f"{number}.txt") for number in range(6)])
    assert [len(record["text"]) for record in records] == [60_000] * 5 + [len(records[5]["text"])]
    assert "more pinned to it than there is room for" in records[5]["text"]
    long = {"type": "resource", "resource": {"uri": "file:///x", "text": "y" * (MAX_TEXT + 5)}}
    huge = {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"\0" * (MAX_ATTACHMENT + 1)).decode()}
    cut, left_out = pinned(agent, session, long, huge)
    assert cut["text"].endswith("[cut: 5 more characters of this resource are not shown]")
    assert left_out["text"].startswith("[Left out: an image (image/png, 20,971,521 bytes)")


def test_a_picture_behind_a_link_is_attached(start: Start, folder: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n" + b"\0" * 50
    (folder / "shot.png").write_bytes(png)
    (folder / "big.pdf").write_bytes(b"%PDF-1.7" + b"\0" * 6_000_000)
    agent = start([END])
    picture, document = pinned(agent, agent.session(folder), link(folder, "shot.png"), link(folder, "big.pdf"))
    assert (picture["mime"], base64.b64decode(picture["data"])) == ("image/png", png)
    assert "a link attaches at most 5,242,880 bytes" in document["text"]


def test_a_cancel_ends_the_reading(start: Start, folder: Path) -> None:
    (folder / "a.txt").write_text("saved\n")
    agent = start([END], capabilities=BOTH)
    session = agent.session(folder)
    prompt = agent.ask(
        "session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": "x"}, link(folder, "a.txt")]}
    )
    agent.until(lambda m: m.get("method") == "fs/read_text_file")
    began = time.monotonic()
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    assert time.monotonic() - began < SOON
    Editor(agent)
    assert pinned(agent, session, link(folder, "a.txt"))[0]["text"] == "saved\n"
