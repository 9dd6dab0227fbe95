"""A client that does everything wrong and keeps the books: what it asked, what it was answered, and whose words came where.

Every folder has a mark of its own, and every intent carries the mark of its session, so an update that reaches the wrong
session shows. What comes is held against the rules that hold whatever a client does: one answer to each request, nothing
of a session before the reply that names it, nothing of a turn when none is open.
"""

import json
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support.acp_client import PATIENCE, RawClient
from tests.support.acp_schema_check import check_message

EVERYTHING: dict[str, Any] = {
    "fs": {"readTextFile": True, "writeTextFile": True},
    "terminal": True,
    "session": {"notices": {}, "compaction": {}},
    "elicitation": {"form": {}},
    "_meta": {"terminal_output": True, "ai.prime.acp/semantic-edges-v1": True},
}
OF_A_TURN = {
    "agent_message_chunk", "agent_thought_chunk", "user_message_chunk", "tool_call", "tool_call_update", "plan",
}  # fmt: skip
LET_GO = {"terminal/kill", "terminal/release"}
"""What a cancelled turn may still ask for: nobody waits for it."""
_MARK = re.compile(r"mark\d+end")

WRONG: list[Any] = [
    None, True, 0, -1, 2**80, 1.5, 1e308, "", "x", "\x00", "é☃\ud800", "../..", "/", "x" * 5000, [], [[]], [None], {},
    {"": {}}, {"a": [1]}, {"_meta": {"sessionId": "x"}}, [{"type": "text"}],
]  # fmt: skip


def nested(depth: int) -> bytes:
    return b'{"jsonrpc":"2.0","method":"_x","params":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"


