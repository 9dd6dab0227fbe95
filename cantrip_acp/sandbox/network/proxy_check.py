"""Proxy check in a real sandbox: a listed test server must be reachable, an unlisted one must not."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from cantrip_acp.core.errors import SandboxError
from cantrip_acp.core.wards import Wards
from cantrip_acp.sandbox.launch.sandbox import Sandbox
from cantrip_acp.sandbox.policy.policy import PROXY_PORT

_SCRIPT = """
ask() {
  exec 3<>/dev/tcp/127.0.0.1/@PROXY@ && printf 'GET http://127.0.0.1:%s/ HTTP/1.1\\r\\nHost: 127.0.0.1:%s\\r\\n\\r\\n' "$1" "$1" >&3
  IFS= read -r line <&3; echo "$2 $line"
}
ask @LISTED@ listed
ask @OTHER@ other
(exec 4<>/dev/tcp/127.0.0.1/@LISTED@) 2>/dev/null && echo direct yes
true
"""


async def attempt() -> None:
    """Raises `SandboxError` where the list is not enforced here. Needs bash inside."""
    heard: list[str] = []

    def answering(name: str) -> Any:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(name)
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
            writer.close()

        return answer

    listed = await asyncio.start_server(answering("listed"), "127.0.0.1", 0)
    other = await asyncio.start_server(answering("other"), "127.0.0.1", 0)
    try:
        ports = [server.sockets[0].getsockname()[1] for server in (listed, other)]
        script = _SCRIPT.replace("@PROXY@", str(PROXY_PORT))
        script = script.replace("@LISTED@", str(ports[0])).replace("@OTHER@", str(ports[1]))
        wards = Wards(bash_network=(f"127.0.0.1:{ports[0]}",), bash_timeout_ms=20_000)
        outcome = await Sandbox(wards, None).run(script)
    finally:
        listed.close()
        other.close()
    said = [re.sub(r"^(\w+ HTTP/1.1 \d+).*", r"\1", line.strip()) for line in outcome.stdout.splitlines()]
    if said != ["listed HTTP/1.1 204", "other HTTP/1.1 403"] or heard != ["listed"]:
        raise SandboxError(
            f"a list of hosts does not hold here: {outcome.stdout.strip() or outcome.stderr.strip()[-300:]}"
        )
