"""What agent-shell (Emacs) sends by acp.el, request for request, and what it reads of the replies: `models`, above all.

The packages are on MELPA alone, so the editor itself is not run here; editors/emacs/README.md says how a person tries it.
The field `models` and `session/set_model` were taken out of the protocol's schema in 2026; acp.el still has the request, and
agent-shell reads the field where an agent has no option of the category `model`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.acp_client import RawClient, Silence
from tests.support.fixtures.acp import Start

CAPABILITIES = {"fs": {"readTextFile": True, "writeTextFile": True}}
OPENAI = "openai:gpt-5-mini"
OWN = "scripted:scripted"
EDIT = {"gate": "edit_file", "args": {"path": "greet.py", "old_text": "old", "new_text": "new"}}
SCRIPT = [
    {"content": "Now the edit.", "tool_calls": [EDIT]},
    {"content": "All edited."},
    {"content": "Never said.", "delay_ms": 60_000},
    {"content": "Here again."},
]


@pytest.fixture
def shell(start: Start, monkeypatch: pytest.MonkeyPatch) -> Callable[[], RawClient]:
    """An agent as agent-shell begins with it; its client's files are those on disk."""
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0000000000000000")

    def begin() -> RawClient:
        agent = start(SCRIPT, gates=["done", "edit_file"], initialized=False)
        agent.permit = None
        assert agent.initialize(**CAPABILITIES)["protocolVersion"] == 1
        agent.services["fs/read_text_file"] = lambda params: {"content": Path(params["path"]).read_text()}
        # acp.el answers a write with null.
        agent.services["fs/write_text_file"] = lambda params: _write(params)
        return agent

    return begin


def _write(params: dict[str, Any]) -> None:
    Path(params["path"]).write_text(params["content"])


def opened(folder: Path, **more: Any) -> dict[str, Any]:
    return {**more, "cwd": str(folder), "mcpServers": []}


def current(reply: dict[str, Any]) -> str:
    """The model of a reply, which both ways of saying it must agree on."""
    models = reply["models"]
    (option,) = [each for each in reply["configOptions"] if each["category"] == "model"]
    assert models["currentModelId"] == option["currentValue"]
    assert [each["modelId"] for each in models["availableModels"]] == [each["value"] for each in option["options"]]
    assert all(each["name"] for each in models["availableModels"])
    assert models["currentModelId"] in [each["modelId"] for each in models["availableModels"]]
    return str(models["currentModelId"])


def told(agent: RawClient, kind: str) -> list[dict[str, Any]]:
    updates = [m["params"]["update"] for m in agent.seen if m.get("method") == "session/update"]
    return [update for update in updates if update["sessionUpdate"] == kind]


def model_of(update: dict[str, Any]) -> str:
    return next(str(each["currentValue"]) for each in update["configOptions"] if each["category"] == "model")


def test_a_session_as_agent_shell_has_it(shell: Callable[[], RawClient], folder: Path) -> None:
    (folder / "greet.py").write_text("a\nold\n")
    agent = shell()
    session = agent.call("session/new", opened(folder))["sessionId"]
    prompt = agent.start_prompt(session, "Mend greet.py.")
    asked = agent.until(lambda m: m.get("method") == "session/request_permission")
    call = asked["params"]["toolCall"]
    assert call["title"] == "Edit greet.py (+1 −1)"
    (diff,) = call["content"]
    assert (diff["type"], diff["oldText"], diff["newText"]) == ("diff", "a\nold\n", "a\nnew\n")
    assert [(each["kind"], bool(each["name"])) for each in asked["params"]["options"]] == [
        (kind, True) for kind in ("allow_once", "allow_always", "reject_once", "reject_always")
    ]
    agent.decide(asked, "allow_once")
    assert agent.answer(prompt)["result"]["stopReason"] == "end_turn"
    assert (folder / "greet.py").read_text() == "a\nnew\n"
    assert agent.said() == "Now the edit.\n\nAll edited."
    live = [(each["toolCallId"], each["status"]) for each in told(agent, "tool_call_update")][-1]
    assert live[1] == "completed"

    # Its cancel may say why.
    prompt = agent.start_prompt(session, "Go on and on.")
    with pytest.raises(Silence):
        agent.next(1)
    agent.tell("session/cancel", {"sessionId": session, "reason": "User cancelled"})
    assert agent.answer(prompt)["result"]["stopReason"] == "cancelled"
    agent.hang_up()

    agent = shell()
    (listed,) = agent.call("session/list", {"cwd": str(folder)})["sessions"]
    assert listed["sessionId"] == session
    agent.call("session/load", opened(folder, sessionId=session))
    assert agent.said().startswith("Now the edit.\n\nAll edited.")
    assert [each["content"]["text"] for each in told(agent, "user_message_chunk")] == [
        "Mend greet.py.",
        "Go on and on.",
    ]
    before = len(agent.said())
    assert agent.prompt(session, "Once more.")["stopReason"] == "end_turn"
    assert agent.said()[before:].strip() == "Here again."
    assert agent.call("session/delete", {"sessionId": session}) is not None


def test_the_models_of_every_reply_and_each_change(shell: Callable[[], RawClient], folder: Path) -> None:
    agent = shell()
    new = agent.call("session/new", opened(folder))
    session = new["sessionId"]
    assert current(new) == OWN
    (folder / "greet.py").write_text("old")
    agent.permit = "allow_once"
    agent.prompt(session)

    # By the older request: the client hears it as it hears of the option.
    choose = {"sessionId": session, "modelId": OPENAI}
    assert agent.call("session/set_model", choose) == {}
    heard = agent.until(lambda m: m.get("params", {}).get("update", {}).get("sessionUpdate") == "config_option_update")
    assert model_of(heard["params"]["update"]) == OPENAI
    # Whoever opens the session in any way is told of the model that was chosen.
    fork = agent.call("session/fork", opened(folder, sessionId=session))
    assert current(fork) == OPENAI
    assert agent.call("session/close", {"sessionId": session}) is not None
    assert current(agent.call("session/resume", opened(folder, sessionId=session))) == OPENAI
    assert agent.call("session/close", {"sessionId": session}) is not None
    assert current(agent.call("session/load", opened(folder, sessionId=session))) == OPENAI

    # By the option, and back by the older request.
    by_option = {"sessionId": session, "configId": "model", "value": OWN}
    reply = agent.call("session/set_config_option", by_option)
    assert model_of(reply) == OWN
    assert agent.call("session/set_model", choose) == {}
    assert agent.call("session/set_model", {**choose, "modelId": OWN}) == {}

    # What is no model changes nothing, and says what is wrong.
    for wrong in ("nothing:at-all", "openai:", "gpt"):
        problem = agent.error("session/set_model", {**choose, "modelId": wrong})
        assert problem["code"] == -32602
        assert problem["message"], problem
    assert agent.error("session/set_model", {"sessionId": session})["code"] == -32602
    assert agent.error("session/set_model", {**choose, "sessionId": "sess_none"})["code"] == -32002
    assert agent.call("session/close", {"sessionId": session}) is not None
    assert current(agent.call("session/resume", opened(folder, sessionId=session))) == OWN
