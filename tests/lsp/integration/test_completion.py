"""The tests of `tests/lsp/unit/test_completion.py` that start processes."""

from collections.abc import Callable

from tests.support.lsp_client import Client

TEXT = """\
crystal: anthropic:claude-sonnet-5-5
circle:
  medium: bash
  gates: [read_file]
  wards:
    - max_turns: 3
    - bash_home: private
"""


MEANINGS = [
    (0, 2, "The model"),
    (0, 20, "tokens of context"),
    (2, 3, "The medium that the entity works in"),
    (2, 12, "shell command"),
    (3, 3, "its answer"),
    (3, 12, "read_file("),
    (5, 8, "queries in one cast"),
    (6, 8, "WARD-1"),
]


def test_hover(client: Client) -> None:
    uri = client.open("a.cantrip.yaml", TEXT)
    for line, character, words in MEANINGS:
        shown = client.ask("textDocument/hover", client.at(uri, line, character))
        assert words.lower() in shown["contents"]["value"].lower()
        assert shown["range"]["start"]["line"] == line
    assert client.ask("textDocument/hover", client.at(uri, 40, 0)) is None


def test_over_the_wire_in_a_broken_file(client: Client) -> None:
    uri = client.open("a.cantrip.yaml", "circle:\n  gates: [done, \n  medium: ba\n")
    assert [d["code"] for d in client.diagnostics(uri)] == ["syntax"]
    found = client.ask("textDocument/completion", client.at(uri, 2, 12))
    bash = next(item for item in found["items"] if item["label"] == "bash")
    assert bash["textEdit"] == {
        "newText": "bash",
        "range": {"start": {"line": 2, "character": 10}, "end": {"line": 2, "character": 12}},
    }
    assert client.ask("textDocument/completion", client.at(client.uri("other.cantrip.yaml"), 0, 0)) is None


def test_who_reads_no_markdown_gets_none(connect: Callable[..., Client]) -> None:
    formats = {
        "hover": {"contentFormat": ["plaintext"]},
        "completion": {"completionItem": {"documentationFormat": ["plaintext"]}},
    }
    client = connect(capabilities={"textDocument": formats})
    uri = client.open("a.cantrip.yaml", "circle:\n  medium: code\n  gates: [done, nope]\n")
    hover = client.ask("textDocument/hover", client.at(uri, 2, 13))["contents"]
    assert hover["kind"] == "plaintext"
    assert "done" in hover["value"]
    assert not any(mark in hover["value"] for mark in ("**", "```", "]("))
    items = client.ask("textDocument/completion", client.at(uri, 2, 16))["items"]
    item = client.ask("completionItem/resolve", next(i for i in items if i["label"] == "plan"))
    assert item["documentation"]["kind"] == "plaintext"
    assert "plan(" in item["documentation"]["value"]
