"""The agent of `polite.py`, written with the official Python SDK: the client is tried against somebody else's protocol code.

What it does in a turn is named by the prompt: `say`, `tool`, `ask`, `read PATH`, `write PATH`, `terminal`, `wait`, `limit`,
`refuse`, `error`, `print`, `many N`.
"""

import asyncio
import sys
from typing import Any
from uuid import uuid4

import acp
from acp import helpers, schema


class Polite:
    def __init__(self) -> None:
        self._client: Any = None
        self._cancelled = asyncio.Event()
        self._capabilities: Any = None

    def on_connect(self, client: Any) -> None:
        self._client = client

    async def initialize(self, protocol_version: int, client_capabilities: Any = None, **_: Any) -> Any:
        self._capabilities = client_capabilities
        return acp.InitializeResponse(
            protocol_version=1,
            agent_info=schema.Implementation(name="polite", title="Polite", version="1.2.3"),
        )

    async def new_session(self, cwd: str, **_: Any) -> Any:
        return acp.NewSessionResponse(
            session_id=uuid4().hex, field_meta={"cantrip": {"loom": "/looms/polite.loom.jsonl"}}
        )

    async def cancel(self, session_id: str, **_: Any) -> None:
        self._cancelled.set()

    async def prompt(self, session_id: str, prompt: list[Any], **_: Any) -> Any:
        words = "".join(getattr(block, "text", "") for block in prompt)
        what, _space, rest = words.partition(" ")
        reason = await getattr(self, f"do_{what}")(session_id, rest) or "end_turn"
        return acp.PromptResponse(
            stop_reason=reason,
            usage=schema.Usage(total_tokens=1234, input_tokens=1200, output_tokens=34, cached_read_tokens=1000),
        )

    async def _send(self, session_id: str, update: Any) -> None:
        await self._client.session_update(session_id, update)

    async def do_say(self, session_id: str, rest: str) -> None:
        await self._send(session_id, helpers.update_agent_thought_text("Thinking about it."))
        for word in (rest or "Hello there, friend.").split(" "):
            await self._send(session_id, helpers.update_agent_message_text(word + " "))

    async def do_many(self, session_id: str, rest: str) -> None:
        for number in range(int(rest)):
            await self._send(session_id, helpers.update_agent_message_text(f"{number} "))

    async def do_tool(self, session_id: str, rest: str) -> None:
        await self._send(
            session_id,
            helpers.start_tool_call(
                "t1", "make test", kind="execute", status="pending", raw_input={"command": "make test"}
            ),
        )
        await self._send(session_id, helpers.update_tool_call("t1", status="in_progress"))
        shown = ""
        for line in ("collecting\n", "\x1b[31m1 failed\x1b[0m\n"):
            shown += line
            content = [helpers.tool_content(helpers.text_block(shown))]
            await self._send(session_id, helpers.update_tool_call("t1", content=content))
        await self._send(session_id, helpers.update_tool_call("t1", status="failed", raw_output={"exit_code": 2}))
        diff = helpers.tool_diff_content(path="/p/a.py", old_text="one\ntwo\nthree\n", new_text="one\n2\nthree\n")
        await self._send(
            session_id,
            helpers.start_tool_call(
                "t2",
                "Edit a.py",
                kind="edit",
                status="completed",
                content=[diff],
                locations=[schema.ToolCallLocation(path="/p/a.py", line=2)],
            ),
        )

    async def do_ask(self, session_id: str, rest: str) -> None:
        options = [
            schema.PermissionOption(option_id="one", name="Allow once", kind="allow_once"),
            schema.PermissionOption(option_id="all", name="Always allow", kind="allow_always"),
            schema.PermissionOption(option_id="no", name="Reject", kind="reject_once"),
        ]
        call = schema.ToolCallUpdate(tool_call_id="a1", title="Delete the world", kind="delete", status="pending")
        answer = await self._client.request_permission(session_id=session_id, tool_call=call, options=options)
        chosen = getattr(answer.outcome, "option_id", None)
        await self._send(session_id, helpers.update_agent_message_text(f"answer: {answer.outcome.outcome} {chosen}"))
        return None if answer.outcome.outcome == "selected" else "cancelled"

    async def do_read(self, session_id: str, rest: str) -> None:
        try:
            answer = await self._client.read_text_file(session_id=session_id, path=rest)
            words = f"content: {answer.content}"
        except acp.RequestError as refused:
            words = f"refused: {refused.code} {refused.data or refused}"
        await self._send(session_id, helpers.update_agent_message_text(words))

    async def do_write(self, session_id: str, rest: str) -> None:
        try:
            await self._client.write_text_file(session_id=session_id, path=rest, content="written by polite\n")
            words = "written"
        except acp.RequestError as refused:
            words = f"refused: {refused.code} {refused.data or refused}"
        await self._send(session_id, helpers.update_agent_message_text(words))

    async def do_terminal(self, session_id: str, rest: str) -> None:
        try:
            await self._client.create_terminal(session_id=session_id, command="id")
            words = "a terminal!"
        except acp.RequestError as refused:
            words = f"refused: {refused.code}"
        words += f", advertised: {self._capabilities.terminal}"
        await self._send(session_id, helpers.update_agent_message_text(words))

    async def do_wait(self, session_id: str, rest: str) -> str:
        await self._send(session_id, helpers.update_agent_message_text("waiting"))
        self._cancelled.clear()
        await self._cancelled.wait()
        return "cancelled"

    async def do_limit(self, session_id: str, rest: str) -> str:
        return "max_turn_requests"

    async def do_refuse(self, session_id: str, rest: str) -> str:
        return "refusal"

    async def do_error(self, session_id: str, rest: str) -> None:
        print("about to fail", file=sys.stderr, flush=True)
        raise acp.RequestError(-32603, "the model is out of order", {"details": "status 529"})

    async def do_print(self, session_id: str, rest: str) -> None:
        sys.stdout.write("Warning: a library says hello\n")
        sys.stdout.flush()
        await self.do_say(session_id, "still here")


async def main() -> None:
    await acp.run_agent(Polite())


asyncio.run(main())
