"""An agent that does what it is asked, without a library: to import the official SDK takes a second (see `official_sdk.py`).

What it does in a turn is named by the prompt: `say`, `tool`, `ask`, `read PATH`, `write PATH`, `terminal`, `wait`, `limit`,
`refuse`, `error`, `print`, `many N`.
"""

import json
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

USAGE = {"totalTokens": 1234, "inputTokens": 1200, "outputTokens": 34, "cachedReadTokens": 1000}
OPTIONS = [
    {"optionId": "one", "name": "Allow once", "kind": "allow_once"},
    {"optionId": "all", "name": "Always allow", "kind": "allow_always"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]


class Refused(Exception):
    """The client answered with an error."""


def send(**message: Any) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def messages() -> Iterator[dict[str, Any]]:
    for line in iter(sys.stdin.readline, ""):
        yield json.loads(line)


def ask(method: str, **params: Any) -> dict[str, Any]:
    """Send a request and wait for its answer."""
    number = uuid4().hex
    send(id=number, method=method, params=params)
    for message in messages():
        if message.get("id") == number:
            if "error" in message:
                error = message["error"]
                raise Refused(f"{error['code']} {error.get('data') or error['message']}")
            return message["result"]
    sys.exit()


class Turn:
    """One prompt. Each method is what one word of it asks for; the result is the reason to stop, or an error."""

    def __init__(self, session: str, capabilities: dict[str, Any]) -> None:
        self.session = session
        self.capabilities = capabilities

    def update(self, update_type: str, **fields: Any) -> None:
        update = {"sessionUpdate": update_type, **fields}
        send(method="session/update", params={"sessionId": self.session, "update": update})

    def text(self, text: str, update_type: str = "agent_message_chunk") -> None:
        self.update(update_type, content={"type": "text", "text": text})

    def do_say(self, rest: str) -> None:
        self.text("Thinking about it.", "agent_thought_chunk")
        for word in (rest or "Hello there, friend.").split(" "):
            self.text(word + " ")

    def do_many(self, rest: str) -> None:
        for number in range(int(rest)):
            self.text(f"{number} ")

    def do_tool(self, rest: str) -> None:
        call = {"toolCallId": "t1"}
        self.update(
            "tool_call", **call, title="make test", kind="execute", status="pending", rawInput={"command": "make test"}
        )
        self.update("tool_call_update", **call, status="in_progress")
        output = ""
        for line in ("collecting\n", "\x1b[31m1 failed\x1b[0m\n"):
            output += line
            content = {"type": "content", "content": {"type": "text", "text": output}}
            self.update("tool_call_update", **call, content=[content])
        self.update("tool_call_update", **call, status="failed", rawOutput={"exit_code": 2})
        diff = {"type": "diff", "path": "/p/a.py", "oldText": "one\ntwo\nthree\n", "newText": "one\n2\nthree\n"}
        self.update(
            "tool_call", toolCallId="t2", title="Edit a.py", kind="edit", status="completed", content=[diff],
            locations=[{"path": "/p/a.py", "line": 2}],
        )  # fmt: skip

    def do_ask(self, rest: str) -> str | None:
        call = {"toolCallId": "a1", "title": "Delete the world", "kind": "delete", "status": "pending"}
        answer = ask("session/request_permission", sessionId=self.session, toolCall=call, options=OPTIONS)["outcome"]
        reason = answer.get("_meta", {}).get("cantrip", {}).get("reason", "")
        self.text(f"answer: {answer['outcome']} {answer.get('optionId')} {reason}".strip())
        return None if answer["outcome"] == "selected" else "cancelled"

    def do_read(self, rest: str) -> None:
        try:
            answer = ask("fs/read_text_file", sessionId=self.session, path=rest)
            self.text(f"content: {answer['content']}")
        except Refused as refused:
            self.text(f"refused: {refused}")

    def do_write(self, rest: str) -> None:
        try:
            ask("fs/write_text_file", sessionId=self.session, path=rest, content="written by polite\n")
            self.text("written")
        except Refused as refused:
            self.text(f"refused: {refused}")

    def do_terminal(self, rest: str) -> None:
        try:
            ask("terminal/create", sessionId=self.session, command="id")
            words = "a terminal!"
        except Refused as refused:
            words = f"refused: {str(refused).split()[0]}"
        self.text(f"{words}, advertised: {self.capabilities.get('terminal')}")

    def do_wait(self, rest: str) -> str:
        self.text("waiting")
        for message in messages():
            if message.get("method") == "session/cancel":
                return "cancelled"
        sys.exit()

    def do_limit(self, rest: str) -> str:
        return "max_turn_requests"

    def do_refuse(self, rest: str) -> str:
        return "refusal"

    def do_error(self, rest: str) -> dict[str, Any]:
        print("about to fail", file=sys.stderr, flush=True)
        return {"code": -32603, "message": "the model is out of order", "data": {"details": "status 529"}}

    def do_print(self, rest: str) -> None:
        sys.stdout.write("Warning: a library says hello\n")
        self.do_say("still here")


def main() -> None:
    sys.stdin.reconfigure(encoding="utf-8")
    sys.stdout.reconfigure(encoding="utf-8")
    capabilities: dict[str, Any] = {}
    for message in messages():
        params = message.get("params") or {}
        if message.get("method") == "initialize":
            capabilities = params.get("clientCapabilities") or {}
            info = {"name": "polite", "title": "Polite", "version": "1.2.3"}
            send(id=message["id"], result={"protocolVersion": 1, "agentCapabilities": {}, "agentInfo": info})
        elif message.get("method") == "session/new":
            meta = {"cantrip": {"loom": "/looms/polite.loom.jsonl"}}
            send(id=message["id"], result={"sessionId": uuid4().hex, "_meta": meta})
        elif message.get("method") == "session/prompt":
            words = "".join(block.get("text", "") for block in params["prompt"])
            what, _space, rest = words.partition(" ")
            reason = getattr(Turn(params["sessionId"], capabilities), f"do_{what}")(rest) or "end_turn"
            if isinstance(reason, str):
                send(id=message["id"], result={"stopReason": reason, "usage": USAGE})
            else:
                send(id=message["id"], error=reason)


main()
