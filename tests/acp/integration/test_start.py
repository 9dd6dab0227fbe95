"""The first moments of `cantrip-acp`: the command line, the streams it is given, and the handshake."""

import json
import os
import pty
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.files.descriptors import is_ready
from tests.support.acp_client import AGENT, PATIENCE, SOON, RawClient
from tests.support.acp_schema_check import V1_UNSTABLE, check
from tests.support.waiting import wait_for

HELLO = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}\n'


def new_session(folder: Path) -> bytes:
    params = {"cwd": str(folder), "mcpServers": []}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "session/new", "params": params}).encode() + b"\n"


def run(*arguments: str, stdin: Any = subprocess.DEVNULL, **options: Any) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run([AGENT, *arguments], stdin=stdin, capture_output=True, timeout=60, check=False, **options)


# --- the command line


def test_help_names_every_flag_and_its_example_works() -> None:
    shown = run("--help")
    assert shown.returncode == 0
    text = shown.stdout.decode()
    for flag in ("--recipe", "--state-dir", "--log-file", "--help", "--version"):
        assert flag in text
    example = next(line.strip() for line in text.splitlines() if line.strip().startswith("printf"))
    path = f"{Path(AGENT).parent}{os.pathsep}{os.environ['PATH']}"
    pasted = subprocess.run(
        ["sh", "-c", example], capture_output=True, timeout=60, check=True, env={**os.environ, "PATH": path}
    )
    check("InitializeResponse", json.loads(pasted.stdout)["result"], V1_UNSTABLE)


def test_version() -> None:
    from cantrip_acp import __version__

    assert run("--version").stdout.decode() == f"cantrip-acp {__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--recipes", "x"], "unknown argument '--recipes'"),
        (["file.yaml"], "unknown argument 'file.yaml'"),
        (["--recipe"], "--recipe needs a value"),
        (["--recipe", ""], "--recipe needs a value"),
        (["--state-dir="], "--state-dir needs a value"),
        (["--log-file", "/proc/no/such/file"], "cannot be written"),
    ],
)
def test_mistakes_on_the_command_line(arguments: list[str], problem: str) -> None:
    ended = run(*arguments)
    assert ended.returncode == 2
    assert ended.stdout == b""
    assert problem in ended.stderr.decode()