class Hostile(RawClient):
    """Give each session's folder a mark by `place`; ``rng`` decides what is answered to the agent's own questions."""

    def __init__(self, *arguments: str, **options: Any) -> None:
        super().__init__(*arguments, permit=None, checked=False, **options)
        self.rng = random.Random(0)
        self.owed: dict[str, list[tuple[str, Any]]] = defaultdict(list)
        """What waits for an answer: method and parameters, by id. Ids may be used twice."""
        self.answers: Counter[str] = Counter()
        self.marks: dict[str, set[str]] = {}
        """Marks that may be seen in a session."""
        self.counts: Counter[str] = Counter()
        self.terminals = 0
        self.questions: list[Any] = []
        """Ids of questions that were left open."""
        self.said: deque[str] = deque(maxlen=60)
        """The last lines of both sides, for whoever has to find out."""
        self.kept: dict[str, Path] = {}
        """Sessions that there should be, with their folders."""

    def place(self, base: Path, number: int) -> Path:
        folder = base / f"place{number}"
        folder.mkdir(exist_ok=True)
        (folder / "who.txt").write_text(f"{mark_of(folder)}\n")
        return folder

    # --- what goes out

    def raw(self, data: bytes) -> None:
        self.said.append(f"-> {data[:400]!r}")
        super().raw(data)

    def request(self, method: str, params: Any, *, id: Any = None) -> Any:
        """Ask, and note it."""
        if id is None:
            self._next_id += 1
            id = self._next_id
        self.owed[json.dumps(id)].append((method, params))
        self.counts["asked"] += 1
        if isinstance(params, Mapping) and method in ("session/load", "session/resume", "session/prompt"):
            session, cwd = params.get("sessionId"), params.get("cwd")
            if isinstance(session, str) and session in self.marks and isinstance(cwd, str):
                self.marks[session] |= set(_MARK.findall(mark_of(Path(cwd))))
        line = json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode() + b"\n"
        if self.rng.random() < 0.1:
            # In pieces, as a slow network brings them.
            cut = self.rng.randrange(len(line))
            self.raw(line[:cut])
            self.raw(line[cut:])
        else:
            self.raw(line)
        return id

    # --- what comes in

    def add_from_text(self, timeout: float = PATIENCE) -> dict[str, Any]:
        """One message, held against the rules."""
        message = self.next(timeout)
        self.seen.clear()
        self.said.append(f"<- {json.dumps(message)[:400]}")
        if "method" in message:
            self._heard(message)
        elif message["id"] is None:
            check_message(message, {})
            assert message["error"]["code"] in (-32700, -32600, -32602, -32601), message
            self.counts["refused"] += 1
        else:
            self._answered(message)
        return message

    def _heard(self, message: dict[str, Any]) -> None:
        check_message(message, {}, EVERYTHING)
        params = message["params"]
        if message["method"] == "$/cancel_request":
            return
        session = params["sessionId"]
        assert session in self.marks, f"of a session that no reply has named: {message}"
        strange = set(_MARK.findall(json.dumps(params))) - self.marks[session]
        assert not strange, f"words of another session ({strange}) in {session}: {message}"
        kind = params["update"]["sessionUpdate"] if message["method"] == "session/update" else None
        if (kind is None and message["method"] not in LET_GO) or kind in OF_A_TURN:
            assert self._open(session), f"no turn is open in that session: {message}"
        self.counts["updates" if kind else "questions"] += 1
        if kind is None:
            self._reply_somehow(message)

    def _open(self, session: str) -> bool:
        return any(
            method in ("session/prompt", "session/load")
            and isinstance(params, dict)
            and params.get("sessionId") == session
            for asked in self.owed.values()
            for method, params in asked
        )

    def _answered(self, message: dict[str, Any]) -> None:
        key = json.dumps(message["id"])
        asked = self.owed.get(key)
        assert asked, f"an answer to nothing that was asked, or a second one: {message}"
        self.answers[key] += 1
        last = self.answers[key] == len(asked)
        # Of requests with one id nobody can tell which one an error answers: they are open until all are answered.
        method, _ = asked[0] if "error" in message else next(a for a in asked if _fits(message, key, a[0]))
        check_message(message, {key: method})
        if last:
            del self.owed[key], self.answers[key]
        self.counts["answered"] += 1
        if "error" in message:
            assert message["error"]["code"] in (-32600, -32601, -32602, -32603, -32002, -32800, -32000), message
            return
        if method in ("session/new", "session/fork"):
            session = message["result"]["sessionId"]
            assert session not in self.marks, f"an id was given twice: {session}"
            # Of several with one id nobody can tell which one this answers.
            given = [p for m, p in asked if isinstance(p, dict) and isinstance(p.get("cwd"), str)]
            self.marks[session] = {mark for p in given for mark in _MARK.findall(mark_of(Path(p["cwd"])))}
            for p in given:
                source = p.get("sessionId")
                self.marks[session] |= self.marks.get(source, set()) if isinstance(source, str) else set()
            self.kept[session] = Path(given[0]["cwd"])
        elif method == "session/delete":
            # Of several with one id it may have been any.
            for each, of in asked:
                if each == "session/delete" and isinstance(of, dict) and isinstance(of.get("sessionId"), str):
                    self.kept.pop(of["sessionId"], None)

    def _reply_somehow(self, message: dict[str, Any]) -> None:
        """Any answer: right, wrong, twice, to somebody else, none."""
        rng, method, id = self.rng, message["method"], message["id"]
        good: Any = {}
        if method == "session/request_permission":
            good = {
                "outcome": {"outcome": "selected", "optionId": rng.choice(message["params"]["options"])["optionId"]}
            }
        elif method == "fs/read_text_file":
            good = {"content": self.marks_of(message["params"]["sessionId"])}
        elif method == "terminal/create":
            self.terminals += 1
            good = {"terminalId": f"terminal {self.terminals}"}
        elif method == "terminal/output":
            good = {"output": self.marks_of(message["params"]["sessionId"]), "truncated": False}
        elif method == "terminal/wait_for_exit":
            good = {"exitCode": rng.choice([0, 1, None]), "signal": None}
        elif method == "elicitation/create":
            good = {"action": "accept", "content": {"answer": rng.choice(["a", "b", "c", 5])}}
        answers: list[Any] = [
            {"result": good},
            {"result": good},
            {"result": rng.choice(WRONG)},
            {"result": {"outcome": rng.choice(WRONG), "content": rng.choice(WRONG)}},
            {
                "result": {
                    "outcome": {
                        "outcome": rng.choice(["selected", "cancelled", "maybe"]),
                        "optionId": rng.choice(WRONG),
                    }
                }
            },
            {"error": {"code": -32000, "message": "no"}},
            {
                "error": {
                    "code": rng.choice([0, -32601, -32800, 2**40]),
                    "message": "x" * 3000,
                    "data": rng.choice(WRONG),
                }
            },
            {"error": rng.choice(WRONG)},
            {"result": good, "error": {"code": 1, "message": "both"}},
            {"result": {"content": "y" * 300_000}},
            {"result": {"output": "y" * 300_000, "truncated": False}},
            {"result": {"terminalId": rng.choice(WRONG)}},
        ]
        choice = rng.random()
        if choice < 0.15:
            self.questions.append(id)
            return
        reply = {"jsonrpc": "2.0", "id": id, **rng.choice(answers)}
        if choice < 0.25:
            reply["id"] = rng.choice([str(id), float(id), id + 1000, None, [id], -id])
            self.questions.append(id)
        self.send(reply)
        if choice > 0.9:
            self.send(reply)

    def marks_of(self, session: str) -> str:
        return " ".join(sorted(self.marks[session]))

    def settle(self, timeout: float = 30.0) -> None:
        """Until every request is answered: whatever runs is cancelled."""
        for session in [each for each in self.marks if each in self.kept or self._open(each)]:
            self.tell("session/cancel", {"sessionId": session})
        marker = f"sync {self.counts['asked']}"
        self.request("_sync", {}, id=marker)
        while self.owed:
            try:
                self.add_from_text(timeout)
            except AssertionError as problem:
                told = "\n".join(self.said)
                raise AssertionError(f"{problem}\nstill open: {dict(self.owed)}\n{told}") from problem
        # Too late, to questions that are settled.
        for id in self.questions:
            self.send(
                {"jsonrpc": "2.0", "id": id, "result": {"outcome": {"outcome": "selected", "optionId": "allow_once"}}}
            )
        self.questions.clear()


def _fits(message: dict[str, Any], key: str, method: str) -> bool:
    try:
        check_message(message, {key: method})
    except (AssertionError, KeyError):
        return False
    return True


def mark_of(folder: Path) -> str:
    number = folder.name.removeprefix("place")
    return f"mark{number}end" if number.isdigit() else ""
