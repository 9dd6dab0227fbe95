"""Every feature that tells or takes places, in each way of counting columns, over characters that count differently."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from cantrip_acp.lsp.recipes.semantic_tokens import MODIFIERS, TYPES
from tests.support.lsp_client import Client

TEXT = """\
# 𝄞 intent
# intent: Sag é𝄞.
name: "é𝄞 recipe"
crystals:
  small: openai:gpt-6.1-sol  # 𝄞
  "große": {provider: anthropic, model: claude-sonnet-5-5}
folding: {summarizer: "small"} # 𝄞𝄞
call: {system_prompt: "𝄞𝄞 do it", require_done: true}
circle:
  medium: code
  gates: ["done", {name: read_file, root: "𝄞/data"}, call_agent]
  wards: [{max_turns: 5}, {max_depth: 2}, {remove_gate: [read_file]}, {max_turns: 3}]
"""
ENCODINGS = ("utf-8", "utf-16", "utf-32")


class Opened:
    """A text in a client that counts columns in one way."""

    def __init__(self, client: Client, encoding: str, name: str = "a.cantrip.yaml") -> None:
        self.client, self.encoding = client, encoding
        self.uri = client.open(name, TEXT)
        self.document = {"textDocument": {"uri": self.uri}}

    def units(self, text: str) -> int:
        width = {"utf-8": 1, "utf-16": 2, "utf-32": 4}[self.encoding]
        return len(text.encode(self.encoding.replace("16", "16-le").replace("32", "32-le"))) // width

    def place(self, words: str, nth: int = 0) -> dict[str, int]:
        """Where words begin, as this client counts."""
        at = -1
        for _ in range(nth + 1):
            at = TEXT.index(words, at + 1)
        line = TEXT.count("\n", 0, at)
        return {"line": line, "character": self.units(TEXT[TEXT.rindex("\n", 0, at) + 1 : at])}

    def at(self, words: str, nth: int = 0) -> dict[str, Any]:
        return {**self.document, "position": self.place(words, nth)}

    def words(self, spot: dict[str, Any]) -> str:
        """What stands in a range."""
        lines = TEXT.split("\n")

        def offset(place: dict[str, int]) -> int:
            before = sum(len(line) + 1 for line in lines[: place["line"]])
            line = lines[place["line"]]
            return before + next(n for n in range(len(line) + 1) if self.units(line[:n]) == place["character"])

        return TEXT[offset(spot["start"]) : offset(spot["end"])]


@pytest.fixture(params=ENCODINGS)
def opened(request: pytest.FixtureRequest, connect: Callable[..., Client]) -> Opened:
    return Opened(connect(encodings=[request.param]), request.param)


def tokens(opened: Opened, data: list[int]) -> list[tuple[str, str, tuple[str, ...]]]:
    out, line, column = [], 0, 0
    for down, right, length, kind, bits in zip(*[iter(data)] * 5, strict=True):
        line, column = line + down, right if down else column + right
        start = {"line": line, "character": column}
        words = opened.words({"start": start, "end": {"line": line, "character": column + length}})
        out.append((words, TYPES[kind], tuple(m for n, m in enumerate(MODIFIERS) if bits >> n & 1)))
    return out


def test_all_of_them(opened: Opened) -> None:
    ask, words = opened.client.ask, opened.words
    found = opened.client.diagnostics(opened.uri)
    assert {(d["code"], words(d["range"])) for d in found} >= {
        ("legacy-key", "require_done"),
        ("wards-cancel", "["),
        ("wards-cancel", "max_turns"),
        ("missing-file", '"𝄞/data"'),
    }
    # Tokens: all, a part, and what changed.
    whole = ask("textDocument/semanticTokens/full", opened.document)
    colored = tokens(opened, whole["data"])
    assert [t for t in colored if t[1] in ("namespace", "class", "variable", "enumMember", "function")] == [
        ("small", "variable", ("declaration",)),
        ("openai", "namespace", ()),
        ("gpt-6.1-sol", "class", ()),
        ("große", "variable", ("declaration",)),
        ("anthropic", "namespace", ()),
        ("claude-sonnet-5-5", "class", ()),
        ("small", "variable", ()),
        ("code", "enumMember", ()),
        ("done", "function", ("declaration",)),
        ("read_file", "function", ("declaration",)),
        ("call_agent", "function", ("declaration",)),
        ("read_file", "function", ()),
    ]
    assert ("require_done", "property", ("deprecated",)) in colored
    assert [w for w, kind, _ in colored if kind == "parameter"] == [
        "max_turns",
        "max_depth",
        "remove_gate",
        "max_turns",
    ]
    part = {"start": opened.place("folding"), "end": opened.place("call:")}
    some = tokens(opened, ask("textDocument/semanticTokens/range", {**opened.document, "range": part})["data"])
    assert [w for w, _, _ in some] == ["folding", "summarizer", "small"]
    delta = {**opened.document, "previousResultId": whole["resultId"]}
    assert ask("textDocument/semanticTokens/full/delta", delta)["edits"] == []
    # Hints stand at the ends of lines, before comments too.
    spot = {"start": {"line": 0, "character": 0}, "end": {"line": 99, "character": 0}}
    hints = ask("textDocument/inlayHint", {**opened.document, "range": spot})
    labels = [h["label"] for h in hints]
    assert "holds: 3" in labels
    assert "in all: 3 turns, depth 2" in labels
    assert "children: depth 1, ≤ 3 turns, 8 at once" in labels
    assert any(label.startswith("≈ ") for label in labels)
    assert all(words({"start": {"line": h["position"]["line"], "character": 0}, "end": h["position"]}) for h in hints)
    # The name of a crystal, wherever it stands.
    for place in (opened.at("small"), opened.at("small", 1)):
        marked = ask("textDocument/documentHighlight", place)
        assert [(words(m["range"]), m["kind"]) for m in marked] == [("small", 3), ("small", 2)]
        linked = ask("textDocument/linkedEditingRange", place)["ranges"]
        assert [words(spot) for spot in linked] == ["small", "small"]
        given = ask("textDocument/definition", place)
        assert [g["range"]["start"] for g in given] in ([opened.place("small")], [])
        used = ask("textDocument/references", {**place, "context": {"includeDeclaration": True}})
        assert [words(u["range"]) for u in used] == ["small", "small"]
        assert words(ask("textDocument/prepareRename", place)) == "small"
        edits = ask("textDocument/rename", {**place, "newName": "tiny"})["changes"][opened.uri]
        assert [words(e["range"]) for e in edits] == ["small", "small"]
    assert ask("textDocument/linkedEditingRange", opened.at("read_file")) is None
    # What lies around a place.
    around = ask("textDocument/selectionRange", {**opened.document, "positions": [opened.place("data")]})[0]
    said = []
    while around is not None:
        said.append(words(around["range"]))
        around = around.get("parent")
    assert said[:4] == ["𝄞/data", '"𝄞/data"', 'root: "𝄞/data"', '{name: read_file, root: "𝄞/data"}']
    assert said[-1] == TEXT
    assert all(inner in outer and inner != outer for inner, outer in pairwise(said))
    # Symbols, lenses, hovering, completion, fixes.
    symbols = ask("textDocument/documentSymbol", opened.document)
    assert [words(s["selectionRange"]) for s in symbols] == ["name", "crystals", "folding", "call", "circle"]
    assert "Wie" not in words(symbols[0]["range"])
    lenses = ask("textDocument/codeLens", opened.document)
    assert (words(lenses[0]["range"]), lenses[0]["command"]["title"]) == ("# intent: Sag é𝄞.", "▶ Cast: Sag é𝄞.")
    hover = ask("textDocument/hover", opened.at("call_agent"))
    assert words(hover["range"]) == "call_agent"
    items = ask("textDocument/completion", opened.at("call_agent"))["items"]
    assert {words(i["textEdit"]["range"]) for i in items} == {""}
    params = {**opened.document, "range": found[0]["range"], "context": {"diagnostics": [], "only": ["quickfix"]}}
    assert all(
        words(e["range"]) for a in ask("textDocument/codeAction", params) for e in a["edit"]["changes"][opened.uri]
    )


def test_who_delegates_to_whom(opened: Opened) -> None:
    ask = opened.client.ask
    (root,) = ask("textDocument/prepareCallHierarchy", opened.at("medium"))
    assert (root["name"], opened.words(root["range"])) == ("é𝄞 recipe", '"é𝄞 recipe"')
    assert root["detail"] == "code · max_depth 2"
    children = ask("callHierarchy/outgoingCalls", {"item": root})
    assert [c["to"]["name"] for c in children] == ["child of é𝄞 recipe", "small", "große"]
    assert {opened.words(spot) for c in children for spot in c["fromRanges"]} == {"call_agent"}
    small = children[1]["to"]
    assert small["detail"] == "code · openai:gpt-6.1-sol · depth 1 · max_depth 1"
    below = ask("callHierarchy/outgoingCalls", {"item": small})
    assert [c["to"]["name"] for c in below] == ["child of é𝄞 recipe", "small", "große"]
    assert ask("callHierarchy/outgoingCalls", {"item": below[0]["to"]}) == []  # max_depth is spent
    assert [c["from"]["name"] for c in ask("callHierarchy/incomingCalls", {"item": small})] == ["é𝄞 recipe"]
    assert len(ask("callHierarchy/incomingCalls", {"item": below[0]["to"]})) == 3
    assert ask("callHierarchy/incomingCalls", {"item": root}) == []
    (named,) = ask("textDocument/prepareCallHierarchy", opened.at("small"))
    assert named["data"]["depth"] == 1


def test_symbols_of_the_workspace(connect: Callable[..., Client]) -> None:
    client = connect()
    (client.root / ".cantrip").mkdir()
    (client.root / "node_modules").mkdir()
    for name, text in (("one", "é𝄞one"), ("two", "two")):
        (client.root / ".cantrip" / f"{name}.cantrip.yaml").write_text(
            f"name: {text}\ncircle:\n  gates: [done, {name}]\n"
        )
    (client.root / "node_modules" / "no.cantrip.yaml").write_text("name: never\n")
    (client.root / "t.cantrip.yaml").write_text(
        "name: third\ncircle:\n  gates: [done, plan]\ncrystals:\n  quick: openai:x\n"
    )
    client.open(".cantrip/two.cantrip.yaml", "name: twice\ncircle:\n  gates: [done, echo]\n")

    def found(query: str) -> list[tuple[str, str | None]]:
        return [(s["name"], s.get("containerName")) for s in client.ask("workspace/symbol", {"query": query})]

    assert {name for name, _ in found("")} == {"é𝄞one", "twice", "third", "done", "one", "echo", "plan", "quick"}
    assert found("tw") == [("twice", None)]
    assert found("qk") == [("quick", "third")]
    assert found("echo") == [("echo", "twice")]
    assert found("zzz") == []
