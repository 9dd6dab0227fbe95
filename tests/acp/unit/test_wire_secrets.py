"""Secrets on the wire: no message that is sent has one, whatever its encoding."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from cantrip_acp.acp import protocol as acp
from cantrip_acp.acp.wire.jsonrpc import ErrorObject, ErrorReply, Notification, RpcError
from cantrip_acp.acp.wire.send_queue import SendQueue
from cantrip_acp.text.redaction import shared
from tests.support.secret_places import SECRET

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True, params=[True, False], ids=["masked", "control"])
def masks(request: pytest.FixtureRequest) -> bool:
    """Whether the process knows the secret. The control shows that the test would see it."""
    if request.param:
        shared().add(SECRET)
    return bool(request.param)


@pytest.mark.parametrize(
    "params",
    [
        acp.SessionNotification("s", acp.AgentMessageChunk(acp.TextContent(f"x {SECRET}"), "m")),
        {"a": [{SECRET: 1}], "n": 1},
        {"a": f"half a pair \ud800 {SECRET}"},
        {"big": 2**80, "a": SECRET},
    ],
    ids=["update", "key", "surrogate", "big number"],
)
async def test_what_is_sent_has_no_secret(params: Any, masks: bool) -> None:
    sent = bytearray()

    class Stream:
        async def send(self, item: bytes, /) -> None:
            sent.extend(item)

    queue = SendQueue(Stream())
    queue.put(Notification("a", {"before": 1}), masked=True)
    queue.put(Notification("session/update", params), masked=True)
    queue.put(ErrorReply(b"1", ErrorObject.of(RpcError(-1, f"no: {SECRET}", {"why": SECRET}))))  # type: ignore[arg-type]
    queue.finish()
    with anyio.fail_after(5):
        await queue.run()
    assert sent.count(b"\n") == 3
    assert (SECRET.encode() in sent) is not masks
