"""What a running program talks to: JSON-RPC 2.0 on a Unix socket, one message for each line.

A program in the sandbox has its end of a socket as its standard input: a sandbox opens no Unix sockets, and so nobody else
can be at that end. Outside, `listen` serves a socket file, and the kernel says that the peer is the same user.
Methods: ``scope``, ``search``, ``commit``, ``run``, ``await``. ``call`` is a small client for shells:
``"$CANTRIP_ENGINE_CALL" scope '{"id": "…"}'``.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import stat
import struct
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Protocol

import anyio
import anyio.abc
import anyio.to_thread
import msgspec

from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.substrate.boundary import Boundary
from cantrip_acp.substrate.chunks import (
    Change,
    Chunk,
    CommitRefused,
    OutsideBoundary,
    SubstrateError,
    parse_change,
    refuse_secrets,
)
from cantrip_acp.substrate.substrate import Substrate
from cantrip_acp.text.logs import logger

LONGEST_LINE = 4_000_000
"""Maximum size of a message, in bytes."""
MOST_CONNECTIONS = 16
"""The maximum number of open connections of one process. Further ones are closed at once."""
_LONGEST_WAIT_S = 3600.0
_XUCRED = struct.calcsize("2Ih16I")
"""The size of a `struct xucred` of macOS."""
_LOOK_S = 1.0
"""The interval of checks on a client that waits."""
_log = logger(__name__)
_CLIENT = """\
#!/usr/bin/env python3
import json, socket, sys
if len(sys.argv) not in (2, 3):
    sys.exit("usage: call METHOD [JSON]")
line = socket.socket(fileno=0)
params = json.loads(sys.argv[2]) if len(sys.argv) == 3 else {}
line.sendall(json.dumps({"jsonrpc": "2.0", "id": 1, "method": sys.argv[1], "params": params}).encode() + b"\\n")
answer = json.loads(line.makefile("rb").readline() or b'{"error": {"message": "the engine closed the connection"}}')
if "error" in answer:
    sys.exit(answer["error"]["message"])
print(json.dumps(answer["result"]))
"""
_PARSE, _INVALID, _NO_METHOD, _PARAMS, _INTERNAL = -32700, -32600, -32601, -32602, -32603
_REFUSED, _OUTSIDE = -32000, -32001


class Runs(Protocol):
    """The part of the engine that a peer uses."""

    substrate: Substrate

    async def run_inside(self, process_id: str, program: str, given: Mapping[str, Any], boundary: Boundary) -> str:
        """Start a program for a process that runs or is served. Returns the new process's id."""
        ...

    async def wait(self, process_id: str, timeout_s: float | None = None) -> Chunk:
        """Wait for the end of a process."""
        ...


class _Wrong(Exception):
    def __init__(self, code: int, text: str) -> None:
        self.code, self.text = code, text


@asynccontextmanager
async def serve_process(engine: Runs, process_id: str, boundary: Boundary) -> AsyncIterator[tuple[int, str]]:
    """Serve one process. Yields the descriptor of its end, which the caller closes, and the folder of the shell's client."""
    folder = await anyio.to_thread.run_sync(_make_folder)
    ours, theirs = socket.socketpair()
    descriptor = theirs.detach()
    try:
        peer = Peer(engine, process_id, boundary)
        async with await anyio.abc.SocketStream.from_socket(ours) as stream, anyio.create_task_group() as tasks:
            tasks.start_soon(peer.answer_all, stream)
            try:
                yield descriptor, folder
            finally:
                tasks.cancel_scope.cancel()
    finally:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


async def listen(engine: Runs, path: str, process_id: str, boundary: Boundary) -> None:
    """Serve a socket file for this user until cancelled. Raises `OSError` if it cannot be made, or is already served."""
    peer = Peer(engine, process_id, boundary)
    connections = 0

    async def serve(stream: anyio.abc.SocketStream) -> None:
        nonlocal connections
        async with stream:
            if connections >= MOST_CONNECTIONS or _uid_of(stream) != os.getuid():
                return
            connections += 1
            try:
                await peer.answer_all(stream)
            finally:
                connections -= 1

    await anyio.to_thread.run_sync(_remove_stale, path)
    async with await anyio.create_unix_listener(path, mode=0o600) as listener:
        try:
            await listener.serve(serve)
        finally:
            with contextlib.suppress(OSError):
                os.unlink(path)


