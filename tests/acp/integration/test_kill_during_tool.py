"""Sessions whose agent is killed while a tool runs: what the client saw is there again, and nothing is done twice."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cantrip_acp.loom.loom import Loom
from tests.support.acp_client import RawClient
from tests.support.loom_stores import FILES

Begin = Callable[[], RawClient]


@pytest.fixture
def agents(recipe: Callable[..., str], tmp_path: Path) -> Iterator[Callable[..., Begin]]:
    """For responses, what starts agents that share a state folder."""
    running: list[RawClient] = []

    def of(responses: list[dict[str, Any]], **options: Any) -> Begin:
        path = recipe(responses, **options)

        def begin() -> RawClient:
            client = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"))
            running.append(client)
            client.initialize()
            return client

        return begin

    yield of
    for client in running:
        client.close()


def killed(agent: RawClient) -> None:
    os.kill(agent.process.pid, signal.SIGKILL)
    agent.process.wait()


def load(agent: RawClient, session: str, folder: Path) -> Any:
    return agent.call("session/load", {"sessionId": session, "cwd": str(folder), "mcpServers": []})


def words(agent: RawClient) -> list[str]:
    return [update["content"]["text"] for update in agent.updates("agent_message_chunk")]


def running_command(agent: RawClient) -> dict[str, Any]:
    """Wait until a command has printed; its tool call."""
    agent.until(lambda m: "begun" in str(m.get("params", {}).get("update", {}).get("content")))
    return next(u for u in agent.updates("tool_call") if u["kind"] == "execute")


@pytest.mark.sandbox
@pytest.mark.parametrize(
    ("medium", "program"),
    [
        ("bash", {"bash": "echo x >> ran; echo begun; sleep 600"}),
        ("code", {"code": "open('ran', 'a').write('x\\n')\nprint('begun', flush=True)\nimport time\ntime.sleep(600)"}),
    ],
)
def test_a_program_that_runs(agents: Callable[..., Begin], folder: Path, medium: str, program: dict[str, Any]) -> None:
    begin = agents(
        [{"content": "I look.", "thinking": "Hm.", **program}, {"content": "On."}, {"content": "More."}],
        medium=medium, gates=["done"],
        wards=[{"max_turns": 5}, {"bash_writable_paths": ["workspace"]}, {"code_writable_paths": ["workspace"]}],
    )  # fmt: skip
    first = begin()
    session = first.session(folder)
    first.start_prompt(session, "Look around.")
    live = running_command(first)
    killed(first)
    second = begin()
    reply = load(second, session, folder)
    assert reply["_meta"]["cantrip"]["turns"] == 1
    assert [u["sessionUpdate"] for u in second.updates()] == [
        "user_message_chunk", "agent_thought_chunk", "agent_message_chunk", "tool_call",
        "session_info_update", "available_commands_update",
    ]  # fmt: skip
    (call,) = second.updates("tool_call")
    assert (call["toolCallId"], call["status"], call["rawInput"]) == (live["toolCallId"], "failed", live["rawInput"])
    assert "interrupted: the process ended" in call["content"][0]["content"]["text"]
    # The script goes on behind what was said, and nothing runs a second time.
    second.prompt(session, "And?")
    first_words, *remarks, last = words(second)
    assert (first_words, last) == ("I look.", "On.")
    # Only a code medium had variables, and their loss is said.
    assert ["variables" in remark for remark in remarks] == [True] * (medium == "code")
    assert (folder / "ran").read_text() == "x\n"
    second.hang_up()
    # What was made of it stands in the loom once.
    third = begin()
    load(third, session, folder)
    assert words(third) == ["I look.", "On."]
    assert len(third.updates("tool_call")) == 1
    with Loom.open(reply["_meta"]["cantrip"]["loom"], readonly=True) as loom:
        assert [(t.sequence, t.reason) for t in loom.turns() if t.role == "crystal"] == [(1, "error"), (2, "text")]


def test_gates_that_wait_for_the_user(agents: Callable[..., Begin], folder: Path) -> None:
    calls = [
        {"gate": "read_file", "args": {"path": "a.txt"}},
        {"gate": "write_file", "args": {"path": "b.txt", "content": "new"}},
    ]
    begin = agents([{"tool_calls": calls}, {"content": "On."}], gates=["done", "read_file", "write_file"])
    (folder / "a.txt").write_text("old")
    first = begin()
    first.permit = None
    session = first.session(folder)
    first.start_prompt(session, "Change it.")
    asked = first.until(lambda m: m.get("method") == "session/request_permission")
    killed(first)
    second = begin()
    load(second, session, folder)
    read, write = second.updates("tool_call")
    assert (read["status"], write["status"]) == ("failed", "failed")
    assert write["toolCallId"] == asked["params"]["toolCall"]["toolCallId"]
    assert write["rawInput"] == {"path": "b.txt", "content": "new"}
    assert second.prompt(session, "And?")["stopReason"] == "end_turn"
    assert words(second) == ["On."]
    assert not (folder / "b.txt").exists()


@pytest.mark.parametrize("store", FILES)
def test_a_child_at_work(agents: Callable[..., Begin], folder: Path, tmp_path: Path, store: str) -> None:
    child = [
        {"content": "Child speaks.", "tool_calls": [{"gate": "write_file", "args": {"path": "c.txt", "content": "c"}}]}
    ]
    begin = agents(
        [{"content": "I ask.", "tool_calls": [{"gate": "call_agent", "args": {"intent": "Do it."}}]}, {"content": "On."}],
        gates=["done", "call_agent", "write_file"], wards=[{"max_turns": 5}, {"max_depth": 1}],
        crystal={"children": [{"responses": child}]},
        **({"loom": {"store": f"sqlite:{tmp_path}/looms.db"}} if store == "sqlite" else {}),
    )  # fmt: skip
    first = begin()
    first.permit = None
    session = first.session(folder)
    first.start_prompt(session, "Delegate.")
    first.until(lambda m: m.get("method") == "session/request_permission")
    killed(first)
    second = begin()
    reply = load(second, session, folder)
    (call,) = second.updates("tool_call")
    assert (call["name"], call["status"]) == ("call_agent", "failed")
    shown = "\n".join(each["content"]["text"] for each in call["content"])
    assert "interrupted: the process ended while the child was at work" in shown
    second.prompt(session, "And?")
    assert words(second) == ["I ask.", "On."]
    with Loom.open(reply["_meta"]["cantrip"]["loom"], readonly=True) as loom:
        reasons = [(t.utterance.content, t.reason) for t in loom.turns() if t.role == "crystal"]
        assert ("Child speaks.", "error") in reasons
        assert all(end is not None for _, end in loom.casts())


@pytest.mark.parametrize("end", ["kill", "hang up"])
def test_prompts_that_waited_are_reported_and_not_run(agents: Callable[..., Begin], folder: Path, end: str) -> None:
    begin = agents([{"content": "late", "delay_ms": 60_000, "when": "one"}, {"content": "next", "repeat": True}])
    agent = begin()
    session = agent.session(folder)
    agent.start_prompt(session, "one")
    asked = {"_meta": {"cantrip": {"promptQueueing": True}}}
    agent.start_prompt(session, "two", **asked)
    agent.start_prompt(session, "three", **asked)
    assert len(agent.call("_cantrip/queue/list", {"sessionId": session})["prompts"]) == 2
    if end == "kill":
        killed(agent)
    else:
        agent.hang_up()
    for reported in (True, False):
        again = begin()
        load(again, session, folder)
        assert again.prompt(session, "four")["stopReason"] == "end_turn"
        assert ("never started:\n- two\n- three" in again.said()) is reported
        again.hang_up()
