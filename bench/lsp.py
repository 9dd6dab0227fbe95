"""The language server: start, keystroke to diagnostics, answers, a cancel, and what a 100 MB loom does to others.

The recipe has 300 lines, and the whole of it is parsed each time.
The baseline of the start is pygls with nothing in it; that of the answers is the client's own
round trip: an unknown request, which the server refuses at once. While the loom is open the requests are the same as before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import Row, Table, row
from bench.options import Options

LINES = 300
LOOM_MB = 100

BARE = """
from lsprotocol import types
from pygls.lsp.server import LanguageServer
server = LanguageServer("bare", "1")
@server.feature(types.TEXT_DOCUMENT_HOVER)
def hover(params): return None
server.start_io()
"""


class Client:
    """A server process and its messages, with the moments at which they came."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self.began = time.perf_counter()
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._number = 0
        self._came = threading.Condition()
        self._messages: list[tuple[float, dict[str, Any]]] = []
        threading.Thread(target=self._read, daemon=True).start()
        about = {"processId": os.getpid(), "rootUri": folder.as_uri(), "capabilities": {}}
        self.ask("initialize", about)
        self.answered = time.perf_counter()
        self.tell("initialized", {})

    def _read(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while True:
            length = 0
            while line := stream.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if not length:
                return
            message = json.loads(stream.read(length))
            with self._came:
                self._messages.append((time.perf_counter(), message))
                self._came.notify_all()

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def tell(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def begin(self, method: str, params: Any) -> int:
        self._number += 1
        self.send({"id": self._number, "method": method, "params": params})
        return self._number

    def wait(self, fits: Callable[[dict[str, Any]], bool]) -> float:
        """When the first message that fits came."""
        seen = 0
        with self._came:
            while True:
                for moment, message in self._messages[seen:]:
                    if fits(message):
                        return moment
                seen = len(self._messages)
                if not self._came.wait(60):
                    raise TimeoutError("the server says nothing")

    def ask(self, method: str, params: Any) -> float:
        """Milliseconds until the answer."""
        with self._came:
            self._messages.clear()
        began = time.perf_counter()
        number = self.begin(method, params)
        return (self.wait(lambda m: m.get("id") == number and "method" not in m) - began) * 1000

    def resident(self) -> float:
        """Megabytes that the server holds."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return int(status.partition("VmRSS:")[2].split()[0]) * 1024 / 1e6

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


def recipe() -> str:
    """A recipe of so many lines: prompts, a script, and everything that is looked at around them."""
    lines = ["name: long", "crystal:", "  provider: scripted", "  responses:"]
    while len(lines) < LINES - 40:
        number = len(lines)
        lines += [
            "    - content: |",
            f"        Line {number} of prose that says something.",
            "        And another one.",
        ]
        lines += ["      tool_calls:", "        - {gate: read_file, args: {path: notes.txt}}"]
    lines += ["call:", "  system_prompt: |", *["    Do what is asked, and say what you did."] * 20]
    lines += ["circle:", "  medium: code", "  gates:", "    - done", "    - {name: read_file, root: .}", "    - fetch"]
    lines += ["  wards:", "    - max_turns: 10", "    - max_depth: 1", "folding: {at_fraction: 0.8}", "# the end", ""]
    return "\n".join(lines)


def _start(folder: Path, rounds: int) -> tuple[Row, Row]:
    samples: dict[str, list[float]] = {"bare": [], "ours": []}
    commands = {"bare": [sys.executable, "-c", BARE], "ours": [sys.executable, "-m", "cantrip_acp.cli.main", "lsp"]}
    for _ in range(rounds):
        for name, command in commands.items():
            client = Client(command, folder)
            samples[name].append((client.answered - client.began) * 1000)
            client.close()
    bare = row("pygls with nothing in it: start", samples["bare"], "ms")
    goal = "<= 1.15 x bare"
    ours = row("start", samples["ours"], "ms", baseline=bare, goal=goal)
    return bare, ours


class _Recipe:
    """The long recipe, open in a server."""

    def __init__(self, client: Client, folder: Path) -> None:
        self.client = client
        self.text = recipe().split("\n")
        self.uri = (folder / "long.cantrip.yaml").as_uri()
        self.version = 1
        about = {"uri": self.uri, "languageId": "yaml", "version": 1, "text": "\n".join(self.text)}
        client.tell("textDocument/didOpen", {"textDocument": about})
        client.wait(lambda m: m.get("method") == "textDocument/publishDiagnostics")
        time.sleep(2.0)  # what is made ready for the first keystroke

    def at(self, words: str, column: int = 6) -> dict[str, Any]:
        line = next(n for n, text in enumerate(self.text) if words in text)
        return {"textDocument": {"uri": self.uri}, "position": {"line": line, "character": column}}

    def key(self, number: int) -> float:
        """Milliseconds from a keystroke to its diagnostics."""
        words = ("max_turns: 10", "medium: code", "And another one.")[number % 3]
        spot = self.at(words)["position"]
        spot["character"] = len(self.text[spot["line"]])
        new = str(number % 10) if number % 3 == 0 else "x"
        end = {**spot, "character": spot["character"] + 1}
        edits = (
            {"range": {"start": spot, "end": spot}, "text": new},
            {"range": {"start": spot, "end": end}, "text": ""},
        )
        took = 0.0
        for edit in edits:
            self.version += 1
            about = {"uri": self.uri, "version": self.version}
            began = time.perf_counter()
            self.client.tell("textDocument/didChange", {"textDocument": about, "contentChanges": [edit]})
            wanted = self.version
            came = self.client.wait(lambda m: m.get("params", {}).get("version") == wanted)  # noqa: B023
            took = max(took, (came - began) * 1000)
        return took

    def asks(self) -> dict[str, tuple[str, dict[str, Any]]]:
        document = {"textDocument": {"uri": self.uri}}
        return {
            "completion": ("textDocument/completion", self.at("- max_turns", 6)),
            "hover": ("textDocument/hover", self.at("- max_turns", 8)),
            "code lenses": ("textDocument/codeLens", document),
            "semantic tokens": ("textDocument/semanticTokens/full", document),
        }


def _round_trip(client: Client) -> float:
    return client.ask("cantrip/none", {})


def _answers(client: Client, held: _Recipe, rounds: int) -> list[Row]:
    trips = [_round_trip(client) for _ in range(rounds)]
    bare = row("round trip of a request that is refused", trips, "ms")
    for number in range(3):
        held.key(number)
    keys = [held.key(number) for number in range(rounds)]
    rows = [bare]
    rows.append(row("keystroke to diagnostics", keys, "ms", goal="p95 <= 50"))
    for name, (method, params) in held.asks().items():
        client.ask(method, params)
        samples = [client.ask(method, params) for _ in range(rounds)]
        rows.append(row(name, samples, "ms", baseline=bare, goal="p95 <= 20"))
    return rows


def _cancels(client: Client, folder: Path, rounds: int) -> Row:
    """From the cancel of a cast that waits for its crystal to the answer of its request."""
    text = "crystal: {provider: scripted, responses: [{content: Hi., delay_ms: 60000}]}\n"
    text += "circle: {wards: [{max_turns: 2}], gates: [done]}\n"
    (folder / "slow.cantrip.yaml").write_text(text)
    samples = []
    for number in range(rounds):
        given = {
            "uri": (folder / "slow.cantrip.yaml").as_uri(),
            "intent": "Wait.",
            "loom": str(folder / f"{number}.loom.jsonl"),
        }
        asked = client.begin("workspace/executeCommand", {"command": "cantrip.cast", "arguments": [given]})
        time.sleep(1.0 if number == 0 else 0.3)
        began = time.perf_counter()
        client.tell("$/cancelRequest", {"id": asked})
        came = client.wait(lambda m: m.get("id") == asked and "method" not in m)  # noqa: B023
        samples.append((came - began) * 1000)
    return row("cancel of a cast, acknowledged", samples, "ms", goal="p95 <= 50")


def _loom(client: Client, held: _Recipe, folder: Path) -> list[Row]:
    """Others' answers from the moment at which the loom's text is on its way until its outline is there."""
    from tests.support.lsp_looms import large

    path = large(folder / "large.loom.jsonl", LOOM_MB)
    text = path.read_text()
    uri = path.as_uri()
    lines, before = text.count("\n"), client.resident()
    began = time.perf_counter()
    client.tell(
        "textDocument/didOpen", {"textDocument": {"uri": uri, "languageId": "jsonl", "version": 1, "text": text}}
    )
    sent = (time.perf_counter() - began) * 1000
    asked = [
        client.begin(f"textDocument/{what}", {"textDocument": {"uri": uri}}) for what in ("documentSymbol", "codeLens")
    ]
    done: list[float] = []

    def await_outline() -> None:
        for number in asked:
            done.append(client.wait(lambda m: m.get("id") == number and "method" not in m))  # noqa: B023

    waiting = threading.Thread(target=await_outline)
    waiting.start()
    others: list[float] = []
    while waiting.is_alive():
        method, params = held.asks()["hover"]
        number = client.begin(method, params)
        at = time.perf_counter()
        others.append((client.wait(lambda m: m.get("id") == number) - at) * 1000)  # noqa: B023
        time.sleep(0.005)
    outline = (max(done) - began) * 1000
    page = [client.ask("cantrip/loom/turns", {"uri": uri, "offset": n * 500}) for n in range(20)]
    document = {"textDocument": {"uri": uri}}
    there = [{"position": {"line": lines * n // 20, "character": 20}} for n in range(20)]
    hovers = [client.ask("textDocument/hover", {**document, **spot}) for spot in there]
    symbols = [client.ask("textDocument/documentSymbol", document) for _ in range(10)]
    folds = [client.ask("textDocument/foldingRange", document) for _ in range(10)]
    held_mb = client.resident()
    return [
        row(
            f"a {LOOM_MB} MB loom: until its text is taken",
            [sent],
            "ms",
            note=f"{len(text) / 1e6:.0f} MB through a pipe",
        ),
        row(f"a {LOOM_MB} MB loom: until outline and lenses are there", [outline], "ms"),
        row("hover elsewhere meanwhile", others, "ms", goal="p95 <= 20", note=f"{len(others)} of them"),
        row("a page of 100 turns", page, "ms", goal="p95 <= 20"),
        row("hover on a turn of it", hovers, "ms", goal="p95 <= 20"),
        row("its symbols", symbols, "ms"),
        row("its folds", folds, "ms"),
        row(f"the server's memory with it ({before:.0f} MB before)", [held_mb], "MB"),
    ]


def run(options: Options) -> Table:
    """The table."""
    rounds = options.rounds(60)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=Path(__file__).parent / "results") as name:
        folder = Path(name)
        (folder / "notes.txt").write_text("notes\n")
        bare, ours = _start(folder, max(3, options.rounds(9)))
        client = Client([sys.executable, "-m", "cantrip_acp.cli.main", "lsp"], folder)
        try:
            held = _Recipe(client, folder)
            rows = _answers(client, held, rounds)
            rows.append(_cancels(client, folder, max(3, options.rounds(10))))
            rows += _loom(client, held, folder)
        finally:
            client.close()
    return Table("lsp", f"the language server, a recipe of {LINES:,} lines", (bare, ours, *rows))
