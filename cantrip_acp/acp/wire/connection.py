"""JSON-RPC 2.0 connection: reads and writes messages in both directions. The agent and the client both use it.

A `Connection` reads on one task and does no long work there. A handler may return an awaitable, which runs on its own
task. Handlers start in the order of the messages, so a cancel that follows a prompt finds the prompt. Messages are sent
in the order in which they were queued (`send_queue`).

Errors that the other side gets (ACP, Errors). None of them ends the connection, and notifications never get an answer:

- -32700: the line is not JSON. -32600: the line is not a message. Both have a null id if no id can be read.
- -32601: unknown request. -32602: wrong parameters, with the name of the field.
- -32800: the request was cancelled (``$/cancel_request``).
- -32603: a bug in a handler. The exception's text is not sent, because it may hold secrets.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, Protocol

import anyio
import anyio.lowlevel
import msgspec

from cantrip_acp.acp.wire.jsonrpc import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    MAX_LINE,
    METHOD_NOT_FOUND,
    NULL_ID,
    PARSE_ERROR,
    REQUEST_CANCELLED,
    Envelope,
    ErrorObject,
    ErrorReply,
    Id,
    LineSplitter,
    Notification,
    OutgoingRequest,
    Reply,
    RpcError,
    TooLong,
    decode_params,
    parse_id,
    parse_message,
)
from cantrip_acp.acp.wire.send_queue import HIGH_WATER, ByteSender, SendQueue
from cantrip_acp.text import codecs
from cantrip_acp.text.logs import logger

__all__ = ["Connection", "Disconnected", "Method", "Request", "RpcError"]

log = logger(__name__)

MAX_IN_FLIGHT = 1024
"""The largest number of open requests of the other side."""

UNREAD_LIMIT = 1024 * 1024
"""Bytes of unsent output at which reading stops. This limits the memory if a peer sends requests and never reads."""

GRACE = 0.5
"""Seconds that open requests get after the end of the connection, unless ``on_disconnect`` returns another number."""

FLUSH_SECONDS = 0.2
"""Seconds to write the last replies after the end of the connection."""

_ACTS = ("fs/", "terminal/", "mcp/")
"""Requests that do something in the client. Secrets in them are not masked, so that a file gets exactly what the entity wrote."""

LINES_AT_ONCE = 64
"""Lines that are handled in a row before other tasks may run."""


class ByteReceiver(Protocol):
    """Source of bytes: an anyio byte stream or a file descriptor."""

    async def receive(self) -> bytes: ...


class Disconnected(Exception):
    """The connection has ended, so a request to the other side gets no answer."""


class Request:
    """One request or notification that is being handled.

    If ``on_cancel`` is set, it is called when the other side cancels the request; otherwise the handler's task is
    cancelled. The functions in ``after`` run directly after the reply. A notification has ``id`` None and gets no reply.
    """

    __slots__ = ("_scope", "after", "cancelled", "id", "method", "on_cancel")

    def __init__(self, method: str, message_id: Id | None) -> None:
        self.method = method
        self.id = message_id
        self.cancelled = False
        self.on_cancel: Callable[[], None] | None = None
        self.after: list[Callable[[], None]] = []
        self._scope = anyio.CancelScope()

    def cancel(self) -> None:
        """Cancel the request because the other side asked for it. Its reply will be the error -32800."""
        self.cancelled = True
        if self.on_cancel is not None:
            self.on_cancel()
        else:
            self._scope.cancel()


Handler = Callable[[Any, Request], Any]
"""Takes the decoded parameters and the request. Returns the result, or an awaitable that runs on its own task."""


class Method(msgspec.Struct, frozen=True):
    """One method that this side serves. ``params`` is the type of its parameters."""

    params: Any
    handler: Handler
    notification: bool = False


class _Pending:
    """A request to the other side that waits for its answer."""

    __slots__ = ("done", "error", "result")

    def __init__(self) -> None:
        self.done = anyio.Event()
        self.result = msgspec.Raw(b"null")
        self.error: Exception | None = None

    def fail(self, error: Exception) -> None:
        self.error = error
        self.done.set()


class Connection:
    """One side of a connection. `run` serves ``methods`` until the other side closes the connection or `stop` is called."""

    def __init__(
        self,
        receive: ByteReceiver,
        send: ByteSender,
        methods: Mapping[str, Method],
        *,
        leftover: bytes = b"",
        max_line: int = MAX_LINE,
        masked: bool = False,
    ) -> None:
        """``masked``: known secrets are masked in what is sent, except in requests that act (`_ACTS`).
        ``leftover`` holds bytes that were already read from the input. ``methods`` may change while it runs."""
        self._receive = receive
        self._methods = methods
        self._leftover = leftover
        self._splitter = LineSplitter(max_line)
        self._max_line = max_line
        self._send_queue = SendQueue(send)
        self._masked = masked
        self._requests: set[Request] = set()
        self._request_done = anyio.Event()
        self._pending: dict[int, _Pending] = {}
        self._last_id = 0
        self._read_scope = anyio.CancelScope()
        self._tasks: anyio.abc.TaskGroup | None = None
        self._on_disconnect: Callable[[], float] | None = None
        self._finish_requests = False
        self._peer_gone = False
        self._grace_scope = anyio.CancelScope()
        self.closed = False

    # --- sending -----------------------------------------------------------------------------------------------------

    @property
    def congested(self) -> bool:
        """Whether the other side reads slower than this side writes."""
        return self._send_queue.waiting > HIGH_WATER

    async def wait_for_space(self) -> None:
        """Wait while `congested`."""
        await self._send_queue.wait_for_space()

    async def notify(self, method: str, params: Any) -> None:
        """Send a notification. Waits while the other side is slow."""
        queue = self._send_queue
        queue.put(Notification(method, params), masked=self._masked)
        if queue.waiting > HIGH_WATER:
            await queue.wait_for_space()

    def notify_now(self, method: str, params: Any, kind: type[Notification] = Notification) -> None:
        """Send a notification without waiting for a slow reader."""
        self._send_queue.put(kind(method, params), masked=self._masked)

    async def request(self, method: str, params: Any, result: Any = Any) -> Any:
        """Send a request, and return the answer as the type ``result``.

        Raises `RpcError` if the answer is an error or has the wrong shape, and `Disconnected` if the connection ends
        first. If this call is cancelled, the other side gets ``$/cancel_request``.
        """
        if self.closed:
            raise Disconnected(f"the connection is closed; {method} was not sent")
        self._last_id += 1
        number = self._last_id
        pending = self._pending[number] = _Pending()
        reports = self._masked and not method.startswith(_ACTS)
        self._send_queue.put(OutgoingRequest(number, method, params), masked=reports)
        try:
            await pending.done.wait()
        except BaseException:
            self._send_queue.put(Notification("$/cancel_request", {"requestId": number}))
            raise
        finally:
            del self._pending[number]
        if pending.error is not None:
            raise pending.error
        try:
            return codecs.json_decoder(result).decode(pending.result)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise RpcError(INVALID_REQUEST, f"the answer to {method} has the wrong shape: {problem}") from None

    # --- start and end -----------------------------------------------------------------------------------------------

    async def run(self, on_disconnect: Callable[[], float] | None = None, *, finish_requests: bool = False) -> None:
        """Serve until the input ends, the output breaks, or `stop` is called.

        After that, no new messages are handled. ``on_disconnect`` is called and returns the seconds that open requests
        still get; then they are cancelled. The queued output is written if the other side still reads. With
        ``finish_requests`` there is no such time limit after the end of the input.
        """
        self._on_disconnect = on_disconnect
        self._finish_requests = finish_requests
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            tasks.start_soon(self._write)
            try:
                with self._read_scope:
                    await self._read()
            finally:
                with anyio.CancelScope(shield=True):
                    await self._close()
                tasks.cancel_scope.cancel()

    def stop(self) -> None:
        """End `run` as if the other side had closed the connection."""
        self._start_grace_period()
        self._read_scope.cancel()

    def _start_grace_period(self) -> None:
        """Start the time limit for open requests, because the other side has disconnected."""
        if self._peer_gone:
            return
        self._peer_gone = True
        grace = GRACE if self._on_disconnect is None else self._on_disconnect()
        self._grace_scope.deadline = anyio.current_time() + grace

    async def _close(self) -> None:
        self.closed = True
        for pending in self._pending.values():
            pending.fail(Disconnected("the other side closed the connection"))
        if not self._finish_requests:
            self._start_grace_period()
        with self._grace_scope:
            await self._all_answered()
        for request in self._requests:
            request._scope.cancel()
        with anyio.move_on_after(FLUSH_SECONDS):
            await self._all_answered()
            self._send_queue.finish()
            await self._send_queue.written.wait()

    async def _all_answered(self) -> None:
        while self._requests:
            await self._request_done.wait()

    async def _write(self) -> None:
        await self._send_queue.run()
        # If the output is broken, nobody reads the replies, even if the input is still open.
        self.stop()

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        lines = self._splitter.feed(self._leftover)
        try:
            while True:
                for count, line in enumerate(lines, 1):
                    self._handle_line(line)
                    while self._send_queue.waiting > UNREAD_LIMIT and not self._send_queue.broken:
                        await self._wait_for_reader()
                    if not count % LINES_AT_ONCE:
                        await anyio.lowlevel.checkpoint()
                # Needed when input is always ready: a flood of messages must not block other tasks.
                await anyio.lowlevel.checkpoint()
                lines = self._splitter.feed(await self._receive.receive())
        except (anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
            for line in self._splitter.end():
                self._handle_line(line)
            await anyio.lowlevel.checkpoint()

    async def _wait_for_reader(self) -> None:
        """Wait until the other side reads. Raises EndOfStream if it has disconnected, because then it will never read."""
        with anyio.move_on_after(GRACE) as patience:
            await self._send_queue.wait_for_space()
        if patience.cancelled_caught and getattr(self._receive, "hung_up", bool)():
            raise anyio.EndOfStream

    def _handle_line(self, line: bytes | TooLong) -> None:
        if isinstance(line, TooLong):
            self._send_error(
                RpcError(PARSE_ERROR, f"Parse error: a line of more than {self._max_line} bytes was dropped")
            )
            return
        if not line or line.isspace():
            return
        message = parse_message(line)
        if message.problem is not None:
            self._send_error(message.problem, message.id)
            return
        if not message.envelope.method:
            self._handle_response(message.envelope)
            return
        if not message.envelope.id:
            self._handle_notification(message.method, message.envelope.params)
            return
        name = message.method
        try:
            method = self._methods.get(name)
            if method is None:
                raise RpcError(METHOD_NOT_FOUND, f"Method not found: {name[:200]}", {"method": name})
            if method.notification:
                raise RpcError(
                    METHOD_NOT_FOUND,
                    f"Method not found: {name} is a notification; send it without an id",
                    {"method": name},
                )
            if len(self._requests) >= MAX_IN_FLIGHT:
                raise RpcError(INVALID_REQUEST, f"Invalid request: {MAX_IN_FLIGHT} requests are open already")
            params = decode_params(message.envelope.params, method.params)
            request = Request(name, message.id)
            outcome = method.handler(params, request)
        except Exception as problem:  # noqa: BLE001 - a fault in a handler is answered, and logged by _as_error
            self._send_error(self._as_error(problem, name), message.id)
            return
        if hasattr(outcome, "__await__"):
            assert self._tasks is not None
            self._requests.add(request)
            self._tasks.start_soon(self._await_result, request, outcome)
        else:
            self._send_result(request, outcome)

    def _handle_response(self, envelope: Envelope) -> None:
        message_id = parse_id(envelope.id) if envelope.id else NULL_ID
        pending = (
            self._pending.get(message_id.key[1]) if message_id is not None and message_id.key[0] == "number" else None
        )
        if pending is None:
            log.debug("ignored an answer: no request with this id waits for one")
        elif pending.done.is_set():
            log.debug("ignored a second answer to the same request")
        elif envelope.error:
            try:
                error = codecs.json_decoder(ErrorObject).decode(envelope.error)
                pending.fail(RpcError(error.code, error.message, error.data))
            except msgspec.DecodeError:
                pending.fail(RpcError(INVALID_REQUEST, "the answer is an error of the wrong shape"))
        else:
            pending.result = envelope.result
            pending.done.set()

    def _handle_notification(self, name: str, params: msgspec.Raw) -> None:
        """Handle a notification. It is never answered; an unknown one is ignored."""
        if name == "$/cancel_request":
            self._cancel_request(params)
            return
        method = self._methods.get(name)
        if method is None or not method.notification:
            log.debug("notification ignored: %s", name)
            return
        request = Request(name, None)
        try:
            outcome = method.handler(decode_params(params, method.params), request)
        except RpcError as problem:
            log.warning("notification %s ignored: %s", name, problem.message)
        except Exception:
            log.exception("notification %s failed", name)
        else:
            if hasattr(outcome, "__await__"):
                assert self._tasks is not None
                self._tasks.start_soon(self._await_result, request, outcome)

    def _cancel_request(self, params: msgspec.Raw) -> None:
        try:
            wanted = parse_id(codecs.json_decoder(_CancelRequest).decode(params).requestId)
        except msgspec.DecodeError:
            wanted = None
        if wanted is None:
            log.warning("$/cancel_request ignored: it names no request")
            return
        for request in list(self._requests):
            if request.id is not None and request.id.key == wanted.key and not request.cancelled:
                request.cancel()

    async def _await_result(self, request: Request, outcome: Awaitable[Any]) -> None:
        result = error = None
        try:
            with request._scope:
                result = await outcome
            if request.cancelled or request._scope.cancelled_caught:
                error = RpcError(REQUEST_CANCELLED, "Request cancelled")
        except Exception as problem:  # noqa: BLE001 - as in _serve
            error = self._as_error(problem, request.method)
        finally:
            self._requests.discard(request)
            answered, self._request_done = self._request_done, anyio.Event()
            answered.set()
        if error is None:
            self._send_result(request, result)
        elif request.id is not None:
            self._send_error(error, request.id)

    def start_task(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a background task. It is cancelled when the connection ends."""
        if self._tasks is not None:
            self._tasks.start_soon(work)

    def _send_result(self, request: Request, result: Any) -> None:
        if request.id is not None:
            self._send_queue.put(Reply(request.id.raw, {} if result is None else result), masked=self._masked)
        for send in request.after:
            send()

    def _send_error(self, error: RpcError, reply_id: Id | None = NULL_ID) -> None:
        raw = (reply_id or NULL_ID).raw
        self._send_queue.put(ErrorReply(raw, ErrorObject.of(error)))

    def _as_error(self, problem: Exception, method: str) -> RpcError:
        if isinstance(problem, RpcError):
            return problem
        log.error("%s failed", method, exc_info=problem)
        what = type(problem).__name__
        return RpcError(
            INTERNAL_ERROR,
            f"Internal error: {method} failed ({what}); the agent's log says more",
            {"error": what},
        )


class _CancelRequest(msgspec.Struct):
    requestId: msgspec.Raw  # noqa: N815 - the protocol's name
