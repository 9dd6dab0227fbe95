"""Any sequence of edits ends where a fresh reading of the text does: the same diagnostics, symbols, tokens and hints."""

import itertools
import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lsprotocol import types

from cantrip_acp.lsp.server.positions import Encoding, TextDocument
from tests.support.lsp_client import Client

STARTS = [
    "",
    "\ufeffname: a\r\ncircle:\r\n  gates: [done]\r\n  wards:\r\n    - max_turns: 3\r\n",
    "# é\nname: '𝄞'\ncrystals:\n  small: openai:gpt-6.1-sol\ncall:\n  system_prompt: |\n    𝄞𝄞\n    two\n"
    "circle:\n  medium: code\n  gates:\n    - done\n    - {name: read_file, root: .}\n    - call_agent\n  wards:\n"
    "    - max_turns: 5\n    - max_turns: 3\n"
    "    - remove_gate: [plan]\nfolding: {summarizer: small}\n",
]
PIECES = [
    *(
        "",
        "x",
        "\n",
        "\r",
        "\r\n",
        "  ",
        "- ",
        ": ",
        "'",
        '"',
        "[",
        "]",
        "{",
        "}",
        "done",
        "é",
        "𝄞",
        "\ufeff",
        "\u2028",
        "#",
    ),
    *("&a ", "*a", "|\n", "\t", "---\n", '"""', "\ud834", "\x00", '"\\ud834": '),
    *("max_turns: 1\n", "    - call_agent\n", "circle:\n", "crystals:\n  a: b\n"),
]
ENCODINGS: list[Encoding] = ["utf-8", "utf-16", "utf-32"]
EDIT = st.tuples(st.integers(0, 24), st.integers(0, 40), st.integers(0, 4), st.integers(0, 12), st.sampled_from(PIECES))
_NUMBERS = itertools.count()


@pytest.fixture(scope="module", params=ENCODINGS)
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Client, Encoding]]:
    pulls = {"textDocument": {"diagnostic": {}}}
    made = Client(tmp_path_factory.mktemp("edits"), encodings=[request.param], capabilities=pulls)
    yield made, request.param
    made.close()


def everything(client: Client, uri: str) -> dict[str, Any]:
    """All that is said of a document."""
    about = {"textDocument": {"uri": uri}}
    whole = {"start": {"line": 0, "character": 0}, "end": {"line": 9999, "character": 0}}
    # Most of them before the diagnostics: they make do with what is there.
    said = {name: client.ask(f"textDocument/{name}", about) for name in ("documentSymbol", "foldingRange", "codeLens")}
    said["tokens"] = client.ask("textDocument/semanticTokens/full", about)["data"]
    said["hints"] = client.ask("textDocument/inlayHint", {**about, "range": whole})
    said["findings"] = client.ask("textDocument/diagnostic", about)["items"]
    # What names the document itself.
    said["codeLens"] = [(x["range"], x["command"]["title"]) for x in said["codeLens"]]
    for finding in said["findings"]:
        for related in finding.get("relatedInformation", ()):
            related["location"].pop("uri")
    return said


@given(data=st.data())
@settings(max_examples=14, deadline=None)
def test_edits(session: tuple[Client, Encoding], data: st.DataObject) -> None:
    client, encoding = session
    text = TextDocument(data.draw(st.sampled_from(STARTS)), encoding)
    edits = data.draw(st.lists(EDIT, min_size=1, max_size=10))
    number = next(_NUMBERS)
    uri = client.open(f"edited{number}.cantrip.yaml", text.source)
    tokens = client.ask("textDocument/semanticTokens/full", {"textDocument": {"uri": uri}})
    packed, name = tokens["data"], tokens["resultId"]
    for line, column, down, right, new in edits:
        end = right if down else column + right
        spot = types.Range(types.Position(line, column), types.Position(line + down, end))
        text = text.changed(types.TextDocumentContentChangePartial(spot, new))
        shown = {"start": {"line": line, "character": column}, "end": {"line": line + down, "character": end}}
        client.change(uri, {"range": shown, "text": new})
        # A difference at each step adds up to the whole.
        about = {"textDocument": {"uri": uri}, "previousResultId": name}
        changed = client.ask("textDocument/semanticTokens/full/delta", about)
        for edit in changed["edits"]:
            packed[edit["start"] : edit["start"] + edit["deleteCount"]] = edit.get("data", [])
        name = changed["resultId"]
    other = client.open(f"fresh{number}.cantrip.yaml", text.source)
    after, fresh = everything(client, uri), everything(client, other)
    assert packed == after["tokens"]
    end = time.monotonic() + 60
    while after != fresh and time.monotonic() < end:
        time.sleep(0.1)
        after, fresh = everything(client, uri), everything(client, other)
    for name in fresh:
        # As ASCII: a report must be able to carry half a character.
        assert json.dumps(after[name]) == json.dumps(fresh[name]), (name, ascii(text.source))
    for each in (uri, other):
        client.tell("textDocument/didClose", {"textDocument": {"uri": each}})
