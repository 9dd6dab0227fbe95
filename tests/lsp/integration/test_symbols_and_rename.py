"""Symbols, folding, definitions, references, renaming and formatting, asked of the real server."""

from typing import Any

import pytest

from tests.support.lsp_client import Client

TEXT = """\
# One.
# Two.
name: outline
crystals:
  small: openai:gpt-6.1-sol
call:
  system_prompt_file: prompt.md
circle:
  gates:
    - done
    - name: read_file
      root: .
    - python: gates.py
    - fetch
  wards:
    - max_turns: &n 3
    - max_depth: *n
    - remove_gate: [fetch]
    - child_gate_denylist: mine
folding: {summarizer: "small"}
"""


@pytest.fixture
def opened(client: Client) -> tuple[Client, str]:
    (client.root / "prompt.md").write_text("Hello.")
    (client.root / "gates.py").write_text('"""Gates."""\n\n\ndef mine() -> str:\n    """Mine."""\n    return ""\n')
    return client, client.open("a.cantrip.yaml", TEXT)


def lines(found: list[dict[str, Any]]) -> list[tuple[int, int]]:
    return [(f["range"]["start"]["line"], f["range"]["start"]["character"]) for f in found]


def test_symbols_and_folds(opened: tuple[Client, str]) -> None:
    client, uri = opened
    top = client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
    assert [s["name"] for s in top] == ["name", "crystals", "call", "circle", "folding"]
    circle = top[3]
    gates, wards = circle["children"]
    assert [s["name"] for s in gates["children"]] == ["done", "read_file", "gates.py", "fetch"]
    assert [s["name"] for s in wards["children"]][:2] == ["max_turns", "max_depth"]

    def inside(symbol: dict[str, Any]) -> None:
        outer, inner = symbol["range"], symbol["selectionRange"]
        for end, sign in (("start", 1), ("end", -1)):
            one, other = [(r[end]["line"], r[end]["character"]) for r in (inner, outer)]
            assert one >= other if sign == 1 else one <= other, symbol
        for child in symbol.get("children") or ():
            inside(child)

    for symbol in top:
        inside(symbol)
    folds = client.ask("textDocument/foldingRange", {"textDocument": {"uri": uri}})
    found = {(f["startLine"], f["endLine"]) for f in folds}
    assert {(0, 1), (7, 18), (8, 13), (10, 11)} <= found


def test_definitions_references_and_links(opened: tuple[Client, str]) -> None:
    client, uri = opened

    def defined(line: int, character: int) -> list[dict[str, Any]]:
        return client.ask("textDocument/definition", client.at(uri, line, character))

    assert defined(6, 25)[0]["uri"] == client.uri("prompt.md")
    assert defined(12, 16)[0]["uri"] == client.uri("gates.py")
    assert lines(defined(17, 22)) == [(13, 6)]  # fetch, where the circle is given it
    mine = defined(18, 30)
    assert (mine[0]["uri"], lines(mine)) == (client.uri("gates.py"), [(3, 0)])
    assert lines(defined(19, 25)) == [(4, 2)]
    assert lines(defined(16, 19)) == [(15, 17)]
    assert defined(2, 8) == []
    where = client.at(uri, 4, 4)
    assert lines(client.ask("textDocument/references", {**where, "context": {"includeDeclaration": True}})) == [
        (4, 2),
        (19, 23),
    ]
    assert lines(client.ask("textDocument/references", {**where, "context": {"includeDeclaration": False}})) == [
        (19, 23)
    ]
    # A file is looked for in all recipes of the workspace, open or not; a gate of our own is where it is made.
    (client.root / "b.cantrip.yaml").write_text("call:\n  system_prompt_file: './prompt.md'\ncircle: {gates: [done]}\n")
    used = client.ask("textDocument/references", {**client.at(uri, 6, 25), "context": {"includeDeclaration": True}})
    assert [(u["uri"], lines([u])) for u in used] == [(uri, [(6, 22)]), (client.uri("b.cantrip.yaml"), [(1, 23)])]
    (done,) = defined(9, 8)
    assert done["uri"].endswith("/cantrip_acp/gates/interaction/done_echo.py")
    assert done["range"]["start"]["line"] > 0
    links = client.ask("textDocument/documentLink", {"textDocument": {"uri": uri}})
    assert {link["target"] for link in links} == {client.uri("prompt.md"), client.uri("gates.py")}


def test_renaming(opened: tuple[Client, str]) -> None:
    client, uri = opened
    spot = client.at(uri, 19, 25)
    assert client.ask("textDocument/prepareRename", spot)["start"] == {"line": 19, "character": 23}
    edit = client.ask("textDocument/rename", {**spot, "newName": "tiny"})
    assert [(e["range"]["start"]["line"], e["newText"]) for e in edit["changes"][uri]] == [(4, "tiny"), (19, "tiny")]
    anchors = client.ask("textDocument/rename", {**client.at(uri, 15, 18), "newName": "m"})
    assert lines(anchors["changes"][uri]) == [(15, 18), (16, 18)]
    client.change(uri, {"text": TEXT.replace("- max_depth: *n", "- max_depth: &d 1\n    - max_seconds: *n")})
    taken = client.reply(client.begin("textDocument/rename", {**client.at(uri, 15, 18), "newName": "d"}))
    assert taken["error"]["message"] == "there is an anchor 'd' already"
    client.change(uri, {"text": TEXT})
    assert client.ask("textDocument/prepareRename", client.at(uri, 2, 8)) is None
    refused = client.reply(client.begin("textDocument/rename", {**spot, "newName": "two words"}))
    assert refused["error"]["code"] == -32602


HEAD = "circle:\n  gates:\n    -%sdone   # here\n    - plan\n  wards: [{max_turns: 3}]\n"
PROSE = "call:\n  system_prompt: |\n    keep:   this  \n\n\n\n    too\n"
MESSY = "name:   a  \n# why   \n\n\n\n\n" + HEAD % "   " + PROSE + "\n\n"
TIDY = "name: a\n# why\n\n\n" + HEAD % " " + PROSE


def test_formatting_keeps_comments_and_texts(client: Client) -> None:
    uri = client.open("a.cantrip.yaml", MESSY)
    options = {"tabSize": 2, "insertSpaces": True}
    edits = client.ask("textDocument/formatting", {"textDocument": {"uri": uri}, "options": options})
    assert len(edits) == 1
    assert edits[0]["newText"] == TIDY
    client.change(uri, {"text": TIDY})
    assert client.ask("textDocument/formatting", {"textDocument": {"uri": uri}, "options": options}) == []
    client.change(uri, {"text": "name:   [\n"})
    assert client.ask("textDocument/formatting", {"textDocument": {"uri": uri}, "options": options}) == []
