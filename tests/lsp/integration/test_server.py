"""The server as a process: it starts, counts positions as agreed, takes any edits, and ends with its client."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lsprotocol import types

from cantrip_acp.lsp.recipes import diagnostics
from cantrip_acp.lsp.server.positions import TextDocument
from tests.support.lsp_client import Client

GOOD = "name: a\ncircle:\n  gates: [done]\n  wards:\n    - max_turns: 3\n"


@pytest.mark.parametrize(
    ("offered", "chosen", "column"),
    [(["utf-8"], "utf-8", 18), (["utf-32", "utf-16"], "utf-32", 15), (None, "utf-16", 16), (["utf-7"], "utf-16", 16)],
)
def test_position_encodings(
    connect: Callable[..., Client], offered: list[str] | None, chosen: str, column: int
) -> None:
    client = connect(encodings=offered)
    assert client.initialized["capabilities"]["positionEncoding"] == chosen
    uri = client.open("a.cantrip.yaml", "circle:\n  gates: ['𝄞', nope, done]\n  wards: [{max_turns: 3}]\n")
    ranges = {d["message"].split(";")[0].split(" (")[0]: d["range"]["start"] for d in client.diagnostics(uri)}
    assert ranges["unknown gate 'nope'"] == {"line": 1, "character": column}


def test_incremental_changes_and_closing(client: Client) -> None:
    uri = client.open("a.cantrip.yaml", GOOD)
    assert client.diagnostics(uri) == []
    version = client.change(
        uri,
        {"range": {"start": {"line": 4, "character": 6}, "end": {"line": 4, "character": 15}}, "text": "max_trns"},
        {"range": {"start": {"line": 0, "character": 0}, "end": {"line": 0, "character": 0}}, "text": "# é\n"},
    )
    found = client.diagnostics(uri, version)
    # A misspelled ward is one mistake, not also a missing one.
    assert [d["code"] for d in found] == ["unknown-key"]
    assert found[0]["range"] == {"start": {"line": 5, "character": 6}, "end": {"line": 5, "character": 14}}
    assert found[0]["codeDescription"]["href"].endswith("rules.md#unknown-key")
    version = client.change(uri, {"text": GOOD})
    assert client.diagnostics(uri, version) == []
    # As some clients write it; and what is not as the protocol has it changes nothing.
    version = client.change(uri, {"range": None, "rangeLength": None, "text": GOOD + "nme: a\n"})
    assert [d["code"] for d in client.diagnostics(uri, version)] == ["unknown-key"]
    client.change(uri, {"range": {"start": {"line": -1, "character": 0}, "end": 7}, "text": "x"})
    assert len(client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})) == 3
    client.tell("textDocument/didClose", {"textDocument": {"uri": uri}})
    client.kept.clear()
    # What is not open is not changed, and nothing is said of it.
    client.change(uri, {"text": "x"})
    other = client.open("b.cantrip.yaml", GOOD)
    client.diagnostics(other)
    assert all(m["params"]["diagnostics"] == [] for m in client.kept)


def test_what_is_wrong_is_told_though_somebody_asked_first(client: Client) -> None:
    # A client that asks for symbols and actions right behind the document has it read before the findings are due.
    uri = client.open("a.cantrip.yaml", GOOD.replace("gates", "gatez"))
    client.ask("textDocument/documentSymbol", {"textDocument": {"uri": uri}})
    start = {"line": 0, "character": 0}
    client.ask(
        "textDocument/codeAction",
        {"textDocument": {"uri": uri}, "range": {"start": start, "end": start}, "context": {"diagnostics": []}},
    )
    assert "unknown-key" in [d["code"] for d in client.diagnostics(uri)]


@pytest.mark.parametrize("asked", [False, True])
def test_what_is_wrong_is_told_of_each_text_though_files_change_meanwhile(client: Client, asked: bool) -> None:
    """The same characters of another text are another place: a line end came before them."""
    uri = client.open("a.cantrip.yaml", "# one # two\n" + GOOD + "nme: a\n")
    (before,) = client.diagnostics(uri)
    end = time.monotonic() + 60
    while client.listen(1.0) and time.monotonic() < end:
        pass
    spot = {"start": {"line": 0, "character": 5}, "end": {"line": 0, "character": 6}}
    version = client.change(uri, {"range": spot, "text": "\n"})
    if asked:  # has it read
        client.begin("textDocument/hover", client.at(uri, 0, 0))
    client.tell("textDocument/didSave", {"textDocument": {"uri": uri}})
    (after,) = client.diagnostics(uri, version)
    assert after["range"]["start"]["line"] == before["range"]["start"]["line"] + 1


EDIT = st.tuples(
    st.integers(0, 12),
    st.integers(0, 30),
    st.integers(0, 3),
    st.integers(0, 12),
    st.sampled_from(
        ["", "x", "\n", "  ", "- ", ": ", "'", "[", "}", "done", "\r\n", "é𝄞", "#", "&a ", "*a", "|\n", "\t", "---\n"]
    ),
)


@given(edits=st.lists(EDIT, min_size=1, max_size=12))
@settings(max_examples=12, deadline=None)
def test_any_edits_end_where_a_fresh_reading_does(session: Client, edits: list) -> None:
    client = session
    name = f"r{time.monotonic_ns()}.cantrip.yaml"
    uri, text = client.open(name, GOOD), TextDocument(GOOD)
    version = 1
    for line, column, down, right, new in edits:
        where = types.Range(types.Position(line, column), types.Position(line + down, right))
        text = text.changed(types.TextDocumentContentChangePartial(where, new))
        start, end = where.start, where.end
        shown = {
            "start": {"line": start.line, "character": start.character},
            "end": {"line": end.line, "character": end.character},
        }
        version = client.change(uri, {"range": shown, "text": new})
    fresh = diagnostics.read(text, client.root / name, client.root)
    wanted = [(f.rule, f.message, text.position(f.span[0]).line) for f in fresh.findings]
    end_at = time.monotonic() + 30
    while True:
        got = [(d["code"], d["message"], d["range"]["start"]["line"]) for d in client.diagnostics(uri, version)]
        if got == wanted:
            break
        # The quick word is not always the last one.
        assert time.monotonic() < end_at, (text.source, got, wanted)
        client._next(end_at - time.monotonic())
    client.tell("textDocument/didClose", {"textDocument": {"uri": uri}})


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory):
    made = Client(tmp_path_factory.mktemp("edits"))
    yield made
    made.close()


def test_several_roots(client: Client) -> None:
    for name in ("one", "two"):
        (client.root / name / "data").mkdir(parents=True)
    (client.root / "two" / "data").rmdir()
    text = "circle:\n  gates: [done, {name: read_file, root: data}]\n  wards: [{max_turns: 3}]\n"
    one, two = client.open("one/a.cantrip.yaml", text), client.open("two/a.cantrip.yaml", text)
    assert [d["code"] for d in client.diagnostics(one)] == ["missing-file"]  # the root holds both
    added = [{"uri": client.uri(name), "name": name} for name in ("one", "two")]
    client.kept.clear()
    client.tell("workspace/didChangeWorkspaceFolders", {"event": {"added": added, "removed": []}})
    assert client.diagnostics(one) == []
    assert [d["code"] for d in client.diagnostics(two)] == ["missing-file"]


def test_framing_and_refusals(client: Client) -> None:
    body = b'{"jsonrpc":"2.0","id":900,"method":"textDocument/hover","params":{}}'
    client.raw(b"Content-Type: application/vscode-jsonrpc; charset=utf-8\r\nContent-Length: %d\r\n\r\n" % len(body))
    for at in range(0, len(body), 7):  # in small pieces
        client.raw(body[at : at + 7])
    assert client.reply(900)["error"]["code"] in (-32602, -32601)
    client.raw(b"Content-Length: 5\r\n\r\n{nope")
    assert client.reply(None)["error"]["code"] == -32700
    assert client.reply(client.begin("no/such", {}))["error"]["code"] == -32601
    assert client.reply(client.begin("initialize", {"capabilities": {}}))["error"]["code"] == -32600
    client.reply(client.begin("shutdown", None))
    assert client.reply(client.begin("no/such", {}))["error"]["code"] == -32600
    client.tell("exit", None)
    assert client.process.wait(timeout=60) == 0


def test_the_end_of_the_input_is_the_end(client: Client) -> None:
    client.process.stdin.close()
    assert client.process.wait(timeout=60) == 0


def test_the_end_of_the_client_is_the_end(tmp_path: Path) -> None:
    """The client's process dies while somebody else still holds the pipe open."""
    friend = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    server = subprocess.Popen(
        [sys.executable, "-m", "cantrip_acp.cli.main", "lsp"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=tmp_path,
    )
    try:
        body = (
            b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"processId":%d,"rootUri":null,"capabilities":{}}}'
        )
        body %= friend.pid
        server.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        server.stdin.flush()
        assert server.stdout.readline().startswith(b"Content-Length")
        os.kill(friend.pid, signal.SIGKILL)
        friend.wait(timeout=60)
        assert server.wait(timeout=60) == 0
    finally:
        for process in (friend, server):
            process.kill()
            process.wait()
        server.stdin.close()
        server.stdout.close()


