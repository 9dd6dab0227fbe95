"""Looms in the editor: outline, folds, hover, lenses, links, damage, growth, and pages for a tree."""

import json
import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp import Loom
from cantrip_acp.types.records import CastRecord
from tests.support.lsp_client import Client
from tests.support.lsp_looms import family, large


@pytest.fixture
def opened(client: Client) -> tuple[Client, str]:
    family(client.root / "a.loom.jsonl")
    return client, client.open("a.loom.jsonl", "the editor's text does not count")


def about(uri: str, **more: Any) -> dict[str, Any]:
    return {"textDocument": {"uri": uri}, **more}


def lines(found: list[dict[str, Any]]) -> list[int]:
    return [each["range"]["start"]["line"] for each in found]


def number(path: Path, words: str) -> int:
    """The line that holds the words."""
    return next(n for n, line in enumerate(path.read_text().splitlines()) if words in line)


def heard(client: Client, method: str, fits: Callable[[dict], bool] = lambda params: True) -> dict[str, Any]:
    """A notification that fits, once it has come."""
    end = time.monotonic() + 60
    while True:
        for message in client.kept:
            if message["method"] == method and fits(message.get("params")):
                return message.get("params")
        client._next(end - time.monotonic())


def test_outline_folds_and_lenses(opened: tuple[Client, str]) -> None:
    client, uri = opened
    path = client.root / "a.loom.jsonl"
    header, cast = client.ask("textDocument/documentSymbol", about(uri))
    assert header["detail"] == "5 turns · 2 casts"
    assert (cast["name"], cast["detail"]) == ("Count the words.", "done · 2 turns · 360 tokens · $0.0030")
    first, second = cast["children"]
    assert (first["name"], second["name"]) == ("1 wc -w notes.txt", "2 Seven.")
    assert second["detail"] == "1.5 s · 120 tokens · $0.0010 · done"
    (child,) = first["children"]
    assert (child["name"], [t["name"] for t in child["children"]]) == ("Help.", ["1 Helped."])
    folds = {(f["startLine"], f["endLine"]) for f in client.ask("textDocument/foldingRange", about(uri))}
    start, end = number(path, '"c_one","event":"start"'), number(path, '"c_one","event":"end"')
    assert (start, end) in folds
    assert (number(path, '"id":"t_one"'), number(path, '"c_two","event":"end"')) in folds  # a turn with its child
    lenses = client.ask("textDocument/codeLens", about(uri))
    at = {(n, lens["command"]["title"]): lens["command"] for n, lens in zip(lines(lenses), lenses, strict=True)}
    two = number(path, '"id":"t_two"')
    for title, command in (("Fork here", "fork"), ("Reward", "reward"), ("Open in viewer", "view")):
        found = at[two, title]
        assert (found["command"], found["arguments"]) == (f"cantrip.loom.{command}", [{"uri": uri, "turn": "t_two"}])
    assert at[start, "Replay"]["arguments"] == at[start, "Export"]["arguments"] == [{"uri": uri, "turn": "t_two"}]
    assert (0, "Open in viewer (3 turns · 2 casts)") in at


def test_hover_and_links(opened: tuple[Client, str]) -> None:
    client, uri = opened
    path = client.root / "a.loom.jsonl"

    def hover(line: int, column: int = 1) -> str:
        found = client.ask("textDocument/hover", client.at(uri, line, column))
        return found["contents"]["value"] if found else ""

    one, child = number(path, '"id":"t_one"'), number(path, '"c_two","event":"start"')
    told = hover(one)
    for words in ("**Turn 1** `t_one`", "120 tokens", "$0.0010", "Count the words.", "wc -w notes.txt", "1 child cast"):
        assert words in told
    assert "7 notes.txt" in hover(number(path, '"id":"t_two"'))
    assert "spawned by turn `t_one`" in hover(child)
    column = path.read_text().splitlines()[child].index('"t_one"') + 2
    assert "**Turn 1** `t_one`" in hover(child, column)  # of an id, what it names

    def defined(line: int, column: int = 1) -> list[int]:
        return lines(client.ask("textDocument/definition", client.at(uri, line, column)))

    assert defined(child) == defined(child, column) == [one]
    assert defined(number(path, '"id":"t_two"')) == [one]
    spot = {**client.at(uri, one, 1), "context": {"includeDeclaration": False}}
    below = number(path, '"e_two","cast_id":null')
    assert lines(client.ask("textDocument/references", spot)) == [below, child, number(path, '"id":"t_two"')]
    (link,) = client.ask("textDocument/documentLink", about(uri))
    assert (link["target"], link["range"]["start"]) == (f"{uri}#L{one + 1}", {"line": child, "character": column - 1})


