"""The server: open documents, and when their diagnostics are sent.
A changed recipe is read as a whole, in a thread, a few milliseconds after the last change.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import Future
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from lsprotocol import types
from pygls.exceptions import JsonRpcException
from pygls.lsp.server import LanguageServer
from pygls.protocol import LanguageServerProtocol, lsp_method
from pygls.uris import to_fs_path

from cantrip_acp.files.descriptors import is_ready
from cantrip_acp.lsp.commands.casts import RecipeCasts
from cantrip_acp.lsp.commands.trust import TrustManager
from cantrip_acp.lsp.server import document_kinds as kinds
from cantrip_acp.lsp.server.documents import Documents, OpenDocument
from cantrip_acp.text.logs import logger
from cantrip_acp.version import __version__

if TYPE_CHECKING:
    from cantrip_acp.lsp.looms.cache import LoomCache
    from cantrip_acp.lsp.recipes.diagnostics import Analysis, Finding
    from cantrip_acp.lsp.recipes.workspace_recipes import WorkspaceRecipes
    from cantrip_acp.lsp.server.positions import TextDocument
    from cantrip_acp.recipes.build.python_files import Files


_log = logger(__name__)

SOON_S = 0.004

_SEVERITY = {
    "error": types.DiagnosticSeverity.Error,
    "warning": types.DiagnosticSeverity.Warning,
    "information": types.DiagnosticSeverity.Information,
    "hint": types.DiagnosticSeverity.Hint,
}


PARSE_ERROR = -32700
_INVALID, _PARAMS, _NOT_INITIALIZED = -32600, -32602, -32002


def _drop_null_ranges(params: object) -> None:
    """Remove ``"range": null``: some clients send it for a change of the whole text, which must have no range."""
    changes = params.get("contentChanges") if isinstance(params, dict) else None
    for change in changes if isinstance(changes, list) else ():
        for name in ("range", "rangeLength"):
            if isinstance(change, dict) and change.get(name, change) is None:
                del change[name]


class Protocol(LanguageServerProtocol):
    """pygls' protocol with our own documents, whose lines end as the protocol says."""

    _server: Server

    def structure_message(self, data: dict[str, Any]) -> Any:
        """Like pygls, but answer an invalid request with an error and log an invalid notification; both give None."""
        if "jsonrpc" not in data:
            return data
        method, number = data.get("method"), data.get("id")
        asks = isinstance(method, str) and number is not None
        if asks and (wrong := self._out_of_order(method)) is not None:
            self.refuse(number, *wrong)
            return None
        if not asks and isinstance(method, str) and self._workspace is None and method != types.EXIT:
            return None  # notifications before initialize are dropped, as the protocol says
        if method == types.TEXT_DOCUMENT_DID_CHANGE:
            _drop_null_ranges(data.get("params"))
        try:
            return super().structure_message(data)
        except JsonRpcException:
            wrong_params = f"the parameters of {str(method)[:100]} do not have the protocol's form"
            if asks:
                self.refuse(number, _PARAMS, wrong_params)
            else:
                _log.warning("%s; the message was ignored", wrong_params)
            return None

    def _out_of_order(self, method: object) -> tuple[int, str] | None:
        """The error of a request that comes before initialize or after shutdown, or that initializes again."""
        if (method == types.INITIALIZE) != (self._workspace is None):
            if method == types.INITIALIZE:
                return _INVALID, "the server is initialized already"
            return _NOT_INITIALIZED, "initialize comes first"
        return (_INVALID, "the server is shutting down") if self._shutdown else None

    def handle_message(self, message: Any) -> None:
        """Like pygls, but ignore None, which stands for a refused message."""
        if isinstance(message, dict | list) or (not hasattr(message, "jsonrpc") and message is not None):
            number = message.get("id") if isinstance(message, dict) else None
            self.refuse(number, _INVALID, "not a JSON-RPC 2.0 message")
        elif message is not None:
            super().handle_message(message)

    def _execute_handler(
        self,
        msg_id: str | int,
        handler: Callable[..., Any],
        callback: Callable[[Future[Any]], None],
        args: tuple[Any, ...] | None = None,
        kwargs: dict[str, Any] | None = None,
    ) -> None:
        """Like pygls, but a handler may also return a coroutine, which sees the current text and may take longer."""
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

    def refuse(self, number: Any, code: int, why: str) -> None:
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
        return await self._server.execute(params)


