"""Editor files: reads and writes files through the client (ACP, File System), including unsaved text.

The client's answer is untrusted: its type is checked and its time is limited. The caller must limit its size, and
decide which files the client may be asked for (`editor_file_gates`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from cantrip_acp.acp.wire.connection import Disconnected
from cantrip_acp.acp.wire.jsonrpc import METHOD_NOT_FOUND, RpcError
from cantrip_acp.core.errors import GateError
from cantrip_acp.gates.files.encoding import sendable

if TYPE_CHECKING:
    from cantrip_acp.acp.wire.connection import Connection

log = logging.getLogger(__name__)

READ_SECONDS = 20.0
WRITE_SECONDS = 60.0
"""Seconds that a client may take. A write may wait for a user who looks at the change."""

_SAID = 300
"""Characters of the client's error text that are passed on."""


class ReadTextFile(msgspec.Struct, rename="camel", omit_defaults=True):
    session_id: str
    path: str
    line: int | None = None
    limit: int | None = None


class TextFile(msgspec.Struct):
    content: str


class WriteTextFile(msgspec.Struct, rename="camel"):
    session_id: str
    path: str
    content: str


class Unanswered(GateError):
    """The client did not answer in time."""


class Refused(GateError):
    """The client answered with an error: the file does not exist there, or cannot be read or written."""


class Buffers:
    """The client's files in one session. ``reads`` and ``writes`` say what it offers."""

    def __init__(self, connection: Connection, session_id: str, *, reads: bool, writes: bool) -> None:
        self.reads, self.writes = reads, writes
        self._connection = connection
        self._session_id = session_id

    async def read(self, path: str, shown: str, line: int | None = None, limit: int | None = None) -> str | None:
        """The text of a file, or ``limit`` lines of it from ``line`` (from 1); None where the client lacks the method.

        ``path`` is absolute; ``shown`` is the entity's name for the file. Raises `Refused` and `Unanswered`.
        """
        request = ReadTextFile(self._session_id, path, line, limit)
        answer = await self._ask("fs/read_text_file", request, TextFile, READ_SECONDS, f"reading {shown!r}")
        if answer is None:
            self.reads = False
            return None
        return sendable(str(answer.content))

    async def write(self, path: str, shown: str, content: str) -> bool:
        """Replace the text of a file with ``content``; False where the client lacks the method. Raises as `read`."""
        request = WriteTextFile(self._session_id, path, content)
        answer = await self._ask("fs/write_text_file", request, Any, WRITE_SECONDS, f"writing {shown!r}")
        if answer is None:
            self.writes = False
        return answer is not None

    async def _ask(self, method: str, request: Any, shape: Any, seconds: float, doing: str) -> Any:
        """The answer; None where the client lacks the method that it offered."""
        try:
            with anyio.fail_after(seconds):
                answer = await self._connection.request(method, request, shape)
        except TimeoutError:
            unsure = ". It may have been written all the same: look before you go on" if "write" in method else ""
            raise Unanswered(f"the editor did not answer within {seconds:g} seconds, {doing}{unsure}") from None
        except Disconnected:
            raise Unanswered(f"the editor is gone, {doing}") from None
        except RpcError as problem:
            if problem.code == METHOD_NOT_FOUND:
                log.warning("the client offered %s and does not have it: the disk is used from now on", method)
                return None
            said = " ".join(problem.message.split())[:_SAID]
            raise Refused(f"the editor refused, {doing}: {said} ({method} failed with {problem.code})") from None
        return {} if answer is None else answer
