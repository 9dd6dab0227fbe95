"""Servers that npx downloads: installed after a question, and then started without a network; and what a time-out says."""

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.gates.mcp import install
from cantrip_acp.gates.mcp.declaration import McpServer
from tests.support.acp_client import RawClient
from tests.support.command_line import Terminal, run
from tests.support.npm_registry import NAME, registry

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed here"),
    pytest.mark.timeout(400),
]
needs_npx = pytest.mark.skipif(shutil.which("npx") is None, reason="npx is not installed here")

RECIPE = """
crystal:
  provider: scripted
  responses:
    - {tool_calls: [{gate: hello.hello}]}
    - {content: Done., repeat: true}
circle: {gates: [done], wards: [{max_turns: 3}]}
mcp_servers:
  - {name: hello, command: npx, args: [-y, NAME], env: {npm_config_registry: "ADDRESS"}, start_s: 60}
"""


def written(folder: Path, address: str) -> Path:
    path = folder / "hello.cantrip.yaml"
    path.write_text(RECIPE.replace("NAME", NAME).replace("ADDRESS", address))
    return path


@needs_npx
def test_a_cast_asks_installs_and_then_needs_no_network(tmp_path: Path) -> None:
    cache = {"CANTRIP_CACHE_DIR": str(tmp_path / "cache")}
    with registry() as (address, asked):
        path = written(tmp_path, address)
        # Nobody can be asked: nothing is downloaded, and the message says what to do.
        done = run("cast", path, "go", cwd=tmp_path, timeout=120, **cache)
        said = " ".join(done.out.split())
        assert "'hello' cannot be reached" in said, done
        assert "`cantrip recipe install` with the name of the recipe" in said
        assert "RECIPE" not in said
        assert "bash_network" not in said
        assert "standard error" not in said
        assert said.count("is not installed") == 1, "once, and not again for each call"
        assert not asked
        with Terminal("cast", path, "go", cwd=tmp_path, **cache) as terminal:
            shown = terminal.wait_for("Install it now?", timeout=60)
            assert f"npx -y {NAME}" in shown
            assert address.removeprefix("http://") in shown
            terminal.type("y\r")
            terminal.wait_for("installed MCP server 'hello'", timeout=120)
            terminal.wait_for("hello from npm", timeout=60)
            assert terminal.end() == 0
        assert any(each.endswith(".tgz") for each in asked)
    # The registry is gone.
    done = run("cast", path, "go", cwd=tmp_path, timeout=120, **cache)
    assert "hello from npm" in done.out, done
    assert "0 installed: nothing was missing" in run("recipe", "install", path, cwd=tmp_path, **cache).out


@needs_npx
def test_without_permission_nothing_is_downloaded(tmp_path: Path) -> None:
    with registry() as (address, asked):
        path = written(tmp_path, address)
        done = run("recipe", "install", path, cwd=tmp_path, stdin="n\n", CANTRIP_CACHE_DIR=str(tmp_path / "cache"))
        assert done.status == 1, done
        assert "1 not installed" in done.out
        assert not asked


def agent_for(folder: Path, path: Path, permit: str) -> RawClient:
    agent = RawClient(
        *("--recipe", str(path), "--state-dir", str(folder / "state")),
        env={"CANTRIP_CACHE_DIR": str(folder / "cache")},
        permit=permit,
    )
    agent.initialize()
    return agent


def asked_in_editor(agent: RawClient) -> list[dict[str, Any]]:
    """The questions about installing, and how each of them ended."""
    shown = [call for call in agent.updates("tool_call") if call["toolCallId"].startswith("install")]
    ends = {update["toolCallId"]: update for update in agent.updates("tool_call_update")}
    return [{**call, **ends.get(call["toolCallId"], {})} for call in shown]


def prompt(agent: RawClient, session: str) -> str:
    reply = agent.answer(agent.start_prompt(session), timeout=120)
    return str(reply["result"]["stopReason"])


@needs_npx
def test_an_editor_is_asked_once_and_then_the_server_starts(tmp_path: Path) -> None:
    with registry() as (address, asked):
        path = written(tmp_path, address)
        agent = agent_for(tmp_path, path, "reject_once")
        session = agent.session(tmp_path)
        # Nothing is asked, and nothing is connected, before the user sends a prompt.
        (server,) = agent.call("_cantrip/mcp/list", {"sessionId": session})["servers"]
        assert server["state"] == "not_started"
        assert not asked_in_editor(agent)
        assert prompt(agent, session) == "end_turn"
        (question,) = asked_in_editor(agent)
        assert question["title"] == "Install the MCP server hello"
        assert question["status"] == "failed"
        words = " ".join(part["content"]["text"] for part in question["content"])
        assert f"`npx -y {NAME}` downloads it" in words
        assert address.removeprefix("http://") in words
        assert "Not installed" in words
        # The session goes on without the server, and does not ask again.
        assert prompt(agent, session) == "end_turn"
        assert len(asked_in_editor(agent)) == 1
        assert not asked
        agent.close()

        agent = agent_for(tmp_path, path, "allow_once")
        assert prompt(agent, agent.session(tmp_path)) == "end_turn"
        (question,) = asked_in_editor(agent)
        assert question["status"] == "completed", agent.stderr()
        assert any(each.endswith(".tgz") for each in asked)
        assert "hello from npm" in json.dumps(agent.updates("tool_call_update"))
        # The answer is kept, also for other sessions and other processes.
        assert prompt(agent, agent.session(tmp_path)) == "end_turn"
        assert len(asked_in_editor(agent)) == 1
        agent.close()
    agent = agent_for(tmp_path, path, "allow_once")
    assert prompt(agent, agent.session(tmp_path)) == "end_turn"
    assert not asked_in_editor(agent)
    assert "hello from npm" in json.dumps(agent.updates("tool_call_update"))
    agent.close()