class Server(LanguageServer):
    protocol: Protocol

    def __init__(self) -> None:
        super().__init__("cantrip", __version__, protocol_cls=Protocol)
        self.documents = Documents()
        self.works: dict[str | int, Callable[[], None]] = {}
        """The work that the client can cancel, by progress token."""
        self.casts = RecipeCasts()
        self.trusting = TrustManager()
        self.leave: Callable[[], None] = lambda: os._exit(0)
        """Called when the client's process is gone."""
        self.run_command: Callable[[Server, types.ExecuteCommandParams], Coroutine[Any, Any, Any]] | None = None
        self.documents_read: Callable[[], None] = lambda: None
        """Called when a recipe was read: it may name other files now."""
        self._had_folders = False
        self._settled = False
        self._sent: WeakKeyDictionary[OpenDocument, tuple[TextDocument, Analysis]] = WeakKeyDictionary()
        """The text and the analysis whose findings the client has. In another text the same spans are other places."""
        self._tasks: set[asyncio.Task[Any]] = set()

    async def execute(self, params: types.ExecuteCommandParams) -> Any:
        """Run a command; `features` says how."""
        assert self.run_command is not None
        return await self.run_command(self, params)

    def report_server_error(self, error: Exception, source: Any) -> None:
        """Like pygls, but answer a message that is not JSON."""
        if isinstance(error, json.JSONDecodeError | RecursionError | UnicodeDecodeError):
            self.protocol.refuse(None, PARSE_ERROR, "the message is not JSON")
        else:
            super().report_server_error(error, source)

    def begin(self, params: types.InitializeParams) -> None:
        """Store the client's parameters of ``initialize``."""
        encoding = getattr(self.protocol.workspace, "position_encoding", None) or self.workspace.position_codec.encoding
        name = str(getattr(encoding, "value", encoding) or "utf-16")
        self.documents.encoding = "utf-8" if name == "utf-8" else "utf-32" if name == "utf-32" else "utf-16"
        self.roots()
        if params.process_id is not None:
            _watch_client(params.process_id, lambda: self.leave())

    def roots(self) -> None:
        """Update the workspace's folders, and check open recipes again."""
        uris = list(self.workspace.folders)
        if not uris and self.workspace.root_uri and not self._had_folders:
            uris = [self.workspace.root_uri]  # older clients send one root instead of folders
        self._had_folders = self._had_folders or bool(self.workspace.folders)
        self.documents.folders = [Path(path) for uri in uris if (path := to_fs_path(uri))]
        self.recheck()

    def opened(self, item: types.TextDocumentItem) -> None:
        if self._of_kind(item.uri, "opened", item):
            return
        document = self.documents.open(item)
        if document.recipe:
            self.keep(self.first(document))

    def edited(
        self, about: types.VersionedTextDocumentIdentifier, changes: list[types.TextDocumentContentChangeEvent]
    ) -> None:
        """Apply a client's changes to a document; ignored if the document is not open."""
        if self._of_kind(about.uri, "edited", about, changes):
            return
        document = self.documents.by_uri.get(about.uri)
        if document is None:
            return
        document.change(changes, about.version)
        if document.recipe:
            document.drop()
            document.waiting = asyncio.get_running_loop().call_later(SOON_S, self._start_reading, document)

    def closed(self, uri: str) -> None:
        """Clear the diagnostics of a document that the client closed."""
        if self._of_kind(uri, "closed", uri):
            return
        document = self.documents.by_uri.get(uri)
        self.documents.close(uri)
        if document is not None and document.recipe and not self.pulls:
            self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(uri, []))

    @cached_property
    def looms(self) -> LoomCache:
        from cantrip_acp.lsp.looms.cache import LoomCache

        return LoomCache(self)

    def files_changed(self) -> None:
        """Check recipes again and refresh lenses, because files around the recipes changed."""
        self.recheck()
        self.lenses_changed()

    def _of_kind(self, uri: str, name: str, *given: Any) -> bool:
        """If a document is not a recipe, call its kind's function ``name``. Returns whether it is not."""
        kind = kinds.of(uri)
        if kind is None or kind.name == "recipe":
            return False
        handler = kind.answer(name)
        if handler is not None:
            handler(self, *given)
        return True

    @cached_property
    def library(self) -> WorkspaceRecipes:
        """The recipes of the workspace that are not open. Hold `analyzing_library` to use it: one thread at a time."""
        from cantrip_acp.lsp.recipes.workspace_recipes import WorkspaceRecipes

        return WorkspaceRecipes()

    @cached_property
    def analyzing_library(self) -> asyncio.Lock:
        return asyncio.Lock()

    @property
    def pulls(self) -> bool:
        """Whether the client pulls diagnostics, so that none are published."""
        document = self.client_capabilities.text_document
        return bool(document is not None and document.diagnostic is not None)

    def recheck(self) -> None:
        """Check every open recipe again, because files around it may have changed."""
        if "library" in self.__dict__:
            self.library.forget()
        if "looms" in self.__dict__:
            self.looms.hurry()
        for document in self.documents.by_uri.values():
            if document.recipe and (document.analysis is not None or document.waiting is None):
                # A text that was just changed is read soon anyway.
                document.drop()
                document.waiting = asyncio.get_running_loop().call_later(SOON_S, self._start_reading, document)

    def analysis(self, document: OpenDocument) -> Analysis:
        """The analysis of a document's current text, computed if needed."""
        if document.analysis is None:
            from cantrip_acp.lsp.recipes import diagnostics

            document.analysis = diagnostics.read(document.text, document.path, self.documents.workspace(document.path))
        return document.analysis

    def files(self) -> Files:
        """Files as the client sees them: open documents replace the files on disk."""
        from cantrip_acp.recipes.build.python_files import Files

        files = Files()
        for document in self.documents.by_uri.values():
            files.hold(document.path, document.text.readable.encode())
        return files

    async def show(self, uri: str, *, external: bool = False) -> bool:
        """Ask the client to show a document, or a page in the browser; return whether it did."""
        window = self.client_capabilities.window
        if window is None or window.show_document is None or not window.show_document.support:
            return False
        params = types.ShowDocumentParams(uri, external=external, take_focus=True)
        try:
            shown = await asyncio.wait_for(self.window_show_document_async(params), 10)
        except (JsonRpcException, TimeoutError):
            return False
        return bool(shown is not None and shown.success)

    def lenses_changed(self) -> None:
        """Ask the client to request lenses again, if it can."""
        workspace = self.client_capabilities.workspace
        if workspace is not None and workspace.code_lens is not None and workspace.code_lens.refresh_support:
            self.workspace_code_lens_refresh(None)

    async def close(self, patience: float = 3.0) -> None:
        """Cancel running casts, and wait for them at most ``patience`` seconds."""
        await self.casts.close(patience)

    @property
    def creates_files(self) -> bool:
        """Whether the client can create files from an edit."""
        workspace = self.client_capabilities.workspace
        edits = workspace.workspace_edit if workspace is not None else None
        kinds = (edits.resource_operations or ()) if edits is not None and edits.document_changes else ()
        return types.ResourceOperationKind.Create in kinds

    @cached_property
    def hover_formats(self) -> Sequence[types.MarkupKind]:
        """The formats that the client shows in hovers; Markdown if it does not say."""
        document = self.client_capabilities.text_document
        hover = document.hover if document is not None else None
        return (hover.content_format if hover is not None else None) or (types.MarkupKind.Markdown,)

    @cached_property
    def completion_formats(self) -> Sequence[types.MarkupKind]:
        """The formats of completion documentation. If the client lists its abilities without this one, plain text."""
        document = self.client_capabilities.text_document
        item = document.completion.completion_item if document is not None and document.completion is not None else None
        return (types.MarkupKind.Markdown,) if item is None else item.documentation_format or ()

    @property
    def makes_progress(self) -> bool:
        """Whether the client shows progress that the server begins."""
        window = self.client_capabilities.window
        return bool(window is not None and window.work_done_progress)

    def keep(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task in the background; errors are logged."""
        self.start_task(work).add_done_callback(self._log_failure)

    def start_task(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Like `keep`, but for a caller that waits for the result."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _log_failure(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and task.exception() is not None:
            _log.error("an analysis failed", exc_info=task.exception())

    def _start_reading(self, document: OpenDocument) -> None:
        document.waiting = None
        self.keep(self.read(document))

    async def read(self, document: OpenDocument) -> None:
        """Read a recipe in a thread, and publish its diagnostics if its text has not changed meanwhile."""
        from cantrip_acp.lsp.recipes import diagnostics

        text = document.text
        workspace = self.documents.workspace(document.path)
        analysis = await asyncio.to_thread(diagnostics.read, text, document.path, workspace)
        if document.text is not text or self.documents.by_uri.get(document.uri) is not document:
            return
        # A request may have read this text meanwhile, but the client has not received that result.
        sent, document.analysis = self._sent.get(document), analysis
        if sent is None or sent[0] is not text or sent[1].findings != analysis.findings:
            self._publish(document)
        if not any(finding.severity == "error" for finding in analysis.findings):
            asked = await asyncio.to_thread(self.trusting.asked, document.path, self.files(), workspace)
            before_asked, document.untrusted = document.untrusted, asked
            if before_asked != asked:
                self.lenses_changed()

    async def first(self, document: OpenDocument) -> None:
        """Make the first analysis of a document. It runs only once, even with several callers."""
        if document.first is None:
            document.first = self.start_task(self._first(document))
        await asyncio.shield(document.first)

    async def _first(self, document: OpenDocument) -> None:
        await self.read(document)
        if not self._settled:
            # Objects imported for the first recipe stay. Without this, some keystrokes would wait until the garbage
            # collector has checked them all.
            self._settled = True
            gc.freeze()

    def _publish(self, document: OpenDocument) -> None:
        if document.analysis is None:
            return
        self.documents_read()
        self._sent[document] = document.text, document.analysis
        if self.pulls:
            workspace = self.client_capabilities.workspace
            asked = workspace.diagnostics if workspace is not None else None
            # This analysis replaces what the client pulled since the last change.
            if asked is not None and asked.refresh_support:
                self.workspace_diagnostic_refresh(None)
            return
        found = [self.diagnostic(document, finding) for finding in document.analysis.findings]
        self.text_document_publish_diagnostics(types.PublishDiagnosticsParams(document.uri, found, document.version))

    def analysis_to_send(self, document: OpenDocument) -> Analysis:
        """The current analysis for sending to the client: a later analysis is compared with it."""
        analysis = self.analysis(document)
        self._sent[document] = document.text, analysis
        return analysis

    def diagnostic(self, document: OpenDocument, finding: Finding) -> types.Diagnostic:
        from cantrip_acp.lsp.recipes import lint

        return types.Diagnostic(
            document.text.range(*finding.span),
            finding.message,
            severity=_SEVERITY[finding.severity],
            code=finding.rule,
            code_description=types.CodeDescription(lint.link(finding.rule)),
            source="cantrip",
            tags=[types.DiagnosticTag.Deprecated] if finding.rule == "legacy-key" else None,
            related_information=[
                types.DiagnosticRelatedInformation(types.Location(document.uri, document.text.range(*span)), why)
                for span, why in finding.related
            ]
            or None,
        )


# --- Ends the server when the client's process ends. It runs in a thread, so a busy event loop cannot block it.

_CHECK_S = 2.0
"""Seconds between two checks, on systems without pidfd."""


_END_S = 10.0
"""Seconds that an orderly end may take before the process is ended by force."""


def _watch_client(process: int, gone: Callable[[], None]) -> None:
    """When process ``process`` ends, call ``gone`` in a thread; if this process still runs `_END_S` seconds later, exit at once."""
    threading.Thread(target=_wait_for_client, args=(process, gone), name="client watch", daemon=True).start()


def _wait_for_client(process: int, gone: Callable[[], None]) -> None:
    if process <= 0 or process == os.getpid():
        return
    try:
        descriptor = os.pidfd_open(process)
    except ProcessLookupError:
        pass
    except (AttributeError, OSError):
        while _is_running(process):
            time.sleep(_CHECK_S)
    else:
        is_ready(descriptor, None)
    gone()
    time.sleep(_END_S)
    os._exit(0)


def _is_running(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
