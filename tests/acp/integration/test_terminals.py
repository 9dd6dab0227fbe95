"""Terminals of the client's: only where a recipe asks for them and the client has them, and gone however a call ends."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import SOON, Problem, RawClient
from tests.support.fixtures.acp import Start

END = {"content": "Done."}
LENDS: dict[str, Any] = {"capabilities": {"terminal": True}, "gates": ["done", "client_terminal"]}


class Terminals:
    """A client's terminals: real commands, and a list of what was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.seen: dict[str, str] = {}

    def lend(self, agent: RawClient, *, without: str = "") -> None:
        names = ("create", "wait_for_exit", "output", "kill", "release")
        agent.services = {f"terminal/{name}": getattr(self, name) for name in names if name != without}

    def create(self, params: dict[str, Any]) -> Any:
        self.asked.append("create")
        assert params["outputByteLimit"] > 0
        name = f"term-{len(self.running)}"
        self.running[name] = subprocess.Popen(
            [params["command"], *params["args"]],
            cwd=params["cwd"],
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.seen[name] = ""
        return {"terminalId": name}

    def wait_for_exit(self, params: dict[str, Any]) -> Any:
        self.asked.append("wait_for_exit")
        process = self.running[params["terminalId"]]
        self.seen[params["terminalId"]] += process.communicate()[0]
        return {"exitCode": process.returncode, "signal": None}

    def output(self, params: dict[str, Any]) -> Any:
        self.asked.append("output")
        return {"output": self.seen[params["terminalId"]], "truncated": False}

    def kill(self, params: dict[str, Any]) -> Any:
        self.asked.append("kill")
        self.end(self.running[params["terminalId"]])
        return {}

    def end(self, process: subprocess.Popen[str]) -> None:
        """A terminal's whole group; one that has ended is let be."""
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def release(self, params: dict[str, Any]) -> Any:
        self.asked.append("release")
        return None


@pytest.fixture
def terminals() -> Iterator[Terminals]:
    made = Terminals()
    yield made
    for process in made.running.values():
        made.end(process)


def run(command: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": "client_terminal", "args": {"command": command, **args}}]}


def results(agent: RawClient) -> list[Any]:
    """A result that is an object is shown as it is; any other one stands under ``output`` alone."""
    shown = [u["rawOutput"] for u in agent.updates("tool_call_update") if "rawOutput" in u]
    return [raw["output"] if raw.keys() == {"output"} else raw for raw in shown]


def test_a_command_runs_where_the_user_sees_it(start: Start, folder: Path, terminals: Terminals) -> None:
    (folder / "sub").mkdir()
    agent = start([run("pwd; echo 'a  b'; exit 3", cwd="sub"), END], **LENDS)
    terminals.lend(agent)
    session = agent.session(folder)
    agent.prompt(session)
    expected = {
        "output": f"{folder}/sub\na  b\n",
        "exit_code": 3,
        "signal": None,
        "truncated": False,
        "timed_out": False,
    }
    assert results(agent) == [expected]
    assert terminals.asked == ["create", "wait_for_exit", "output", "release"]
    updates = agent.updates("tool_call_update")
    shown = [update["content"] for update in updates if update.get("content")]
    assert shown == [[{"type": "terminal", "terminalId": "term-0"}]]
    assert updates[-1]["status"] == "completed"
    # Loaded again, nothing speaks of a terminal that is no more.
    agent.seen.clear()
    agent.call("session/close", {"sessionId": session})
    agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})
    assert "term-0" not in str(agent.updates())
    assert "a  b" in str(agent.updates("tool_call"))


def test_each_command_asks_and_is_shown_whole(start: Start, folder: Path, terminals: Terminals) -> None:
    steps = [run("echo one\necho two"), run("echo one\necho two"), run("echo other"), END]
    agent = start(steps, **LENDS)
    terminals.lend(agent)
    agent.permit = None
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    asked = agent.until(lambda m: m.get("method") == "session/request_permission")
    assert "echo one\necho two" in asked["params"]["toolCall"]["content"][0]["content"]["text"]
    assert asked["params"]["options"][1]["name"] == "Always allow client_terminal for this command"
    assert terminals.asked == []
    agent.decide(asked, "allow_always")
    asked = agent.until(lambda m: m.get("method") == "session/request_permission")
    assert asked["params"]["toolCall"]["title"] == "echo other"
    agent.decide(asked, "reject_once")
    agent.answer(prompt)
    assert terminals.asked.count("create") == 2
    agent.call("session/set_mode", {"sessionId": session, "modeId": "read-only"})