def test_flags_take_an_equals_sign(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    agent = RawClient(
        f"--recipe={recipe([])}", f"--state-dir={tmp_path / 'st'}", f"--log-file={tmp_path / 'a' / 'log'}"
    )
    try:
        agent.initialize()
        agent.session(folder)
        assert list((tmp_path / "st" / "looms").glob("sess_*.loom.jsonl"))
        assert (tmp_path / "a" / "log").exists()
        agent.hang_up()
    finally:
        agent.close()


# --- the handshake


@pytest.mark.parametrize("asked", [0, 1, 2, 7, 65535, 99999])
def test_every_version_is_answered_with_the_highest_we_speak(start: Callable[..., RawClient], asked: int) -> None:
    agent = start(initialized=False)
    result = agent.call("initialize", {"protocolVersion": asked})
    assert result["protocolVersion"] == 1
    assert result["agentInfo"]["name"] == "cantrip-acp"
    assert result["agentInfo"]["version"]
    assert [method.get("type", "agent") for method in result["authMethods"]] == ["agent"]


def test_only_what_is_true_is_advertised(start: Callable[..., RawClient], folder: Path) -> None:
    agent = start(initialized=False)
    capabilities = agent.initialize()["agentCapabilities"]
    assert capabilities["loadSession"] is True
    assert capabilities["promptCapabilities"] == {"image": True, "audio": True, "embeddedContext": True}
    assert set(capabilities["sessionCapabilities"]) == {
        "list", "resume", "close", "delete", "additionalDirectories", "fork", "title", "systemPrompt",
    }  # fmt: skip
    for method in ("session/load", "session/resume", "session/fork"):
        assert agent.error(method, {"sessionId": "x", "cwd": str(folder), "mcpServers": []})["code"] == -32002
    assert agent.error("session/close", {"sessionId": "x"})["code"] == -32002
    assert agent.error("session/set_mode", {"sessionId": "x", "modeId": "ask"})["code"] == -32002
    for method in ("session/set_other", "authenticate/again"):
        assert agent.error(method, {"sessionId": "x"})["code"] == -32601


@pytest.mark.parametrize(
    "params",
    [None, {}, {"protocolVersion": "1"}, {"protocolVersion": None}, {"protocolVersion": True}, {"protocolVersion": -1},
     {"protocolVersion": 1.5}, [1]],
)  # fmt: skip
def test_a_wrong_version_names_the_field(start: Callable[..., RawClient], params: Any) -> None:
    agent = start(initialized=False)
    error = agent.error("initialize", params)
    assert error["code"] == -32602
    assert "protocolVersion" in error["message"] or params == [1]
    agent.initialize()


@pytest.mark.parametrize(
    "params",
    [
        {"clientCapabilities": "none", "clientInfo": 3, "_meta": []},
        {"clientCapabilities": {"fs": 1, "session": [], "_meta": "x"}},
        {"clientCapabilities": None, "clientInfo": None, "unknown": {"deep": [1]}},
    ],
)
def test_optional_members_of_a_wrong_type_count_as_absent(start: Callable[..., RawClient], params: Any) -> None:
    start(initialized=False).call("initialize", {"protocolVersion": 1, **params})


def test_nothing_comes_before_initialize(start: Callable[..., RawClient], folder: Path) -> None:
    agent = start(initialized=False)
    for method in ("session/new", "session/prompt", "authenticate"):
        error = agent.error(method, {"cwd": str(folder), "mcpServers": []})
        assert error["code"] == -32600
        assert "initialize" in error["message"]
    agent.tell("session/cancel", {"sessionId": "x"})
    agent.initialize()
    agent.session(folder)


def test_initialize_may_come_again(start: Callable[..., RawClient], folder: Path) -> None:
    agent = start()
    session = agent.session(folder)
    agent.initialize()
    assert agent.prompt(session)["stopReason"] == "end_turn"


@pytest.mark.parametrize("id", ["text", "", "é", 0, -1, 2**70, None])
def test_the_first_id_is_echoed_exactly(start: Callable[..., RawClient], id: Any) -> None:
    agent = start(initialized=False)
    agent._asked[json.dumps(id)] = "initialize"
    agent.send({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": {"protocolVersion": 1}})
    assert agent.next()["id"] == id


def test_bytes_that_come_one_by_one_or_all_together(start: Callable[..., RawClient], folder: Path) -> None:
    agent = start(initialized=False)
    agent._asked["0"] = "initialize"
    for position in range(len(HELLO)):
        agent.raw(HELLO[position : position + 1])
    assert agent.next()["id"] == 0
    other = start(initialized=False)
    other._asked.update({"0": "initialize", "1": "session/new"})
    other.raw(b"\n" + HELLO + new_session(folder))
    assert [other.next()["id"], other.next()["id"]] == [0, 1]


def test_a_bad_first_line_is_answered_like_any_other(start: Callable[..., RawClient]) -> None:
    agent = start(initialized=False)
    agent.raw(b"garbage\n")
    assert agent.next()["error"]["code"] == -32700
    agent.initialize()


# --- the streams


def test_input_and_output_may_be_files(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    asked, answered = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    asked.write_bytes(HELLO + new_session(folder) + b'{"jsonrpc":"2.0","id":2,"method":"_x/y"}')
    with asked.open("rb") as source, answered.open("wb") as sink:
        ended = subprocess.run(
            [AGENT, "--recipe", recipe([])], stdin=source, stdout=sink, stderr=subprocess.PIPE, timeout=60, check=False
        )
    assert ended.returncode == 0
    said = map(json.loads, answered.read_text().splitlines())
    replies = {message["id"]: message for message in said if "id" in message}
    check("InitializeResponse", replies[0]["result"], V1_UNSTABLE)
    check("NewSessionResponse", replies[1]["result"])
    assert replies[2]["error"]["code"] == -32601


def test_input_and_output_may_be_one_socket(recipe: Callable[..., str], folder: Path) -> None:
    ours, theirs = socket.socketpair()
    process = subprocess.Popen([AGENT, "--recipe", recipe([])], stdin=theirs, stdout=theirs)
    theirs.close()
    with ours, ours.makefile("rb") as lines:
        ours.sendall(HELLO)
        check("InitializeResponse", json.loads(lines.readline())["result"], V1_UNSTABLE)
        ours.sendall(new_session(folder))
        check("NewSessionResponse", json.loads(lines.readline())["result"])
        ours.shutdown(socket.SHUT_WR)
        assert json.loads(lines.readline())["method"] == "session/update"
        assert lines.readline() == b""
    assert process.wait(60) == 0


@pytest.mark.parametrize("blocking", [True, False])
def test_input_and_output_may_be_a_terminal(recipe: Callable[..., str], folder: Path, blocking: bool) -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)
    os.set_blocking(theirs, blocking)
    process = subprocess.Popen([AGENT, "--recipe", recipe([])], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE)

    data = b""

    def line() -> Any:
        nonlocal data
        while b"\n" not in data:
            assert is_ready(ours, 60), data
            data += os.read(ours, 65536)
        first, _, data = data.partition(b"\n")
        return json.loads(first)

    os.write(ours, HELLO)
    reply = line()
    if "method" in reply:
        reply = line()  # what the terminal echoed before the agent had it
    check("InitializeResponse", reply["result"], V1_UNSTABLE)
    # Longer than a terminal's own line editing takes.
    padded = json.loads(new_session(folder)) | {"padding": "x" * 20_000}
    threading.Thread(target=os.write, args=(ours, json.dumps(padded).encode() + b"\n")).start()
    check("NewSessionResponse", line()["result"])
    os.write(ours, b"\x04")
    assert process.wait(60) == 0
    assert termios.tcgetattr(theirs)[3] == before[3]
    os.close(ours)
    os.close(theirs)


def test_input_that_never_blocks(start_process: Callable[..., RawClient], folder: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(read, False)
    agent = start_process(initialized=False, process={"stdin": read})
    os.close(read)
    time.sleep(0.2)
    agent._asked.update({"0": "initialize", "1": "session/new"})
    os.write(write, HELLO)
    assert agent.next()["id"] == 0
    os.write(write, new_session(folder))
    assert agent.next()["id"] == 1
    os.close(write)
    agent.gone()


def test_without_stderr(start_process: Callable[..., RawClient], folder: Path) -> None:
    closed = {"argv": ["sh", "-c", 'exec "$0" "$@" 2>&-', AGENT], "stderr": None}
    agent = start_process(process=closed)
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"


def test_without_input_or_output_it_says_so() -> None:
    for closing in ("<&-", ">&-"):
        ended = subprocess.run(["sh", "-c", f'"$0" {closing}', AGENT], capture_output=True, timeout=60, check=False)
        assert ended.returncode == 2
        assert b"must be open" in ended.stderr


def test_an_empty_input_is_a_goodbye() -> None:
    ended = run()
    assert (ended.returncode, ended.stdout) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("wait", [0.0, 0.5])
def test_a_polite_signal_ends_it_politely(
    start_process: Callable[..., RawClient], number: signal.Signals, wait: float
) -> None:
    agent = start_process()
    time.sleep(wait)
    began = time.monotonic()
    agent.process.send_signal(number)
    assert agent.gone(began) < SOON


def test_a_signal_before_the_first_line_restores_the_terminal() -> None:
    ours, theirs = pty.openpty()
    before = termios.tcgetattr(theirs)[3]
    process = subprocess.Popen([AGENT], stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL)
    wait_for(lambda: termios.tcgetattr(theirs)[3] != before, PATIENCE)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    assert termios.tcgetattr(theirs)[3] == before
    os.close(ours)
    os.close(theirs)


def test_a_signal_in_a_callback_of_an_import_is_not_lost() -> None:
    # Python ignores exceptions there, so a handler must not end the process by one.
    code = """
import os, signal, sys
from cantrip_acp.acp import start

def send(frame, event, arg):
    if event == "call" and frame.f_code.co_name == "cb" and "importlib" in frame.f_code.co_filename:
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(send)
start.main([])
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    try:
        process.stdin.write(HELLO)
        process.stdin.flush()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.communicate()


def test_a_client_that_dies_before_its_answer() -> None:
    read, write = os.pipe()
    process = subprocess.Popen([AGENT], stdin=subprocess.PIPE, stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    os.close(read)
    _, stderr = process.communicate(HELLO, timeout=60)
    assert process.returncode == 0
    assert b"Traceback" not in stderr


def test_nothing_heavy_is_loaded_for_the_answer() -> None:
    heavy = ("asyncio", "anyio", "msgspec", "pydantic", "click", "rich", "ruamel", "typing", "importlib.metadata")
    code = "import sys; import cantrip_acp.acp.start; print(*(m for m in sys.argv[1:] if m in sys.modules))"
    shown = subprocess.run([sys.executable, "-S", "-c", code, *heavy], capture_output=True, text=True, check=False)
    if "No module named" in shown.stderr:
        shown = subprocess.run([sys.executable, "-c", code, *heavy], capture_output=True, text=True, check=True)
    assert shown.stdout.split() == []