def test_damage_is_told_and_what_to_do(client: Client) -> None:
    path = family(client.root / "a.loom.jsonl")
    parts = path.read_bytes().splitlines(keepends=True)
    gone = next(n for n, part in enumerate(parts) if b'"id":"t_one"' in part)
    parts[gone] = b'{"type":"turn","id":"t_o\n'
    path.write_bytes(b"".join(parts) + b"\n" + parts[-1][:40])
    uri = client.open("a.loom.jsonl", "")
    found = {(d["code"], d["range"]["start"]["line"]): d["message"] for d in client.diagnostics(uri, None)}
    assert "restore the line from a copy" in found["damaged-line", gone]
    assert ("empty-line", len(parts)) in found
    assert "sets it aside" in found["torn-line", len(parts) + 1]
    assert sum(code == "lost-parent" for code, _ in found) == 2
    hover = client.ask("textDocument/hover", client.at(uri, gone, 1))
    assert "not a loom record" in hover["contents"]["value"]
    # What can be read is still shown.
    shown = client.ask("textDocument/documentSymbol", about(uri))
    assert "Count the words." in [symbol["name"] for symbol in shown]
    other = client.root / "b.loom.jsonl"
    other.write_text("this is\nsomething else\n")
    (said,) = client.diagnostics(client.open("b.loom.jsonl", ""), None)
    assert "no record can be read" in said["message"]
    (missing,) = client.diagnostics(client.open("c.loom.jsonl", "x"), None)
    assert (missing["code"], "cannot open loom" in missing["message"]) == ("no-loom", True)
    assert client.ask("textDocument/documentSymbol", about(client.uri("c.loom.jsonl"))) is None
    client.tell("textDocument/didClose", about(uri))
    assert heard(client, "textDocument/publishDiagnostics", lambda p: p["uri"] == uri and not p["diagnostics"])


def test_hostile_contents_stay_text(client: Client) -> None:
    path = family(client.root / "a.loom.jsonl")
    evil = "```\n[x](command:evil) <script>alert(1)</script> ![i](http://evil.example/x)\x1b]0;t\x07\u202e\u2028"
    with path.open("a") as file:
        for name, said in (("t_evil", evil), ("t_long", "x" * 10_000_000)):
            body = {"type": "turn", "id": name, "parent_id": "t_two", "cantrip_id": "cantrip_1", "entity_id": evil}
            file.write(
                json.dumps({**body, "cast_id": "c_" + evil, "sequence": 3, "utterance": {"content": said}}) + "\n"
            )
        file.write(json.dumps({"type": "cast", "id": "c_" + evil, "event": "start", "entity_id": evil}) + "\n")
        file.write('{"type":"turn","id":"\\ud800"}\n' + "[" * 100_000 + "\n")
    uri = client.open("a.loom.jsonl", "")
    line = number(path, '"id": "t_evil"')
    told = client.ask("textDocument/hover", client.at(uri, line, 2))["contents"]["value"]
    assert "\x1b" not in told
    assert "\u202e" not in told
    begin = told.index("Said\n\n````text\n") + len("Said\n\n````text\n")
    assert "[x](command:evil)" in told[begin : told.index("\n````", begin)]
    assert "command:evil" not in told[:begin].split("Said")[0]
    symbols = json.dumps(client.ask("textDocument/documentSymbol", about(uri)), ensure_ascii=False)
    assert "\x1b" not in symbols
    assert "\u202e" not in symbols
    assert len(symbols) < 20_000
    long = client.ask("textDocument/hover", client.at(uri, line + 1, 9_000_000))["contents"]["value"]
    assert "9,998,800 characters more" in long
    assert len(client.diagnostics(uri, None)) >= 2


