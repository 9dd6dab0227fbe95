"""The official SDKs as clients that lend files with unsaved buffers and terminals."""

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


def call(gate: str, **args: Any) -> dict[str, Any]:
    return {"tool_calls": [{"gate": gate, "args": args}]}


STEPS = [
    call("read_file", path="a.txt", offset=2),
    call("edit_file", path="a.txt", old_text="typed", new_text="edited"),
    call("client_terminal", command="echo from the terminal; exit 3"),
    {"content": "Done."},
]


@pytest.fixture
def scripted(recipe: Callable[..., str]) -> str:
    return recipe(STEPS, gates=["done", "read_file", "edit_file", "client_terminal"])


def check(updates: list[dict[str, Any]], folder: Path) -> None:
    """The same for every client."""
    assert (folder / "a.txt").read_text() == "# not saved\nedited\n"
    results = [update["rawOutput"] for update in updates if "rawOutput" in update]
    assert results[:2] == [{"output": "typed\n"}, {"output": "edited a.txt at line 2"}]
    assert (results[2]["output"], results[2]["exit_code"]) == ("from the terminal\n", 3)
    contents = [part for update in updates for part in update.get("content") or () if isinstance(part, dict)]
    assert [part["type"] for part in contents if part["type"] != "content"] == ["diff", "terminal"]
    diff = next(part for part in contents if part["type"] == "diff")
    assert (diff["oldText"], diff["newText"]) == ("# not saved\ntyped\n", "# not saved\nedited\n")


@pytest.mark.anyio
async def test_the_python_sdk(scripted: str, folder: Path) -> None:
    path = folder / "a.txt"
    path.write_text("saved\n")
    unsaved = {str(path): "# not saved\ntyped\n"}
    updates: list[dict[str, Any]] = []
    ended: dict[str, subprocess.CompletedProcess[str]] = {}
    asked: list[str] = []
    schema = acp.schema

    class Client(acp.Client):
        async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
            updates.append(update.model_dump(by_alias=True, exclude_none=True))

        async def request_permission(self, session_id: str, tool_call: Any, options: Any, **kwargs: Any) -> Any:
            asked.append(tool_call.title)
            chosen = next(option for option in options if option.kind == "allow_once")
            outcome = schema.AllowedOutcome(outcome="selected", option_id=chosen.option_id)
            return schema.RequestPermissionResponse(outcome=outcome)

        async def read_text_file(
            self, session_id: str, path: str, line: int | None = None, limit: int | None = None, **kwargs: Any
        ) -> Any:
            lines = (unsaved.get(path) or Path(path).read_text()).splitlines(keepends=True)[(line or 1) - 1 :]
            return schema.ReadTextFileResponse(content="".join(lines if limit is None else lines[:limit]))

        async def write_text_file(self, session_id: str, path: str, content: str, **kwargs: Any) -> Any:
            unsaved.pop(path, None)
            Path(path).write_text(content)

        async def create_terminal(
            self, session_id: str, command: str, args: Any = None, env: Any = None, cwd: Any = None, **kwargs: Any
        ) -> Any:
            run = await anyio.run_process([command, *(args or [])], cwd=cwd, check=False)
            ended["t1"] = subprocess.CompletedProcess(run.args, run.returncode, run.stdout.decode())
            return schema.CreateTerminalResponse(terminal_id="t1")

        async def wait_for_terminal_exit(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
            return schema.WaitForTerminalExitResponse(exit_code=ended[terminal_id].returncode)

        async def terminal_output(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
            return schema.TerminalOutputResponse(output=ended[terminal_id].stdout, truncated=False)

        async def release_terminal(self, session_id: str, terminal_id: str, **kwargs: Any) -> Any:
            del ended[terminal_id]

    files = schema.FileSystemCapabilities(read_text_file=True, write_text_file=True)
    with anyio.fail_after(60):
        async with acp.spawn_agent_process(Client(), AGENT, "--recipe", scripted) as (connection, process):
            await connection.initialize(
                protocol_version=acp.PROTOCOL_VERSION,
                client_capabilities=schema.ClientCapabilities(fs=files, terminal=True),
            )
            session = await connection.new_session(cwd=str(folder))
            reply = await connection.prompt(session_id=session.session_id, prompt=[acp.text_block("Go.")])
            assert reply.stop_reason == "end_turn"
            process.stdin.close()
            assert await process.wait() == 0
    check(updates, folder)
    assert asked == ["Edit a.txt (+1 −1)", "echo from the terminal; exit 3"]
    assert not ended


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.skipif(
    not (TYPESCRIPT / "node_modules").exists(),
    reason="npm ci has not run in tests/e2e/clients/typescript (make test does)",
)
def test_the_typescript_sdk(scripted: str, folder: Path) -> None:
    (folder / "a.txt").write_text("saved\n")
    run = subprocess.run(
        ["node", "services.mjs", str(folder), AGENT, "--recipe", scripted],
        cwd=TYPESCRIPT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    seen = json.loads(run.stdout)
    assert (seen["stopReason"], seen["ended"]) == ("end_turn", {"code": 0, "signal": None})
    check(seen["updates"], folder)
    assert seen["released"] == ["t1"]
