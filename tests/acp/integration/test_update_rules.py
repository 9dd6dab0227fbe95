"""Rules that hold for every update of every session, live and loaded: of each medium, with children, MCP servers and failures."""

import re
import shutil
import sys
import time
from collections.abc import Callable
from copy import deepcopy
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest

from tests.acp.integration.test_loaded_equals_live import seen as as_shown
from tests.support.acp_client import RawClient

SERVER = Path(__file__).parents[2] / "support" / "plain_mcp_server.py"
GATES = [
    "done", "echo", "read_file", "write_file", "edit_file", "list_dir", "search", "plan", "ask_user", "call_agent",
    "call_agent_batch",
]  # fmt: skip


def calls(*given: tuple[str, dict[str, Any]], content: str = "") -> dict[str, Any]:
    return {"content": content, "tool_calls": [{"gate": gate, "args": args} for gate, args in given]}


SESSIONS: dict[str, list[dict[str, Any]]] = {
    "conversation": [
        calls(
            ("plan", {"entries": [{"content": "fix: look", "status": "in_progress"}, {"content": "note: mend"}]}),
            ("list_dir", {"path": "."}),
            ("list_dir", {"path": "none"}),
            ("search", {"pattern": "key: value"}),
            ("read_file", {"path": "note: a.txt"}),
            ("read_file", {"path": "."}),
            ("echo", {"text": "x"}),
            ("no_such_gate", {"a": 1}),
            ("read_file", {"wrong": 1}),
            content="I look.",
        ),
        calls(
            ("write_file", {"path": "b: c.txt", "content": "one\n"}),
            ("edit_file", {"path": "note: a.txt", "old_text": "one", "new_text": "two"}),
            ("edit_file", {"path": "note: a.txt", "old_text": "absent", "new_text": "two"}),
            ("write_file", {"path": "/etc/passwd", "content": "x"}),
        ),
        calls(
            ("tools.add", {"a": 2, "b": 3}),
            ("tools.echo", {"text": "again"}),
            ("tools.fail", {"why": "it: broke"}),
            ("tools.add", {"a": "no number"}),
        ),
        calls(
            ("call_agent", {"intent": "fix: look here"}),
            ("call_agent_batch", {"requests": ["one: here", "two: there"]}),
        ),
        calls(("ask_user", {"question": "which: left or right?", "choices": ["left", "right"]})),
        calls(("done", {"answer": {"all": "well"}})),
        {"chunks": ["slowly ", "said ", *["more "] * 500], "delay_ms": 50},
    ],
    "bash": [
        {"bash": "echo hi; echo err >&2; cantrip_list_dir; cantrip_write_file 'b: c.txt' x; cantrip_read_file none"},
        {"bash": "printf 'a: b'; exit 3"},
        {"bash": "echo 'note: this'"},
        {"bash": "cantrip_call_agent 'fix: look here'; cantrip_call_agent_batch '[\"one: here\", \"two: there\"]'"},
        {"bash": "kill -9 $$"},
        {"bash": "cantrip_done fin"},
        {"bash": "echo begun; sleep 60"},
    ],
    "code": [
        {"code": "write_file('b: c.txt', 'x')\nprint(list_dir())\n1 + 1"},
        {"code": "x: int = 1\nread_file('none')"},
        {"code": "if True: print('one')"},
        {"code": "call_agent('fix: look here')\ncall_agent_batch(['one: here', 'two: there'])"},
        {"code": "done({'all': 'well'})"},
        {"code": "print('begun', flush=True)\nimport time\ntime.sleep(60)"},
    ],
}  # fmt: skip
CHILD = [
    calls(("list_dir", {"path": "."}), ("write_file", {"path": "child: d.txt", "content": "x"})),
    {"content": "Seen."},
]


def wrong(message: dict[str, Any]) -> list[str]:
    """Which rules a message breaks."""
    params, found = message.get("params", {}), list[str]()
    if message.get("method") == "session/update":
        update = params["update"]
        if update["sessionUpdate"] not in ("tool_call", "tool_call_update"):
            return []
    elif message.get("method") == "session/request_permission":
        update = params["toolCall"]
        for option in params["options"]:
            if len(option["name"]) > 60 or re.search(r"(?<!\w)/\w", option["name"]):
                found.append(f"the name of an option: {option['name']}")
    else:
        return []
    if not isinstance(update.get("rawOutput", {}), dict):
        found.append("rawOutput is not an object")
    if not update.get("title") or not update.get("kind"):
        found.append("no title or no kind")
    if re.search(r":\s+[^…\s]", update.get("title", "")):
        found.append(f"the title has the form word: rest ({update['title']})")
    found += [
        f"a folder as a location: {each['path']}"
        for each in update.get("locations") or ()
        if Path(each["path"]).is_dir()
    ]
    if update.get("status") in ("completed", "failed") and message["method"] == "session/update":
        # A program that was stopped has no result.
        stopped = update["kind"] == "execute" and update["status"] == "failed"
        if "rawOutput" not in update and not stopped and update.get("name") != "done":
            found.append("no result")
    return found