def test_a_loom_is_followed_while_it_grows(opened: tuple[Client, str]) -> None:
    client, uri = opened
    path = client.root / "a.loom.jsonl"
    assert client.ask("cantrip/loom/turns", {"uri": uri})["total"] == 5
    body = {"type": "turn", "id": "t_new", "parent_id": "t_two", "cantrip_id": "cantrip_1", "entity_id": "e_one"}
    text = json.dumps({**body, "cast_id": "c_one", "sequence": 3}) + "\n"
    with path.open("a") as file:
        file.write(text[:30])
        file.flush()
        time.sleep(0.3)
        file.write(text[30:])
    told = heard(client, "cantrip/loom/changed", lambda p: p["turns"] == 6)
    assert (told["uri"], told["problem"]) == (uri, None)
    assert client.ask("cantrip/loom/turns", {"uri": uri, "offset": 5})["turns"][0]["id"] == "t_new"
    with path.open("a") as file:
        file.write("no record\n")
    heard(
        client, "textDocument/publishDiagnostics", lambda p: [d["code"] for d in p["diagnostics"]] == ["damaged-line"]
    )
    # Another loom takes its place; then it is gone, and comes back.
    kept = family(client.root / "other.loom.jsonl")
    client.kept.clear()
    os.replace(kept, path)
    heard(client, "cantrip/loom/changed", lambda p: p["turns"] == 5)
    heard(client, "textDocument/publishDiagnostics", lambda p: p["diagnostics"] == [])
    shutil.copy(path, client.root / "copy.loom.jsonl")
    path.unlink()
    assert "deleted" in heard(client, "cantrip/loom/changed", lambda p: p["problem"] is not None)["problem"]
    refused = client.reply(client.begin("cantrip/loom/turns", {"uri": uri}))
    assert refused["error"]["code"] == -32803
    client.kept.clear()
    os.replace(client.root / "copy.loom.jsonl", path)
    heard(client, "cantrip/loom/changed", lambda p: p["turns"] == 5 and p["problem"] is None)


def test_pages_for_a_tree(opened: tuple[Client, str], monkeypatch: pytest.MonkeyPatch) -> None:
    client, uri = opened
    casts = client.ask("cantrip/loom/casts", {"uri": uri})
    assert [c["id"] for c in casts["casts"]] == ["c_one"]
    (cast,) = casts["casts"]
    assert (cast["state"], cast["reason"], cast["turns"], cast["cost"], cast["leaf"]) == (
        *("terminated", "done", 2, 0.003),
        "t_two",
    )
    turns = client.ask("cantrip/loom/turns", {"uri": uri, "cast": "c_one", "limit": 1})
    assert (turns["total"], [t["id"] for t in turns["turns"]], turns["turns"][0]["children"]) == (2, ["t_one"], 1)
    turns = client.ask("cantrip/loom/turns", {"uri": uri, "cast": "c_one", "offset": 1, "limit": 5})
    assert [(t["id"], t["text"], t["state"]) for t in turns["turns"]] == [("t_two", "Seven.", "terminated")]
    below = client.ask("cantrip/loom/casts", {"uri": uri, "turn": "t_one"})
    assert [(c["id"], c["parent"]) for c in below["casts"]] == [("c_two", "t_one")]
    listed = client.ask("cantrip/loom/list", {"limit": 1000})
    mine = next(each for each in listed["looms"] if each["uri"] == uri)
    assert (mine["name"], mine["title"]) == ("a", "Count the words.")
    family(client.root / "new.loom.jsonl")
    heard(client, "cantrip/loom/listChanged", lambda p: p["folder"] == client.root.as_uri())
    for wrong in (
        ("cantrip/loom/turns", {"uri": "https://example.org"}),
        ("cantrip/loom/turns", {"uri": uri, "offset": -1}),
        ("cantrip/loom/turns", {"uri": uri, "cast": "c_none"}),
        ("cantrip/loom/casts", [uri]),
        ("cantrip/loom/casts", {"uri": uri, "turn": 3}),
    ):
        assert client.reply(client.begin(*wrong))["error"]["code"] == -32602
    unknown = client.reply(client.begin("cantrip/loom/none", {}))
    assert unknown["error"]["code"] == -32601


def test_damage_without_end_is_told_up_to_a_bound(client: Client) -> None:
    path = family(client.root / "a.loom.jsonl")
    with path.open("ab") as file:
        file.write(b"{\n" * 20_000)
    uri = client.open("a.loom.jsonl", "")
    found = client.diagnostics(uri, None)
    assert len(found) == 251
    assert "19,750 more lines" in found[-1]["message"]
    assert client.ask("cantrip/loom/turns", {"uri": uri})["problems"] == 20_000