def _remove_stale(path: str) -> None:
    """Remove a socket that nobody serves any more. Raises `OSError` if it is served, or is not a socket."""
    if not os.path.lexists(path):
        return
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise FileExistsError(errno.EEXIST, "there is a file of that name, and it is not a socket")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise FileExistsError(errno.EADDRINUSE, "another process serves it")


def _make_folder() -> str:
    import tempfile

    folder = tempfile.mkdtemp(prefix="cantrip-engine-", dir=os.environ.get("XDG_RUNTIME_DIR") or None)
    # The shell's client is readable inside the sandbox, where nothing here can be written.
    client = os.path.join(folder, "call")
    with open(client, "w", encoding="utf-8") as file:
        file.write(_CLIENT)
    os.chmod(client, 0o500)
    return folder


class Peer:
    """Answers the requests of one process."""

    def __init__(self, engine: Runs, process_id: str, boundary: Boundary) -> None:
        self._engine, self._process_id, self._boundary = engine, process_id, boundary

    async def answer_all(self, stream: anyio.abc.SocketStream) -> None:
        """Answer the messages of a connection in their order, until it ends."""
        waiting = bytearray()
        try:
            async for piece in stream:
                waiting += piece
                if b"\n" not in piece and len(waiting) > LONGEST_LINE:
                    await _send(stream, _failure(None, _INVALID, f"a message has at most {LONGEST_LINE:,} bytes"))
                    return
                if b"\n" not in piece:
                    continue
                *lines, rest = bytes(waiting).split(b"\n")
                waiting = bytearray(rest)
                for line in lines:
                    answer = await self._answer(line, stream) if line.strip() else None
                    if answer is not None:
                        await _send(stream, answer)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            return
        finally:
            # The program may wait for the end of the connection before it ends.
            await stream.aclose()

    async def _answer(self, line: bytes, stream: anyio.abc.SocketStream) -> dict[str, Any] | None:
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return _failure(None, _PARSE, "the line is not JSON")
        if (
            not isinstance(message, dict)
            or message.get("jsonrpc") != "2.0"
            or not isinstance(message.get("method"), str)
        ):
            return _failure(
                None, _INVALID, "a request has `jsonrpc`, `id`, `method` and `params`; there are no batches"
            )
        number = message.get("id")
        if isinstance(number, bool) or not (number is None or isinstance(number, (str, int, float))):
            return _failure(None, _INVALID, "an `id` is a text or a number")
        answer = await self._result(number, message["method"], message.get("params", {}), stream)
        # Nobody waits for the answer to a notification, even if it is an error.
        return answer if "id" in message else None

    async def _result(
        self, number: str | float | None, method: str, params: Any, stream: anyio.abc.SocketStream
    ) -> dict[str, Any]:
        try:
            if not isinstance(params, dict):
                raise _Wrong(_PARAMS, "`params` is an object")
            return {"jsonrpc": "2.0", "id": number, "result": await self._call(method, params, stream)}
        except _Wrong as wrong:
            return _failure(number, wrong.code, wrong.text)
        except OutsideBoundary as problem:
            return _failure(number, _OUTSIDE, str(problem))
        except CommitRefused as problem:
            data = {"rule": problem.rule, "chunk": problem.chunk, "scope": problem.scope}
            return _failure(number, _REFUSED, str(problem), data)
        except SubstrateError as problem:
            return _failure(number, _REFUSED, str(problem))
        except Exception:  # noqa: BLE001 - one request that nobody thought of must not end the engine and its other runs
            _log.exception("request %r cannot be answered", method[:80])
            return _failure(number, _INTERNAL, "this request cannot be answered")

    async def _call(self, method: str, params: Mapping[str, Any], stream: anyio.abc.SocketStream) -> Any:
        engine, boundary = self._engine, self._boundary
        if method == "scope":
            scope = await anyio.to_thread.run_sync(
                lambda: engine.substrate.scope(
                    _text(params, "id", self._process_id), at=_number(params, "at"), boundary=boundary
                )
            )
            return msgspec.to_builtins(scope)
        if method == "search":
            query, limit = _text(params, "query"), min(_number(params, "limit") or 20, 100)
            hits = await anyio.to_thread.run_sync(
                lambda: engine.substrate.search(query, boundary=boundary, limit=limit)
            )
            return msgspec.to_builtins(hits)
        if method == "commit":
            change = parse_change({key: params[key] for key in ("chunks", "placements", "removals") if key in params})
            refuse_secrets(change)
            source = f"program:{self._process_id}"
            await anyio.to_thread.run_sync(self._keep_records, change)
            commit = await anyio.to_thread.run_sync(
                lambda: engine.substrate.commit(change, author=source, source=source, boundary=boundary)
            )
            return {"commit": commit.number, "changed": commit.changed}
        if method == "run":
            given = params.get("input", {})
            if not isinstance(given, dict):
                raise _Wrong(_PARAMS, "`input` is an object")
            narrower = Boundary(_sets(params, "read"), _sets(params, "write"))
            inside = (boundary & narrower).held_by(self._process_id)
            process = await engine.run_inside(self._process_id, _text(params, "program"), given, inside)
            return {"process": process}
        if method == "await":
            process = _text(params, "process")
            if not await anyio.to_thread.run_sync(lambda: engine.substrate.readable(process, boundary)):
                raise await anyio.to_thread.run_sync(
                    engine.substrate.refuse,
                    boundary,
                    "await",
                    process,
                    f"process {process!r} is not inside the boundary",
                )
            timeout_s = _number(params, "timeout_s")
            end = anyio.current_time() + min(600.0 if timeout_s is None else timeout_s, _LONGEST_WAIT_S)
            while True:
                left = end - anyio.current_time()
                chunk = await engine.wait(process, max(0.0, min(left, _LOOK_S)))
                # A client that has gone must not keep its place.
                if left <= _LOOK_S or chunk.body.get("state") != "running" or _has_gone(stream):
                    break
            body = chunk.body
            return {key: body[key] for key in ("state", "exit_code", "text", "why") if key in body} | {
                "process": process
            }
        raise _Wrong(
            _NO_METHOD, f"there is no method {method[:80]!r}; the methods are scope, search, commit, run and await"
        )

    def _keep_records(self, change: Change) -> None:
        """Refuse a change to the engine's record of a run: its process, its input, and their placements."""
        substrate, boundary = self._engine.substrate, self._boundary

        def is_record(chunk: str) -> bool:
            process = chunk.removesuffix(":input")
            if process == self._process_id:
                return True
            # The commit itself refuses chunks outside the boundary, with the same answer for all of them.
            return substrate.readable(chunk, boundary) and any(
                (each.scope, each.kind) == ("type:process", "instance") for each in substrate.placements(process)
            )

        touched = [each.id for each in change.chunks]
        touched += [each.chunk for each in change.touched() if each.kind == "instance"]
        touched += [each.chunk for each in change.removals if each.kind == "relates" and is_record(each.scope)]
        for chunk in dict.fromkeys(touched):
            if is_record(chunk):
                raise substrate.refuse(boundary, "commit", chunk, f"only the engine changes {chunk!r}")


