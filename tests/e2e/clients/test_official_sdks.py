"""Somebody else's clients drive a session from end to end: the official SDKs of Python and TypeScript."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.support.acp_client import AGENT

acp = pytest.importorskip("acp")

TYPESCRIPT = Path(__file__).parent / "typescript"

needs_typescript = pytest.mark.skipif(
    shutil.which("node") is None or not (TYPESCRIPT / "node_modules").exists(),
    reason="node is not installed, or npm ci has not run in tests/e2e/clients/typescript (make test does)",
)

SESSION: list[dict[str, Any]] = [
    {"thinking": "A file, then.", "chunks": ["Hello", " there."], "bash": "echo made > notes && cat notes",
     "usage": {"prompt_tokens": 50, "completion_tokens": 5}},
    {"tool_calls": [{"gate": "done", "args": {"answer": "The file is made."}}]},
    {"bash": "echo working; sleep 1000"},
    {"content": "Nothing more."},
]  # fmt: skip


@pytest.fixture
def scripted(recipe: Callable[..., str]) -> str:
    return recipe(SESSION, medium="bash", gates=["done"], wards=[{"max_turns": 9}, {"bash_writable_paths": ["."]}])


def check_first(updates: list[dict[str, Any]]) -> None:
    """The same for every client: words, a thought, the command with its output, the answer."""
    kinds = {update["sessionUpdate"] for update in updates} - {"available_commands_update"}
    assert kinds == {
        "agent_message_chunk", "agent_thought_chunk", "tool_call", "tool_call_update", "session_info_update",
    }  # fmt: skip
    words = [update["content"]["text"] for update in updates if update["sessionUpdate"] == "agent_message_chunk"]
    assert words == ["Hello", " there.", "\n\nThe file is made."]
    command, done = (update for update in updates if update["sessionUpdate"] == "tool_call")
    assert (command["kind"], command["rawInput"]) == ("execute", {"command": "echo made > notes && cat notes"})
    assert done["rawInput"] == {"answer": "The file is made."}
    last = [update for update in updates if update.get("toolCallId") == command["toolCallId"]][-1]
    assert last["status"] == "completed"
    assert last["rawOutput"]["output"] == "made\n"
    assert "made" in last["content"][0]["content"]["text"]


@pytest.mark.sandbox
@pytest.mark.anyio
async def test_the_python_sdk(scripted: str, folder: Path) -> None:
    updates: list[dict[str, Any]] = []
    in_progress = anyio.Event()

    class Client(acp.Client):
        async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
            plain = update.model_dump(by_alias=True, exclude_none=True)
            updates.append(plain)
            if plain.get("status") == "in_progress":
                in_progress.set()

        async def request_permission(self, session_id: str, tool_call: Any, options: Any, **kwargs: Any) -> Any:
            chosen = next(option for option in options if option.kind == "allow_once")
            outcome = acp.schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id)
            return acp.schema.RequestPermissionResponse(outcome=outcome)

    with anyio.fail_after(60):
        async with acp.spawn_agent_process(Client(), AGENT, "--recipe", scripted) as (connection, process):
            hello = await connection.initialize(
                protocol_version=acp.PROTOCOL_VERSION, client_info=acp.schema.Implementation(name="tests", version="1")
            )
            assert hello.protocol_version == 1
            assert hello.agent_info.name == "cantrip-acp"
            assert hello.auth_methods
            with pytest.raises(acp.RequestError) as refused:
                await connection.new_session(cwd="relative")
            assert refused.value.code == -32602
            session = await connection.new_session(cwd=str(folder))

            reply = await connection.prompt(
                session_id=session.session_id, prompt=[acp.text_block("Say hello and make a file.")]
            )
            assert reply.stop_reason == "end_turn"
            check_first(updates)
            assert (folder / "notes").read_text() == "made\n"

            updates.clear()
            in_progress = anyio.Event()
            replies = []

            async def prompt() -> None:
                replies.append(
                    await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("Run for long.")])
                )

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(prompt)
                await in_progress.wait()
                await connection.cancel(session_id=session.session_id)
            assert replies[0].stop_reason == "cancelled"

            updates.clear()
            link = acp.resource_link_block("notes", f"file://{folder}/notes")
            reply = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("And now? "), link])
            assert reply.stop_reason == "end_turn"
            assert updates[0]["content"]["text"] == "Nothing more."
            process.stdin.close()
            assert await process.wait() == 0


@pytest.mark.sandbox
@needs_typescript
def test_the_typescript_sdk(scripted: str, folder: Path) -> None:
    ended = subprocess.run(
        ["node", "session.mjs", str(folder), AGENT, "--recipe", scripted],
        cwd=TYPESCRIPT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert seen["hello"]["protocolVersion"] == 1
    assert seen["refused"]["code"] == -32602
    assert seen["first"]["stopReason"] == "end_turn"
    check_first(seen["first"]["updates"])
    assert (folder / "notes").read_text() == "made\n"
    assert seen["second"]["stopReason"] == "cancelled"
    meanwhile = seen["seenWhileRunning"]
    assert meanwhile["steered"] == {"outcome": "injected"}
    assert [each["text"] for each in meanwhile["queue"]["prompts"]] == ["later"]
    assert meanwhile["removed"]["stopReason"] == "cancelled"
    assert seen["third"]["stopReason"] == "end_turn"
    assert [update["content"]["text"] for update in seen["third"]["updates"] if "content" in update] == [
        "Nothing more."
    ]
    assert seen["ended"] == {"code": 0, "signal": None}
    assert "rror" not in ended.stderr, ended.stderr


@pytest.mark.sandbox
@needs_typescript
def test_the_typescript_sdk_in_version_2(scripted: str, folder: Path) -> None:
    ended = subprocess.run(
        ["node", "session-v2.mjs", str(folder), AGENT, "--recipe", scripted],
        cwd=TYPESCRIPT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    seen = json.loads(ended.stdout)
    assert (seen["hello"]["protocolVersion"], seen["refused"]["code"]) == (2, -32602)
    first = seen["first"]
    assert first["state"]["stopReason"] == "end_turn"
    kinds = [update["sessionUpdate"] for update in first["updates"]]
    assert {"user_message", "agent_thought_chunk", "agent_message_chunk", "tool_call_update"} < set(kinds)
    assert {"terminal_update", "terminal_output_chunk", "state_update"} < set(kinds)
    (message,) = [update for update in first["updates"] if update["sessionUpdate"] == "user_message"]
    assert message["messageId"] == first["reply"]["messageId"]
    words = [u["content"]["text"] for u in first["updates"] if u["sessionUpdate"] == "agent_message_chunk"]
    assert words == ["Hello", " there.", "The file is made."]
    # The command asked first, with the call as the subject.
    assert seen["asked"][0]["subject"]["toolCall"]["kind"] == "execute"
    assert (folder / "notes").read_text() == "made\n"
    assert seen["second"]["state"]["stopReason"] == "cancelled"
    assert seen["hello"]["_meta"]["steering"] == {"supported": True}
    assert seen["meanwhile"] == {
        "steered": {"outcome": "injected"},
        "queue": {
            "sessionId": seen["opened"]["sessionId"],
            "prompts": [{"id": "later", "text": "later", "sending": True}],
        },
        "removed": {"code": -32800},
    }
    assert [each["path"] for each in seen["changes"]["files"]] == ["notes"]
    assert {each["configId"]: each["currentValue"] for each in seen["option"]["configOptions"]}["mode"] == "read-only"
    assert [each["sessionId"] for each in seen["list"]["sessions"]] == [seen["opened"]["sessionId"]]
    past = [update for update in seen["history"] if update["sessionUpdate"] == "user_message_chunk"]
    assert past[0]["messageId"] == first["reply"]["messageId"]
    assert [update["state"] for update in seen["history"] if update["sessionUpdate"] == "state_update"] == ["idle"]
    assert seen["third"]["state"]["stopReason"] == "end_turn"
    assert "Nothing more." in str(seen["third"]["updates"])
    assert seen["ended"] == {"code": 0, "signal": None}
    assert "rror" not in ended.stderr, ended.stderr
