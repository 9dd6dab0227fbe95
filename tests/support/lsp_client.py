"""A client that speaks to a real server process, byte by byte."""

import json
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.support import processes

PATIENCE = 60.0


class Client:
    """Starts ``cantrip lsp``; `ask` waits for an answer, notifications are kept in the order in which they came."""

    def __init__(
        self,
        root: Path,
        encodings: list[str] | None = None,
        capabilities: dict | None = None,
        command: list[str] | None = None,
    ) -> None:
        """``command`` is another server's."""
        self.root = root
        self.process = processes.Popen(
            command or [sys.executable, "-m", "cantrip_acp.cli.main", "lsp"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=root,
        )
        self.messages: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self.kept: list[dict[str, Any]] = []
        self.replies: dict[int, dict[str, Any]] = {}
        self.answers: dict[str, Any] = {}
        """What the server's own requests are answered with, by method."""
        self.number = 0
        self.versions: dict[str, int] = {}
        threading.Thread(target=self._read, daemon=True).start()
        self.errors: list[bytes] = []
        threading.Thread(target=self._listen, daemon=True).start()
        general = {"general": {"positionEncodings": encodings}} if encodings else {}
        self.initialized = self.ask(
            "initialize",
            {
                "processId": os.getpid(),
                "rootUri": root.as_uri(),
                "workspaceFolders": [{"uri": root.as_uri(), "name": "root"}],
                "capabilities": {**general, **(capabilities or {})},
            },
        )
        self.tell("initialized", {})

    def _listen(self) -> None:
        for line in self.process.stderr:
            self.errors.append(line)

    def _read(self) -> None:
        stream = self.process.stdout
        while True:
            length = 0
            while line := stream.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            if not length:
                self.messages.put(None)
                return
            self.messages.put(json.loads(stream.read(length)))

    def raw(self, data: bytes) -> None:
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def send(self, message: dict[str, Any]) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self.raw(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def tell(self, method: str, params: Any) -> None:
        self.send({"method": method, "params": params})

    def begin(self, method: str, params: Any) -> int:
        self.number += 1
        self.send({"id": self.number, "method": method, "params": params})
        return self.number

    def reply(self, number: int) -> dict[str, Any]:
        end = time.monotonic() + PATIENCE
        while number not in self.replies:
            self._next(end - time.monotonic())
        return self.replies.pop(number)

    def ask(self, method: str, params: Any) -> Any:
        reply = self.reply(self.begin(method, params))
        assert "error" not in reply, (reply, self.errors)
        return reply["result"]

    def listen(self, seconds: float) -> bool:
        """Take one message in, if one comes in so many seconds."""
        try:
            message = self.messages.get(timeout=max(seconds, 0.01))
        except queue.Empty:
            return False
        self._take(message)
        return True

    def _next(self, patience: float) -> None:
        if not self.listen(patience):
            raise AssertionError(f"no message came; {self.errors}")

    def _take(self, message: dict[str, Any] | None) -> None:
        assert message is not None, f"the server has ended: {self.errors}"
        if "method" in message:
            self.kept.append(message)
            if "id" in message:
                self.send({"id": message["id"], "result": self.answers.get(message["method"])})
        else:
            self.replies[message["id"]] = message

    def uri(self, name: str) -> str:
        return (self.root / name).as_uri()

    def open(self, name: str, text: str, *, write: bool = False) -> str:
        if write:
            (self.root / name).write_text(text, encoding="utf-8")
        uri = self.uri(name)
        self.versions[uri] = 1
        item = {"uri": uri, "languageId": "yaml", "version": 1, "text": text}
        self.tell("textDocument/didOpen", {"textDocument": item})
        return uri

    def change(self, uri: str, *changes: dict[str, Any]) -> int:
        self.versions[uri] += 1
        about = {"uri": uri, "version": self.versions[uri]}
        self.tell("textDocument/didChange", {"textDocument": about, "contentChanges": list(changes)})
        return self.versions[uri]

    def diagnostics(self, uri: str, version: int = 1) -> list[dict[str, Any]]:
        """The latest for that version, once there are any."""
        end = time.monotonic() + PATIENCE
        while True:
            found = [
                m["params"]
                for m in self.kept
                if m["method"] == "textDocument/publishDiagnostics" and m["params"]["uri"] == uri
            ]
            if found and found[-1].get("version") == version:
                return found[-1]["diagnostics"]
            self._next(end - time.monotonic())

    def at(self, uri: str, line: int, character: int) -> dict[str, Any]:
        return {"textDocument": {"uri": uri}, "position": {"line": line, "character": character}}

    def close(self) -> None:
        if self.process.poll() is None:
            try:
                self.reply(self.begin("shutdown", None))
                self.tell("exit", None)
                self.process.wait(timeout=60)
            except (AssertionError, OSError, subprocess.TimeoutExpired):
                self.process.kill()
        self.process.wait(timeout=60)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            try:
                stream.close()
            except OSError:
                pass