def _uid_of(stream: anyio.abc.SocketStream) -> int:
    raw = stream.extra(anyio.abc.SocketAttribute.raw_socket)
    if sys.platform == "darwin":
        # LOCAL_PEERCRED of SOL_LOCAL: a `struct xucred`, that is a version, the user and the groups.
        return int(struct.unpack_from("2I", raw.getsockopt(0, 1, _XUCRED))[1])
    credentials = raw.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _has_gone(stream: anyio.abc.SocketStream) -> bool:
    """Whether the peer has closed the connection. A peer that only stopped sending still waits for its answer."""
    return is_ready(stream.extra(anyio.abc.SocketAttribute.raw_socket), event=0)


async def _send(stream: anyio.abc.SocketStream, answer: Mapping[str, Any]) -> None:
    await stream.send(json.dumps(answer).encode() + b"\n")


def _failure(number: Any, code: int, text: str, data: Any = None) -> dict[str, Any]:
    error = {"code": code, "message": text} | ({"data": data} if data is not None else {})
    return {"jsonrpc": "2.0", "id": number, "error": error}


def _text(params: Mapping[str, Any], name: str, default: str | None = None) -> str:
    value = params.get(name, default)
    if not isinstance(value, str) or len(value) > 10_000:
        raise _Wrong(_PARAMS, f"`{name}` is a text")
    return value


def _number(params: Mapping[str, Any], name: str) -> int | None:
    value = params.get(name)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53):
        raise _Wrong(_PARAMS, f"`{name}` must be a whole number")
    return value


def _sets(params: Mapping[str, Any], name: str) -> tuple[frozenset[str], ...]:
    value = params.get(name)
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise _Wrong(_PARAMS, f"`{name}` must be a list of scope ids")
    return (frozenset(value),)