def test_help_and_mistakes() -> None:
    command = [sys.executable, "-m", "cantrip_acp.cli.main", "lsp"]
    shown = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=60)
    assert shown.returncode == 0
    assert "vim.lsp.config('cantrip'" in shown.stdout
    wrong = subprocess.run([*command, "--nope"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2
    assert "unknown option '--nope'" in wrong.stderr


LARGE = {
    "keys": "".join(f"key{number}: 1\n" for number in range(120_000)),
    "gates": "name: x\ncircle:\n  gates:\n" + "  - done\n" * 200_000,
    "flow": "name: x\ncircle: {gates: [" + "done," * 350_000 + "]}\n",
    "broken": "name: x\n" + "- : [\n" * 200_000,
}


@pytest.mark.parametrize("shape", LARGE)
def test_a_document_that_is_too_large_says_so_and_holds_nothing_up(client: Client, tmp_path: Path, shape: str) -> None:
    (tmp_path / "on-disk.cantrip.yaml").write_text(LARGE[shape])
    uri = client.open("large.cantrip.yaml", LARGE[shape])
    there = {"textDocument": {"uri": uri}, "position": {"line": 2, "character": 3}}
    for method in (
        "documentSymbol",
        "foldingRange",
        "codeLens",
        "hover",
        "completion",
        "definition",
        "semanticTokens/full",
    ):
        assert not client.ask(f"textDocument/{method}", there), method
    found = client.diagnostics(uri)
    assert len(found) == 1
    assert "too large for the editor's help" in found[0]["message"]
    assert "cantrip recipe check FILE" in found[0]["message"]
    assert "on-disk" not in json.dumps(client.ask("workspace/symbol", {"query": "x"}))
    # It is the largest text that is too large, not the document.
    version = client.change(uri, {"text": GOOD})
    assert client.diagnostics(uri, version) == []
    assert len(client.ask("textDocument/documentSymbol", there)) == 2