def differences(live: Any, loaded: Any) -> list[str]:
    """Where a loaded session shows something else than the live one did: in the order, and in each call as it ended.

    The calls of children that the user was asked about stand in the content of the call that started the child.
    """
    (order, calls), (order_again, calls_again) = live, loaded
    calls = {key: call for key, call in calls.items() if "child" not in call.get("_meta", {}).get("cantrip", {})}
    order = [each for each in order if each[0] != "tool_call" or each[1] in calls]
    found = [f"{a} became {b}" for a, b in zip_longest(order, order_again) if a != b]
    for call_id, call in calls.items():
        call, again = without_child_actions(call), without_child_actions(calls_again.get(call_id, {}))
        keys = sorted(call.keys() | again.keys())
        found += [
            f"{call.get('title')}, {key}: {call.get(key)} became {again.get(key)}"
            for key in keys
            if call.get(key) != again.get(key)
        ]
    return found


def without_child_actions(call: dict[str, Any]) -> dict[str, Any]:
    """`_meta.cantrip.children` holds only what happened since the update before, so the last one of a live call has less."""
    meta = dict(call.get("_meta", {}))
    ours = {key: value for key, value in meta.pop("cantrip", {}).items() if key != "children"}
    meta |= {"cantrip": ours} if ours else {}
    rest = {key: value for key, value in call.items() if key != "_meta"}
    return {**rest, "_meta": meta} if meta else rest


@pytest.mark.sandbox
@pytest.mark.parametrize("client", ["plain", "sqlite", "terminal"])
@pytest.mark.parametrize("medium", list(SESSIONS))
def test_every_update_keeps_the_rules(
    recipe: Callable[..., str], folder: Path, tmp_path: Path, medium: str, client: str
) -> None:
    (folder / "note: a.txt").write_text("one\nkey: value\n")
    path = recipe(
        SESSIONS[medium], medium=medium, gates=GATES, wards=[{"max_turns": 20}, {"max_depth": 1}],
        crystal={"children": [{"responses": CHILD}] * 6},
        loom={"store": f"sqlite:{tmp_path}/looms.db"} if client == "sqlite" else {},
    )  # fmt: skip
    program = shutil.copy(SERVER, folder / "toolserver.py")
    servers = (
        [{"name": "tools", "command": sys.executable, "args": [str(program)], "env": []}]
        if medium == "conversation"
        else []
    )
    capabilities = {"_meta": {"terminal_output": True}} if client == "terminal" else {}
    seen: list[dict[str, Any]] = []
    shown: dict[str, Any] = {}
    session = fork = ""
    for method in ("session/prompt", "session/load", "session/fork"):
        agent = RawClient("--recipe", path, "--state-dir", str(tmp_path / "state"), permit=None)
        try:
            agent.initialize(**capabilities)
            named = {"cwd": str(folder), "mcpServers": servers}
            if method == "session/prompt":
                session = agent.session(folder, mcpServers=servers)
                _answer(agent, agent.start_prompt(session, "Go."))
                prompt = agent.start_prompt(session, "And on.")
                _answer(agent, prompt, until=lambda message: "said " in str(message) or "in_progress" in str(message))
                time.sleep(0.5)
                agent.tell("session/cancel", {"sessionId": session})
                assert _answer(agent, prompt)["result"]["stopReason"] == "cancelled"
            elif method == "session/load":
                agent.call(method, {"sessionId": session, **named})
                fork = agent.call("session/fork", {"sessionId": session, **named})["sessionId"]
            else:
                agent.call("session/load", {"sessionId": fork, **named})
            assert agent.updates("tool_call")
            seen += deepcopy(agent.seen)
            if method != "session/fork" or client != "terminal":
                shown[method] = as_shown(agent)
        finally:
            agent.close()
    broken = sorted(
        {f"{each}: {message['params'].get('update', message['params'])}" for message in seen for each in wrong(message)}
    )
    assert not broken, "\n".join(broken)
    if client != "terminal":
        for method in ("session/load", "session/fork"):
            other = differences(shown["session/prompt"], shown[method])
            if method == "session/fork":
                # It goes on from the last turn; what a cancel cut off came after that.
                other = [each for each in other if "'slowly said" not in each]
            assert not other, method + "\n" + "\n".join(other)


def _answer(agent: RawClient, prompt: Any, until: Callable[[dict[str, Any]], bool] = lambda _: False) -> dict[str, Any]:
    """Permit every second write until the prompt is answered, or until a message."""
    while True:
        message = agent.next()
        if message.get("method") == "session/request_permission":
            count = sum(m.get("method") == "session/request_permission" for m in agent.seen)
            agent.decide(message, "reject_once" if count % 3 == 2 else "allow_once")
        elif until(message) or (message.get("id") == prompt and "method" not in message):
            return message
