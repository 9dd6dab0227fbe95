"""Agents that misbehave, each in one way, named by the first argument. No library: what they send is what is written here."""

import json
import os
import signal
import subprocess
import sys
import time


def send(message: object) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def answer(request: dict, result: object) -> None:
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def requests():
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message:
            yield message


def say(text: object, session: str = "s") -> None:
    content = {"type": "text", "text": text}
    update = {"sessionUpdate": "agent_message_chunk", "content": content}
    send({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}})


def serve(on_prompt, *, before=lambda: None, new=None) -> None:
    for request in requests():
        before()
        if request["method"] == "initialize":
            answer(request, {"protocolVersion": 1, "agentCapabilities": {}})
        elif request["method"] == "session/new":
            answer(request, new if new is not None else {"sessionId": "s"})
        elif request["method"] == "session/prompt":
            on_prompt(request)


def dies() -> None:
    print("config.toml:3: no such key", file=sys.stderr)
    sys.exit(3)


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def silent() -> None:
    print("I am just sitting here", file=sys.stderr, flush=True)
    time.sleep(600)


def closes_stdout() -> None:
    os.close(1)
    time.sleep(600)


def junk() -> None:
    while True:
        sys.stdout.write("this is not the protocol\n")
        sys.stdout.flush()
        time.sleep(0.05)


def junk_between() -> None:
    def noise() -> None:
        sys.stdout.write("\n\r\nDEBUG: " + "x" * 300_000 + "\n<html>\n   \n\x00\xff\n")
        sys.stdout.flush()

    serve(lambda request: (say("fine"), noise(), answer(request, {"stopReason": "end_turn"})), before=noise)


def broken_json() -> None:
    def prompt(request: dict) -> None:
        sys.stdout.write('{"jsonrpc": "2.0", "method": \n[1,2\n[]\n{}\n{"jsonrpc":"2.0","id":99,"result":{}}\n')
        say("fine")
        answer(request, {"stopReason": "end_turn"})

    serve(prompt)


def huge_line() -> None:
    def prompt(request: dict) -> None:
        say("y" * 20_000_000 + " end")
        answer(request, {"stopReason": "end_turn"})

    serve(prompt)


def too_huge_line() -> None:
    def prompt(request: dict) -> None:
        out = sys.stdout
        out.write('{"jsonrpc":"2.0","method":"session/update","params":{"x":"')
        for _ in range(70):
            out.write("z" * 1024 * 1024)
        out.write('"}}\n')
        out.flush()
        say("fine")
        answer(request, {"stopReason": "end_turn"})

    serve(prompt)


def unknown() -> None:
    """Requests and updates that no client knows, and known ones with nonsense in them; waits for every answer."""

    def prompt(request: dict) -> None:
        nonsense = [
            ("_vendor/thing", {"a": 1}),
            ("terminal/create", {"sessionId": "s", "command": "id"}),
            ("elicitation/create", {"sessionId": "s", "mode": "form"}),
            ("fs/read_text_file", {"sessionId": "other", "path": "/etc/passwd"}),
            ("fs/read_text_file", {"sessionId": "s", "path": 7}),
            ("fs/write_text_file", {"sessionId": "s", "path": "/etc/passwd", "content": "x"}),
            ("session/request_permission", {"sessionId": "s", "toolCall": {}, "options": []}),
            ("session/request_permission", {"sessionId": "s", "toolCall": 5, "options": "all"}),
        ]
        codes = []
        for number, (method, params) in enumerate(nonsense):
            send({"jsonrpc": "2.0", "id": f"q{number}", "method": method, "params": params})
            codes.append(json.loads(sys.stdin.readline())["error"]["code"])
        updates = [
            None, 5, [], {}, {"sessionUpdate": 7}, {"sessionUpdate": "from_the_future", "content": {"type": "text", "text": "hm"}},
            {"sessionUpdate": "tool_call"}, {"sessionUpdate": "tool_call", "toolCallId": 3, "title": None, "content": "x"},
            {"sessionUpdate": "tool_call_update", "toolCallId": "n", "content": [None, 1, {"type": "diff"}], "locations": [1]},
            {"sessionUpdate": "plan", "entries": [None, {"content": 1}]}, {"sessionUpdate": "usage_update", "used": "x"},
            {"sessionUpdate": "agent_message_chunk", "content": {"type": "image", "data": "AAAA", "mimeType": "image/png"}},
            {"sessionUpdate": "agent_message_chunk", "content": []},
        ]  # fmt: skip
        for update in updates:
            send({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
        send({"jsonrpc": "2.0", "method": "_vendor/told", "params": {}})
        say(f"codes {codes}")
        answer(request, {"stopReason": "end_turn", "usage": "none"})

    serve(prompt)


def dies_in_turn() -> None:
    def prompt(request: dict) -> None:
        say("so far so good")
        print("Segmentation fault (core dumped)", file=sys.stderr)
        sys.exit(139)

    serve(prompt)


def hangs_in_turn() -> None:
    serve(lambda request: say("hm"))


def deaf() -> None:
    """Never reads again after the session began, ignores SIGTERM and leaves a child behind."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def prompt(request: dict) -> None:
        child = subprocess.Popen(["sleep", "600"])
        say(f"child {child.pid}")
        time.sleep(600)

    serve(prompt)


def leaves_child() -> None:
    """Ends politely, but a child that it started stays and holds its stderr open."""

    def prompt(request: dict) -> None:
        child = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL)
        say(f"child {child.pid}")
        answer(request, {"stopReason": "end_turn"})

    serve(prompt)


def version_two() -> None:
    for request in requests():
        answer(request, {"protocolVersion": 2})


def wants_sign_in() -> None:
    signed_in = False
    for request in requests():
        if request["method"] == "initialize":
            methods = [{"id": "browser", "name": "Sign in with the browser", "description": "Opens a page"}]
            answer(request, {"protocolVersion": 1, "authMethods": methods})
        elif request["method"] == "authenticate":
            signed_in = request["params"]["methodId"] == "browser"
            answer(request, {})
        elif request["method"] == "session/new":
            if signed_in:
                answer(request, {"sessionId": "s"})
            else:
                send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32000, "message": "Sign in first"}})
        elif request["method"] == "session/prompt":
            say("welcome")
            answer(request, {"stopReason": "end_turn"})


def no_session() -> None:
    serve(lambda request: None, new={"session": "s"})


def floods_stderr() -> None:
    def prompt(request: dict) -> None:
        for number in range(20_000):
            print(f"log line {number} " + "." * 80, file=sys.stderr)
        answer(request, {"stopReason": "end_turn"})

    serve(prompt)


def escapes() -> None:
    """Tries to drive the terminal of whoever looks on."""

    def prompt(request: dict) -> None:
        say("\x1b]0;owned\x07title \x1b]52;c;ZXZpbA==\x1b")
        say("\\clip \x1b[2J\x1b[Hclear \x9b5n \x1bP+q\x1b\\dcs \rover \u202egnp.exe \x07\x08")
        title = "\x1b[1A\x1b[2Kgone\nnext"
        update = {
            "sessionUpdate": "tool_call",
            "toolCallId": "\x1b[5m",
            "title": title,
            "status": "completed",
            "kind": "\x1b[31m",
        }
        send({"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": "s", "update": update}})
        print("\x1b]0;stderr\x07log", file=sys.stderr, flush=True)
        answer(request, {"stopReason": "end_turn\x1b[31m"})

    serve(prompt, new={"sessionId": "s\x1b[31m"})


globals()[sys.argv[1]]()
