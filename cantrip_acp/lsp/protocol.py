"""The protocol's own methods where ours differ from pygls': texts are kept here, and every request gets an answer."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.protocol import LanguageServerProtocol, lsp_method

if TYPE_CHECKING:
    from cantrip_acp.lsp.server import Server

_log = logging.getLogger(__name__)

_PARSE, _INVALID, _PARAMS, _NOT_INITIALIZED = -32700, -32600, -32602, -32002


class Protocol(LanguageServerProtocol):
    """pygls' protocol over our own documents, whose lines end where the protocol says."""

    _server: Server

    def take(self, body: bytes) -> None:
        """Handle one message. What cannot be understood is answered, or logged where nobody waits; nothing is raised."""
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
            return  # notifications before initialize are dropped, as the protocol has it
        try:
            message = self.structure_message(data)
        except JsonRpcException:
            if asks:
                self._refuse(number, _PARAMS, f"the parameters of {method} are not as the protocol has them")
            return
        self.handle_message(message)

    def _refuse(self, number: Any, code: int, why: str) -> None:
        self._send_data({"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": why}})

    @lsp_method(types.TEXT_DOCUMENT_DID_OPEN)
    def lsp_text_document__did_open(self, params: types.DidOpenTextDocumentParams) -> None:
        self._server.opened(params.text_document)

    @lsp_method(types.TEXT_DOCUMENT_DID_CHANGE)
    def lsp_text_document__did_change(self, params: types.DidChangeTextDocumentParams) -> None:
        self._server.edited(params.text_document, list(params.content_changes))

    @lsp_method(types.TEXT_DOCUMENT_DID_CLOSE)
    def lsp_text_document__did_close(self, params: types.DidCloseTextDocumentParams) -> None:
        self._server.closed(params.text_document.uri)
