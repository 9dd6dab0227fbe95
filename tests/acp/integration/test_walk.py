"""How many modules a prompt passes on its way to the entity (ARCHITECTURE, "One prompt")."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import anyio

from cantrip_acp.acp.server import serve

RECIPE = """
crystal: {provider: scripted, responses: [{content: One.}, {content: Two.}]}
circle: {gates: [done], wards: [{max_turns: 3}]}
"""


class Walk:
    """The modules of the package that are called one after the other, from the line of a prompt to `Entity.stream`."""

    def __init__(self) -> None:
        self.stays: list[str] = []
        self._on = False

    def __call__(self, frame: Any, event: str, arg: object) -> None:
        module = frame.f_globals.get("__name__", "")
        if event != "call" or not module.startswith("cantrip_acp."):
            return
        name = frame.f_code.co_name
        if name == "_handle_line" and b"session/prompt" in bytes(frame.f_locals["line"]):
            self._on, self.stays = True, []
        if self._on and self.stays[-1:] != [module]:
            self.stays.append(module)
        if module == "cantrip_acp.core.entity" and name == "stream":
            self._on = False


async def test_a_prompt_passes_few_modules(tmp_path: Path) -> None:
    recipe = tmp_path / "r.cantrip.yaml"
    recipe.write_text(RECIPE)
    source, to_agent = os.pipe()
    from_agent, sink = os.pipe()
    rest = b""

    async def ask(number: int, method: str, **params: Any) -> Any:
        nonlocal rest
        message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        os.write(to_agent, json.dumps(message).encode() + b"\n")
        while True:
            line, newline, tail = rest.partition(b"\n")
            if not newline:
                await anyio.wait_readable(from_agent)
                rest += os.read(from_agent, 1 << 16)
                continue
            rest = tail
            answer = json.loads(line)
            if answer.get("id") == number:
                return answer["result"]

    walk = Walk()
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: serve(source, sink, recipe=str(recipe), state_dir=tmp_path / "state"))
            await ask(1, "initialize", protocolVersion=1)
            session = (await ask(2, "session/new", cwd=str(tmp_path), mcpServers=[]))["sessionId"]
            prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "Say a number."}]}
            await ask(3, "session/prompt", **prompt)
            # The first prompt imports what later ones need.
            sys.setprofile(walk)
            await ask(4, "session/prompt", **prompt)
            sys.setprofile(None)
            os.close(to_agent)
    finally:
        sys.setprofile(None)
        for fd in (source, from_agent, sink):
            os.close(fd)
    shown = "\n".join(walk.stays)
    assert walk.stays[0] == "cantrip_acp.acp.wire.connection", shown
    assert len(walk.stays) <= 14, shown
    assert len(walk.stays) - len(set(walk.stays)) <= 4, shown
