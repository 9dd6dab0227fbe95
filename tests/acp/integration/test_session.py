"""session/new and session/prompt: what is refused, what streams, in which order, and how a turn ends."""

import json
import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support.acp_client import AGENT, SOON, RawClient
from tests.support.fixtures.acp import Start


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


# --- session/new


def test_a_folder_that_cannot_be_worked_in(start: Start, folder: Path) -> None:
    agent = start()
    file = folder / "file"
    file.write_text("x")
    (folder / "loop").symlink_to("loop")
    cases = {
        "relative": "absolute",
        "": "absolute",
        str(folder / "missing"): "no such folder",
        str(file): "not a folder",
        str(file / "below"): "not a folder",
        str(folder / "loop"): "cannot be used",
        "/" + "x" * 5000: "cannot be used",
        str(folder) + "/\0": "cannot be used",
    }
    for cwd, problem in cases.items():
        error = agent.error("session/new", {"cwd": cwd, "mcpServers": []})
        assert error["code"] == -32602, (cwd, error)
        assert problem in error["message"], (cwd, error)
        assert error["data"]["field"] == "cwd"
    agent.session(folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become somebody who may not read a folder")
def test_a_folder_that_this_user_may_not_read(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    from cantrip_acp.acp.sessions.request_params import check_folder
    from cantrip_acp.acp.wire.jsonrpc import RpcError

    folder.chmod(0o700)
    tmp_path.chmod(0o755)
    for parent in tmp_path.parents:
        if not parent.stat().st_mode & 0o001:
            parent.chmod(parent.stat().st_mode | 0o011)
    child = os.fork()
    if not child:
        status = 1
        try:
            os.setgid(65534)
            os.setuid(65534)
            check_folder(str(folder))
        except RpcError as refused:
            status = 0 if refused.code == -32602 and "not readable" in refused.message else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize(
    ("params", "field"),
    [
        ({}, "cwd"),
        ({"cwd": 5}, "cwd"),
        ({"cwd": None}, "cwd"),
        ({"cwd": "/", "mcpServers": "none"}, "mcpServers"),
        ({"cwd": "/", "mcpServers": [{}]}, "mcpServers[0].name"),
        ({"cwd": "/", "mcpServers": [7]}, "mcpServers[0]"),
        ({"cwd": "/", "mcpServers": [], "additionalDirectories": "x"}, "additionalDirectories"),
    ],
)
def test_wrong_parameters_of_a_session(start: Start, params: Any, field: str) -> None:
    error = start().error("session/new", params)
    assert error["code"] == -32602
    assert error["data"]["field"] == field
    assert field in error["message"]


def test_the_session_comes_first_and_what_cannot_be_reached_is_said(start: Start, folder: Path) -> None:
    servers = [
        {"name": "files", "command": "/bin/files", "args": [], "env": [{"name": "TOKEN", "value": "hunter2hunter2"}]},
        {"type": "http", "name": "web", "url": "http://localhost:1", "headers": []},
    ]
    for capabilities, kind in (({}, "agent_message_chunk"), ({"session": {"notices": {}}}, "notice")):
        agent = start(capabilities=capabilities)
        request = agent.ask("session/new", {"cwd": str(folder), "mcpServers": servers})
        assert agent.next()["id"] == request
        agent.until(lambda message: "web cannot be reached" in json.dumps(message))
        commands, failed = agent.updates()
        assert [commands["sessionUpdate"], failed["sessionUpdate"]] == ["available_commands_update", kind]
        assert "files cannot be reached" in json.dumps(failed)
        assert "hunter2" not in json.dumps(failed)
    quiet = start()
    quiet.session(folder)
    quiet.next()
    quiet.quiet()
    assert [update["sessionUpdate"] for update in quiet.updates()] == ["available_commands_update"]


def test_mcp_servers_may_be_left_out(start: Start, folder: Path) -> None:
    agent = start()
    assert agent.call("session/new", {"cwd": str(folder)})["sessionId"]
    assert agent.call("session/new", {"cwd": str(folder), "mcpServers": None})["sessionId"]


def test_each_session_has_a_loom_of_its_own(start: Start, folder: Path, tmp_path: Path) -> None:
    agent = start([], "--state-dir", str(tmp_path / "state"))
    sessions = [agent.session(folder) for _ in range(3)]
    assert len(set(sessions)) == 3
    names = {path.name for path in (tmp_path / "state" / "looms").iterdir() if path.suffix == ".jsonl"}
    assert names == {f"{session}.loom.jsonl" for session in sessions}


def test_nothing_is_written_in_the_folder(start: Start, folder: Path) -> None:
    agent = start()
    agent.prompt(agent.session(folder))
    assert list(folder.iterdir()) == []


def test_a_recipe_that_is_wrong(folder: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.cantrip.yaml"
    bad.write_text("name: bad\ncircle:\n  medium: conversation\n  gatess: [done]\n")
    agent = RawClient("--recipe", str(bad))
    try:
        agent.initialize()
        error = agent.error("session/new", {"cwd": str(folder), "mcpServers": []})
        assert error["code"] == -32603
        assert "bad.cantrip.yaml:4" in error["message"]
        assert "gates" in error["message"]
    finally:
        agent.close()


def test_a_state_folder_that_cannot_be_written(start: Start, folder: Path) -> None:
    agent = start([], "--state-dir", "/proc/nothing")
    error = agent.error("session/new", {"cwd": str(folder), "mcpServers": []})
    assert error["code"] == -32603
    assert "/proc/nothing" in error["message"]


# --- authentication


def test_without_a_key_it_says_what_to_set(folder: Path) -> None:
    agent = RawClient()
    try:
        method = agent.initialize()["authMethods"][0]["id"]
        for ask in (
            lambda: agent.error("session/new", {"cwd": str(folder), "mcpServers": []}),
            lambda: agent.error("authenticate", {"methodId": method}),
        ):
            error = ask()
            assert error["code"] == -32000
            for word in ("ANTHROPIC_API_KEY", "CANTRIP_CRYSTAL", "--recipe"):
                assert word in error["message"]
        error = agent.error("authenticate", {"methodId": "nothing"})
        assert (error["code"], error["data"]["field"]) == (-32602, "methodId")
        assert agent.error("authenticate", {})["data"]["field"] == "methodId"
    finally:
        agent.close()


def test_with_a_scripted_crystal_there_is_nothing_to_sign_in_to(start: Start) -> None:
    agent = start()
    assert agent.call("authenticate", {"methodId": "environment"}) == {}


def test_a_crystal_from_the_environment(folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.yaml"
    script.write_text("responses:\n  - content: hello from the script\n")
    agent = RawClient(env={"CANTRIP_CRYSTAL": f"scripted:{script}"})
    try:
        agent.initialize()
        assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
        assert agent.said() == "hello from the script"
    finally:
        agent.close()


def test_an_unknown_session(start: Start) -> None:
    agent = start()
    error = agent.error("session/prompt", {"sessionId": "sess_nothing", "prompt": [text("x")]})
    assert error["code"] == -32002
    assert error["data"] == {"sessionId": "sess_nothing"}
    agent.tell("session/cancel", {"sessionId": "sess_nothing"})
    agent.quiet()


# --- several at once


def test_a_second_prompt_is_refused_and_the_first_goes_on(start: Start, folder: Path) -> None:
    agent = start([{"content": "slow", "delay_ms": 400}, {"content": "next"}])
    session = agent.session(folder)
    first = agent.start_prompt(session)
    second = agent.start_prompt(session)
    refused = agent.answer(second)
    assert refused["error"]["code"] == -32600
    assert "busy" in refused["error"]["message"]
    assert agent.answer(first)["result"]["stopReason"] == "end_turn"
    assert agent.prompt(session)["stopReason"] == "end_turn"
    assert agent.said() == "slownext"


def test_sessions_do_not_wait_for_each_other_and_never_mix(start: Start, folder: Path) -> None:
    agent = start([{"chunks": ["a"] * 20, "delay_ms": 20, "when": "slow"}, {"content": "quick", "when": "quick"}])
    sessions = [agent.session(folder) for _ in range(4)]
    slow = [agent.start_prompt(session, "slow") for session in sessions[:3]]
    quick = agent.start_prompt(sessions[3], "quick")
    assert agent.answer(quick)["result"]["stopReason"] == "end_turn"
    assert not any(message.get("id") in slow for message in agent.seen)
    waiting = set(slow)
    while waiting:
        waiting.discard(agent.next().get("id"))
    for session in sessions[:3]:
        chunks = agent.updates("agent_message_chunk", session)
        assert "".join(chunk["content"]["text"] for chunk in chunks) == "a" * 20
    order = [message["params"]["sessionId"] for message in agent.seen if "method" in message]
    assert order != sorted(order, key=sessions.index), "they ran one after the other"


def test_requests_may_come_before_their_time(start: Start, folder: Path) -> None:
    """A client need not wait for one reply before it asks the next."""
    agent = start()
    asked = [agent.ask("session/new", {"cwd": str(folder), "mcpServers": []}) for _ in range(20)]
    answers: dict[int, str] = {}
    while len(answers) < len(asked):
        message = agent.next()
        if "result" in message:
            answers[message["id"]] = message["result"]["sessionId"]
        else:
            # Nothing is said about a session before the reply that names it.
            assert message["params"]["sessionId"] in answers.values()
    assert set(answers) == set(asked)
    assert len(set(answers.values())) == 20


# --- what is printed


def test_whatever_is_printed_stays_off_the_protocol(folder: Path, tmp_path: Path) -> None:
    noisy = tmp_path / "noisy.py"
    noisy.write_text(
        "import ctypes, os, sys, subprocess\n"
        "from cantrip_acp.acp.sessions import request_params as server\n"
        "check = server.check_folder\n"
        "def loud(cwd, *place):\n"
        "    print('junk from print')\n"
        "    sys.__stdout__.write('junk from the stream\\n'); sys.__stdout__.flush()\n"
        "    os.write(1, b'junk from the descriptor\\n')\n"
        "    ctypes.CDLL(None).puts(b'junk from C'); ctypes.CDLL(None).fflush(None)\n"
        "    subprocess.run(['echo', 'junk from a child'])\n"
        "    assert sys.stdin.read() == ''\n"
        "    return check(cwd)\n"
        "server.check_folder = loud\n"
        "from cantrip_acp.acp.start import main\n"
        "sys.exit(main())\n"
    )
    script = tmp_path / "s.yaml"
    script.write_text("responses: [{content: hi}]\n")
    import sys

    agent = RawClient(argv=[sys.executable, str(noisy)], env={"CANTRIP_CRYSTAL": f"scripted:{script}"})
    try:
        agent.initialize()
        assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
        agent.hang_up()
        printed = agent.stderr()
        for source in ("print", "the stream", "the descriptor", "C", "a child"):
            assert f"junk from {source}\n" in printed
    finally:
        agent.close()


def test_a_client_that_never_reads_stderr_does_not_stop_the_agent(start: Start, folder: Path) -> None:
    agent = start()
    for _ in range(3000):
        # Each is logged as a warning.
        agent.tell("session/cancel", {"sessionId": "nothing " + "x" * 100})
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"


def test_the_log_goes_to_a_file_without_secrets(start_process: Start, folder: Path, tmp_path: Path) -> None:
    secret = "sk-abcdefghijklmnopqrstuvwxyz"
    agent = start_process([], "--log-file", str(tmp_path / "log"))
    agent.tell("session/cancel", {"sessionId": secret})
    agent.session(folder)
    agent.hang_up()
    log = (tmp_path / "log").read_text()
    assert "session/cancel" in log
    assert secret not in log
    assert agent.stderr() == ""


def test_the_other_name_of_the_command() -> None:
    cantrip = Path(AGENT).with_name("cantrip")
    hello = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}\n'
    ended = subprocess.run([cantrip, "acp"], input=hello, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 0
    assert json.loads(ended.stdout)["result"]["protocolVersion"] == 1


def test_a_full_disk_under_the_loom(recipe: Callable[..., str], folder: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for the full disk: writing fails in the middle, with an error."""
    import resource

    responses = [{"tool_calls": [{"gate": "echo", "args": {"text": "x" * 3000}}], "repeat": True}]
    agent = RawClient(
        "--recipe", recipe(responses), "--state-dir", str(tmp_path / "state"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)),
    )  # fmt: skip
    try:
        agent.initialize()
        session = agent.session(folder)
        error = agent.answer(agent.start_prompt(session))["error"]
        assert error["code"] == -32603
        assert "loom" in error["message"]
        loom = next((tmp_path / "state" / "looms").glob("*.jsonl")).read_bytes()
        whole = [json.loads(line) for line in loom.splitlines(keepends=True) if line.endswith(b"\n")]
        assert sum(record["type"] == "turn" for record in whole) >= 2
        assert agent.answer(agent.start_prompt(session))["error"]["code"] == -32603
        assert agent.hang_up() < SOON
    finally:
        agent.close()


def test_a_cancelled_session_new_leaves_nothing(start: Start, folder: Path, tmp_path: Path) -> None:
    agent = start([], "--state-dir", str(tmp_path / "state"))
    agent.session(folder)
    outcomes = set()
    for _ in range(30):
        request = agent.ask("session/new", {"cwd": str(folder), "mcpServers": []})
        agent.tell("$/cancel_request", {"requestId": request})
        reply = agent.answer(request)
        outcomes.add(reply.get("error", {}).get("code", "opened"))
    assert outcomes <= {-32800, "opened"}
    opened = sum("result" in message and "sessionId" in message["result"] for message in agent.seen)
    assert len(list((tmp_path / "state" / "looms").glob("*.jsonl"))) == opened


def test_lines_as_long_as_they_get(start_process: Start, folder: Path) -> None:
    """60 MB are read, whatever they are; beyond 64 MiB is an error, and takes no memory for what is dropped."""
    import psutil

    agent = start_process()
    session = agent.session(folder)
    process = psutil.Process(agent.process.pid)
    request = agent.ask("_long", {"x": "y" * 60_000_000})
    assert agent.answer(request)["error"]["code"] == -32601
    link = {"type": "resource_link", "name": "x", "uri": "file:///" + "x" * 60_000_000}
    error = agent.error("session/prompt", {"sessionId": session, "prompt": [link]})
    assert (error["code"], error["data"]["field"]) == (-32602, "prompt[0].uri")
    before = process.memory_info().rss
    agent.raw(b"z" * 200_000_000 + b"\n")
    message = agent.next()
    assert (message["id"], message["error"]["code"]) == (None, -32700)
    assert process.memory_info().rss - before < 100_000_000
    assert agent.prompt(session)["stopReason"] == "end_turn"


@pytest.mark.parametrize("store", ["memory", "jsonl"])
def test_a_recipe_says_how_its_loom_is_kept(start: Start, folder: Path, tmp_path: Path, store: str) -> None:
    state = tmp_path / "state"
    agent = start([{"content": "Hello."}], "--state-dir", str(state), loom={"store": store, "fsync": True})
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
    assert len(list(state.glob("looms/*.jsonl"))) == (store == "jsonl")


def words(process: psutil.Process) -> str:
    """The command line of a process that may be gone."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def test_a_session_prepares_its_worker_before_a_prompt(start_process: Start, folder: Path) -> None:
    client = start_process([{"code": "done(6 * 7)"}], medium="code", gates=["done"])
    client.session(folder)
    deadline = time.monotonic() + 60
    while not any("_cantrip" in words(p) for p in client.family()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    # What is left when the client hangs up now, with no prompt ever sent, is looked at when the test ends.
