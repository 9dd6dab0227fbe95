"""The protocol methods that differ from pygls: texts are kept here, and every request gets an answer."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Callable, Generator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.protocol import LanguageServerProtocol, lsp_method

from cantrip_acp.lsp.server.wire import Prepared, prepared

if TYPE_CHECKING:
    from cantrip_acp.lsp.server.server import Server

_log = logging.getLogger(__name__)

_OURS = "cantrip/"
_PARSE, _INVALID, _PARAMS, _NOT_INITIALIZED = -32700, -32600, -32602, -32002
_UNKNOWN = -32601


def _whole(params: object) -> None:
    """Remove ``"range": null``: some clients send it for a change of the whole text, which must have no range."""
    changes = params.get("contentChanges") if isinstance(params, dict) else None
    for change in changes if isinstance(changes, list) else ():
        for name in ("range", "rangeLength"):
            if isinstance(change, dict) and change.get(name, change) is None:
                del change[name]


class Protocol(LanguageServerProtocol):
    """pygls' protocol with our own documents, whose lines end as the protocol says."""

    _server: Server

    def take(self, body: bytes) -> None:
        """Handle one message. Raises nothing: an invalid request is answered with an error, an invalid notification is
        logged."""
        try:
            data = json.loads(body)
        except (ValueError, RecursionError):
            self._refuse(None, _PARSE, "the message is not JSON")
            return
        if not isinstance(data, dict) or data.get("jsonrpc") != "2.0":
            self._refuse(data.get("id") if isinstance(data, dict) else None, _INVALID, "not a JSON-RPC 2.0 message")
            return
        method, number = data.get("method"), data.get("id")
        asks = isinstance(method, str) and number is not None
        if asks and method != types.INITIALIZE and self._workspace is None:
            self._refuse(number, _NOT_INITIALIZED, "initialize comes first")
            return
        if asks and method == types.INITIALIZE and self._workspace is not None:
            self._refuse(number, _INVALID, "the server is initialized already")
            return
        if asks and self._shutdown:
            self._refuse(number, _INVALID, "the server is shutting down")
            return
        if not asks and isinstance(method, str) and self._workspace is None and method != types.EXIT:
            return  # notifications before initialize are dropped, as the protocol says
        if asks and isinstance(method, str) and method.startswith(_OURS):
            self._ours(number, method, data.get("params"))
            return
        if method == types.TEXT_DOCUMENT_DID_CHANGE:
            _whole(data.get("params"))
        try:
            message = self.structure_message(data)
        except JsonRpcException:
            wrong = f"the parameters of {str(method)[:100]} are not as the protocol has them"
            if asks:
                self._refuse(number, _PARAMS, wrong)
            else:
                _log.warning("%s; nothing was done", wrong)
            return
        self.handle_message(message)

    def _execute_handler(
        self,
        msg_id: str | int,
        handler: Callable[..., Any],
        callback: Callable[[Future[Any]], None],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """As in pygls, but a handler may also return a coroutine: it sees the current text, and may take longer."""
        if asyncio.iscoroutinefunction(handler) or inspect.isgeneratorfunction(handler):
            super()._execute_handler(msg_id, handler, callback, args, kwargs)
            return
        future: Any = Future()
        try:
            result = handler(*(args or ()), **(kwargs or {}))
        except Exception as error:  # noqa: BLE001 - it is the request's answer
            future.set_exception(error)
        else:
            if inspect.iscoroutine(result):
                future = asyncio.ensure_future(result)
                self._request_futures[msg_id] = future
            else:
                future.set_result(result)
        future.add_done_callback(callback)

    def _ours(self, number: Any, method: str, params: object) -> None:
        """A request that the protocol does not define: its parameters are passed on as plain data."""
        from cantrip_acp.lsp.looms.requests import REQUESTS

        asked = REQUESTS.get(method)
        if asked is None:
            self._refuse(number, _UNKNOWN, f"there is no request {method[:100]!r}; there are {', '.join(REQUESTS)}")
            return
        future = asyncio.ensure_future(asked(self._server, params))
        self._request_futures[number] = future
        future.add_done_callback(lambda done: self._send_handler_result(done, msg_id=number))

    def _send_response(self, msg_id: str | int, result: Any | None = None, error: Any | None = None) -> None:
        if error is None and isinstance(result, Prepared):
            self._result_types.pop(msg_id, None)
            self._ready(b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(msg_id).encode(), result))
            return
        super()._send_response(msg_id, result, error)

    def tell(self, method: str, params: Any) -> None:
        """Send a notification with plain data as parameters."""
        self._ready(prepared({"jsonrpc": "2.0", "method": method, "params": params}))

    def _ready(self, body: bytes) -> None:
        assert self.writer is not None
        self.writer.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))

    def _refuse(self, number: Any, code: int, why: str) -> None:
        self._send_data({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": why}})

    @lsp_method(types.INITIALIZE)
    def lsp_initialize(self, params: types.InitializeParams) -> Generator[Any, Any, types.InitializeResult]:
        result = yield from super().lsp_initialize(params)
        if result.capabilities.execute_command_provider is not None:
            result.capabilities.execute_command_provider.work_done_progress = True
        if not self._server.pulls:
            result.capabilities.diagnostic_provider = None
        return result

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        self._server.opened(params.text_document)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        self._server.edited(params.text_document, list(params.content_changes))

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        self._server.closed(params.text_document.uri)

    @lsp_method(types.WORKSPACE_EXECUTE_COMMAND)
    async def lsp_workspace__execute_command(  # type: ignore[override]
        self, params: types.ExecuteCommandParams
    ) -> Any:
        from cantrip_acp.lsp.commands.runner import execute

        return await execute(self._server, params)

    @lsp_method(types.WINDOW_WORK_DONE_PROGRESS_CANCEL)
    def lsp_work_done_progress_cancel(self, params: types.WorkDoneProgressCancelParams) -> None:
        cancel = self._server.works.get(params.token)
        if cancel is not None:
            cancel()