def test_a_client_that_shows_plain_text(connect: Callable[..., Client]) -> None:
    client = connect(capabilities={"textDocument": {"hover": {"contentFormat": ["plaintext"]}}})
    path = family(client.root / "a.loom.jsonl")
    uri = client.open("a.loom.jsonl", "")
    told = client.ask("textDocument/hover", client.at(uri, number(path, '"id":"t_one"'), 1))["contents"]
    assert told["kind"] == "plaintext"
    assert told["value"].startswith("Turn 1 t_one · 1.5 s")
    assert "Ran\n\nwc -w notes.txt" in told["value"]


def test_a_large_loom_holds_nobody_up(client: Client) -> None:
    """Others are answered before its outline, and the outline says what it leaves out."""
    recipe = client.open("a.cantrip.yaml", "circle: {gates: [done], wards: [{max_turns: 3}]}\n")
    client.diagnostics(recipe)
    path = large(client.root / "large.loom.jsonl", 12)
    uri = client.open("large.loom.jsonl", path.read_text())
    asked = client.begin("textDocument/documentSymbol", about(uri))
    lenses = client.begin("textDocument/codeLens", about(uri))
    assert client.ask("textDocument/hover", client.at(recipe, 0, 2))
    assert asked not in client.replies
    symbols = client.reply(asked)["result"]
    cast = symbols[-1]
    assert cast["children"][-1]["name"].startswith("… ")
    assert sum(1 + len(s["children"]) for s in symbols) < 2_600
    titles = [lens["command"]["title"] for lens in client.reply(lenses)["result"]]
    assert any("without lenses: open the rest in the viewer" in title for title in titles)
    page = client.ask("cantrip/loom/turns", {"uri": uri, "offset": 2_000, "limit": 2})
    assert len(page["turns"]) == 2
    # A keystroke in it changes nothing, and another text that is too long is not looked at.
    spot = {"line": 0, "character": 0}
    client.change(uri, {"range": {"start": spot, "end": spot}, "text": "x"})
    assert client.ask("cantrip/loom/turns", {"uri": uri, "limit": 1})["total"] == page["total"]
    (said,) = client.diagnostics(client.open("b.cantrip.yaml", "name: a\n" + "# long\n" * 600_000))
    assert "a recipe may have at most" in said["message"]


def test_forks_with_the_first_message_that_differs(client: Client) -> None:
    folder = client.root / "looms"
    folder.mkdir()

    def session(name: str, *casts: str, of: str | None = None) -> None:
        with Loom.open(folder / f"{name}.loom.jsonl") as loom:
            for number, intent in enumerate(casts):
                loom.append(CastRecord(f"k-{intent}", "start", "e1", "c", None, f"2026-01-01T00:0{number}:00Z", intent))
                loom.append(
                    CastRecord(f"child-{intent}-{name}", "start", "e2", "c", None, "", "Help.", parent_turn_id="t")
                )
        note = {"id": name, "cwd": "/"} | (
            {} if of is None else {"forked_from": {"sessionId": of, "turn": 0, "at": ""}}
        )
        (folder / f"{name}.session.json").write_text(json.dumps(note))

    session("first", "Begin.", "Go on.")
    session("second", "Begin.", "Stop.", of="first")
    session("third", "Begin.", "Stop.", "Rest.", of="second")
    session("early", "Begin.", of="gone")
    session("late", "Begin.", of="gone")
    session("other", "Begin.")
    (folder / "damaged.session.json").write_text("{")
    for name, when in (("second", 20), ("third", 10)):
        os.utime(folder / f"{name}.loom.jsonl", (when, when))

    def forks(name: str) -> list[tuple[str, str | None, str | None]]:
        found = client.ask("cantrip/loom/forks", {"uri": (folder / f"{name}.loom.jsonl").as_uri()})["looms"]
        return [(each["name"], each["message"], each["instead"]) for each in found]

    assert forks("first") == [("second", "Stop.", "Go on."), ("third", "Stop.", "Go on.")]
    # Of two looms of which one ends first, one has no message that the other has not.
    assert sorted(forks("third")) == [("first", "Go on.", "Stop."), ("second", None, "Rest.")]
    # The session that both were forked from may be deleted.
    assert forks("early") == [("late", None, None)]
    assert forks("other") == []