def test_one_that_takes_too_long_is_killed(start: Start, folder: Path, terminals: Terminals) -> None:
    agent = start([run("sleep 1000", seconds=0.3), END], **LENDS)
    terminals.lend(agent, without="wait_for_exit")
    agent.prompt(agent.session(folder))
    assert results(agent)[0]["timed_out"] is True
    assert terminals.asked == ["create", "kill", "output", "release"]


def test_a_cancel_kills_and_releases(start: Start, folder: Path, terminals: Terminals) -> None:
    agent = start([run("sleep 1000"), END], **LENDS)
    terminals.lend(agent, without="wait_for_exit")
    session = agent.session(folder)
    prompt = agent.start_prompt(session)
    agent.until(lambda m: m.get("method") == "terminal/wait_for_exit")
    began = time.monotonic()
    agent.tell("session/cancel", {"sessionId": session})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    assert time.monotonic() - began < SOON
    deadline = time.monotonic() + 60
    while "release" not in terminals.asked and time.monotonic() < deadline:
        agent.quiet(0.1)
    assert terminals.asked == ["create", "kill", "release"]
    assert agent.prompt(session)["stopReason"] == "end_turn"


@pytest.mark.parametrize("broken", ["create", "wait_for_exit", "output"])
def test_a_client_that_fails_is_an_observation(start: Start, folder: Path, terminals: Terminals, broken: str) -> None:
    agent = start([run("true"), END], **LENDS)
    terminals.lend(agent)

    def fail(params: dict[str, Any]) -> Any:
        raise Problem("no\nterminals left")

    agent.services[f"terminal/{broken}"] = fail
    assert agent.prompt(agent.session(folder))["stopReason"] == "end_turn"
    assert results(agent) == [f"the editor's terminal failed: no terminals left (terminal/{broken}, -32603)"]
    deadline = time.monotonic() + 60
    while broken != "create" and "release" not in terminals.asked and time.monotonic() < deadline:
        agent.quiet(0.1)
    assert ("release" in terminals.asked) == (broken != "create")


def test_without_a_terminal_it_says_so(start: Start, folder: Path) -> None:
    for capabilities in ({}, {"terminal": False}, {"terminal": "yes"}):
        agent = start([run("true"), END], gates=LENDS["gates"], capabilities=capabilities)
        agent.prompt(agent.session(folder))
        assert "no terminal of the user is available here" in results(agent)[0]


def test_cwd_stays_within_reach(start: Start, folder: Path, terminals: Terminals) -> None:
    (folder / "file").write_text("")
    agent = start([run("true", cwd=".."), run("true", cwd="file"), run("true", cwd="absent"), END], **LENDS)
    terminals.lend(agent)
    agent.prompt(agent.session(folder))
    assert ["outside" in results(agent)[0], *("not a folder" in r for r in results(agent)[1:])] == [True] * 3
    assert terminals.asked == []


def test_a_workspaces_recipe_may_not_ask_for_it(folder: Path, tmp_path: Path) -> None:
    (folder / ".cantrip").mkdir()
    circle = {"medium": "conversation", "gates": ["done", "client_terminal"], "wards": [{"max_turns": 3}]}
    recipe = {"name": "sly", "crystal": {"provider": "scripted", "responses": [END]}, "circle": circle}
    (folder / ".cantrip/sly.cantrip.yaml").write_text(json.dumps(recipe))
    agent = RawClient("--recipe", "sly", "--state-dir", str(tmp_path / "state"))
    try:
        agent.initialize(terminal=True)
        about = agent.call("session/new", {"cwd": str(folder), "mcpServers": []})["_meta"]["cantrip"]
        assert "outside the sandbox" in about["untrusted"]
    finally:
        agent.close()