@needs_npx
def test_a_cancelled_question_cancels_the_prompt_and_comes_again(tmp_path: Path) -> None:
    with registry() as (address, asked):
        agent = agent_for(tmp_path, written(tmp_path, address), "cancelled")
        session = agent.session(tmp_path)
        assert prompt(agent, session) == "cancelled"
        assert not asked
        agent.permit = None
        number = agent.start_prompt(session)
        question = agent.until(lambda message: message.get("method") == "session/request_permission")
        assert [option["kind"] for option in question["params"]["options"]] == ["allow_once", "reject_once"]
        agent.tell("session/cancel", {"sessionId": session})
        assert agent.answer(number)["result"]["stopReason"] == "cancelled"
        assert {each["status"] for each in asked_in_editor(agent)} == {"failed"}
        agent.close()


@needs_npx
def test_a_failed_installation_is_shown_and_the_prompt_goes_on(tmp_path: Path) -> None:
    # A port that is kept and refuses: at one that is given up, somebody else's server may keep npm waiting.
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        path = written(tmp_path, f"http://127.0.0.1:{refusing.getsockname()[1]}")
        # By itself npm asks a registry that is gone again for more than a minute.
        path.write_text(path.read_text().replace("env: {", 'env: {npm_config_fetch_retries: "0", '))
        agent = agent_for(tmp_path, path, "allow_once")
        assert prompt(agent, agent.session(tmp_path)) == "end_turn"
        (question,) = asked_in_editor(agent)
        assert question["status"] == "failed"
        assert "cannot be installed" in question["content"][-1]["content"]["text"]
        agent.close()


def test_a_time_out_says_what_the_server_wrote_last(tmp_path: Path) -> None:
    program = tmp_path / "slow.py"
    program.write_text(
        "import sys, time\nprint('waiting for the database', file=sys.stderr, flush=True)\ntime.sleep(60)\n"
    )
    path = tmp_path / "slow.cantrip.yaml"
    path.write_text(
        "crystal: {provider: scripted, responses: [{content: Done.}]}\n"
        "circle: {gates: [done], wards: [{max_turns: 3}]}\n"
        f"mcp_servers: [{{name: slow, command: {sys.executable}, args: [{program}], start_s: 3}}]\n"
    )
    done = run("cast", path, "go", cwd=tmp_path)
    said = " ".join(done.out.split())
    assert "'slow' did not start within 3 s" in said, done
    assert "the end of its standard error: waiting for the database" in said
    assert "without a network: bash_network in the recipe's limits opens one" in said


@pytest.mark.parametrize(
    ("command", "args", "expected"),
    [
        ("npx", ["-y", "@a/b", "--port", "1"], ["npx", "--yes", "--package=@a/b", "-c", "true"]),
        ("npx", ["-y", "-p", "@a/b@2", "tool"], ["npx", "--yes", "--package=@a/b@2", "-c", "true"]),
        ("/usr/bin/npx", ["--package=x", "tool"], ["/usr/bin/npx", "--yes", "--package=x", "-c", "true"]),
        ("uvx", ["mcp-server-git", "--repository", "."], ["uvx", "--from", "mcp-server-git", "python", "-c", ""]),
        ("uvx", ["--python", "3.12", "a@1.2"], ["uvx", "--python", "3.12", "--from", "a==1.2", "python", "-c", ""]),
        ("uvx", ["--from", "git+https://x.example/a", "b"],
         ["uvx", "--from", "git+https://x.example/a", "python", "-c", ""]),
    ],
)  # fmt: skip
def test_the_download_does_not_start_the_server(command: str, args: list[str], expected: list[str]) -> None:
    assert install.download(McpServer(name="x", command=command, args=tuple(args))) == expected


def test_the_download_has_no_secret_of_the_server() -> None:
    server = McpServer(
        name="x", command="npx", args=("-y", "a"), env={"API_KEY": "secret", "npm_config_registry": "http://r"}
    )
    assert install.download_environment(server) == {"npm_config_registry": "http://r"}
